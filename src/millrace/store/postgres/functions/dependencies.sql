-- dependencies.sql: the fast path for jobs that wait for others. Rules for all functions: see steps.sql.

-- These parents, whose rows are locked, have completed: unblock the children that wait for no other parent. Returns how many
-- jobs can be claimed by `soon`, as for `Tables.wake`. `needed`: the `extra` of a parent whose result its children need.
-- MR001: a child is in a line or has ended, or another transaction holds a lock, so the call needs the ledger.
-- Repeats `keep_for_children` of domain/rules/transition.py, and `Step.parent_ended` and `Step._unblock` of domain/rules/step.py for completed parents.
CREATE OR REPLACE FUNCTION millrace.parents_completed(seqs bigint[], ids text[], at bigint, soon bigint, needed bytea,
                                           OUT queues text[], OUT tasks text[], OUT counts bigint[])
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_mergejoin = off AS $$
DECLARE
    children bigint[];
    met integer[];  -- how many of these parents each child has waited for
    locked record;
    batch bigint := nextval('millrace.event_id');
BEGIN
    SELECT array_agg(c.child), array_agg(c.met) INTO children, met FROM (
        SELECT d.child, count(*)::integer AS met FROM unnest(ids) AS i (id)
        CROSS JOIN LATERAL (SELECT one.child FROM millrace.dependency AS one WHERE one.parent = i.id OFFSET 0) AS d
        GROUP BY d.child
    ) AS c;
    SELECT count(*) AS count, bool_and(j.state = 0 AND j.line IS NULL) AS plain, array_agg(DISTINCT j.queue) AS queues
    INTO locked
    FROM (SELECT * FROM millrace.job AS one WHERE one.seq = ANY (children) ORDER BY one.seq FOR UPDATE SKIP LOCKED) AS j;
    IF locked.count < cardinality(children) OR NOT locked.plain
       OR NOT (SELECT bool_and(pg_try_advisory_xact_lock_shared(millrace.lock_number('queue ' || q)))
               FROM unnest(locked.queues) AS q) THEN
        RAISE EXCEPTION 'a child needs the ledger' USING ERRCODE = 'MR001';
    END IF;
    WITH kept AS (
        UPDATE millrace.job AS j SET extra = needed, result_until = coalesce(j.result_until, at + 60000)
        WHERE j.seq = ANY (seqs) AND j.result IS NOT NULL
          AND (SELECT one.child FROM millrace.dependency AS one WHERE one.parent = j.id LIMIT 1) IS NOT NULL
        RETURNING j.seq, j.keep_result
    )
    INSERT INTO millrace.agenda (kind, queue, at, seqs)
    SELECT 2, 0, at + 60000, array_agg(k.seq) FROM kept AS k WHERE k.keep_result IS NULL HAVING count(*) > 0;
    DELETE FROM millrace.dependency WHERE ctid = ANY (ARRAY(
        SELECT d.ctid FROM unnest(ids) AS i (id)
        CROSS JOIN LATERAL (SELECT one.ctid FROM millrace.dependency AS one WHERE one.parent = i.id OFFSET 0) AS d
    ));
    WITH child AS MATERIALIZED (
        SELECT i.seq, i.met, j.newest FROM unnest(children, met) AS i (seq, met)
        CROSS JOIN LATERAL (SELECT one.newest FROM millrace.job AS one WHERE one.seq = i.seq LIMIT 1) AS j
    ), changed AS (
        UPDATE millrace.job AS j
        SET blocked = j.blocked - c.met, events = j.events + (j.blocked = c.met)::integer,
            newest = CASE WHEN j.blocked = c.met THEN batch ELSE j.newest END,
            retry_at = CASE WHEN j.blocked = c.met AND j.failures > 0 THEN j.available_at END
        FROM child AS c
        WHERE j.seq = c.seq AND j.seq = ANY (children)  -- so that no plan reads other jobs
        RETURNING j.seq, j.id, j.combo, j.queue, j.generation, j.available_at, j.expires_at, j.attempt, j.failures, j.events,
                  j.blocked, c.newest AS before
    ), free AS MATERIALIZED (
        SELECT * FROM changed AS c WHERE c.blocked = 0
    ), opened AS (
        INSERT INTO millrace.ready (combo, available_at, seq, special)
        SELECT f.combo, f.available_at, f.seq, f.expires_at IS NOT NULL FROM free AS f
    ), logged AS (
        INSERT INTO millrace.event (id, at, seqs, before, combos, generations, ns, attempts, failures, kinds, states, ids)
        SELECT batch, at, array_agg(f.seq), array_agg(f.before), array_agg(f.combo), array_agg(f.generation),
               array_agg(f.events), array_agg(f.attempt), array_agg(f.failures), '{1}', '{0}', array_agg(f.id)
        FROM free AS f HAVING count(*) > 0
    ), sent AS (
        INSERT INTO millrace.outbox (event, size, at) SELECT batch, count(*), at FROM free HAVING count(*) > 0
    ), counted AS (
        INSERT INTO millrace.tally (queue, blocked) SELECT f.queue, -count(*) FROM free AS f GROUP BY f.queue
    )
    SELECT array_agg(q.name), array_agg(c.task), array_agg(n.count) INTO queues, tasks, counts
    FROM (SELECT f.combo, count(*) AS count FROM free AS f WHERE f.available_at <= soon GROUP BY f.combo) AS n
    CROSS JOIN LATERAL (SELECT * FROM millrace.combo AS one WHERE one.id = n.combo LIMIT 1) AS c
    CROSS JOIN LATERAL (SELECT * FROM millrace.queue AS one WHERE one.id = c.queue LIMIT 1) AS q;
END $$;
