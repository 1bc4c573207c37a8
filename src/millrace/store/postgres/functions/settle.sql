-- settle.sql: the fast path of a completion, and the extension of leases. Rules for all functions: see steps.sql.

-- Lock the lines and keys of jobs that are completed. Returns whether no other transaction holds one.
CREATE OR REPLACE FUNCTION millrace.lock_lines_and_keys(seqs bigint[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN (
        SELECT coalesce(bool_and(
            (j.line IS NULL OR pg_try_advisory_xact_lock(millrace.lock_number('line ' || q.name || ' ' || j.line)))
            AND (j.key IS NULL OR pg_try_advisory_xact_lock(millrace.lock_number('key ' || q.name || ' ' || j.key)))
        ), true)
        FROM millrace.job AS j
        CROSS JOIN LATERAL (SELECT one.name FROM millrace.queue AS one WHERE one.id = j.queue LIMIT 1) AS q
        WHERE j.seq = ANY (seqs) AND (j.line IS NOT NULL OR j.key IS NOT NULL)
    );
END $$;

-- These jobs, which hold lines that are locked, have completed: their lines open the next member. Returns how many members
-- each (queue, task) has opened. MR001: another transaction has locked one. Repeats `Step._leave` of domain/rules/step.py.
CREATE OR REPLACE FUNCTION millrace.leave_lines(seqs bigint[], OUT queues text[], OUT tasks text[], OUT counts bigint[])
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    places tid[];  -- of the lines
    nexts bigint[];  -- the first waiting member of each, or NULL
    locked integer;
BEGIN
    SELECT array_agg(l.ctid ORDER BY j.seq), array_agg(next.seq ORDER BY j.seq) INTO places, nexts
    FROM millrace.job AS j
    CROSS JOIN LATERAL (
        SELECT one.ctid FROM millrace.line AS one WHERE one.queue = j.queue AND one.name = j.line LIMIT 1
    ) AS l
    LEFT JOIN LATERAL (
        SELECT m.seq FROM millrace.member AS m WHERE m.queue = j.queue AND m.line = j.line
        ORDER BY m.rank, m.seq LIMIT 1
    ) AS next ON true
    WHERE j.seq = ANY (seqs) AND j.line IS NOT NULL;
    SELECT count(*) INTO locked FROM (
        SELECT FROM millrace.job AS m WHERE m.seq = ANY (nexts) FOR UPDATE SKIP LOCKED
    ) AS m;
    IF locked < (SELECT count(n) FROM unnest(nexts) AS n) THEN
        RAISE EXCEPTION 'the next member of a line is locked' USING ERRCODE = 'MR001';
    END IF;
    DELETE FROM millrace.line AS l WHERE l.ctid = ANY (places) AND l.live = 1;
    UPDATE millrace.line AS l
    SET holder = NULL, open = i.next, live = l.live - 1, processed = l.processed + 1
    FROM unnest(places, nexts) AS i (place, next) WHERE l.ctid = i.place;
    WITH opened AS (
        INSERT INTO millrace.ready (combo, available_at, seq, special)
        SELECT m.combo, m.available_at, m.seq, true FROM millrace.job AS m WHERE m.seq = ANY (nexts)
        RETURNING combo
    )
    SELECT array_agg(q.name), array_agg(c.task), array_agg(n.count) INTO queues, tasks, counts
    FROM (SELECT o.combo, count(*) AS count FROM opened AS o GROUP BY o.combo) AS n
    CROSS JOIN LATERAL (SELECT * FROM millrace.combo AS one WHERE one.id = n.combo LIMIT 1) AS c
    CROSS JOIN LATERAL (SELECT * FROM millrace.queue AS one WHERE one.id = c.queue LIMIT 1) AS q;
END $$;

-- Complete plain jobs. Returns the numbers, counted from 1, of those whose lease was valid, and the channels of processes
-- that wait for these ends, with a notification for each. `queues`, `tasks`, `counts`: how many jobs can be claimed now, as
-- for `Tables.wake`. No row, or MR001: the call needs the ledger. `soon`: see `SOON` in fast_path.py; `needed`: see
-- `parents_completed`.
-- Leases are looked up one by one and deleted by ctid: a join may read all leases for each of them.
CREATE OR REPLACE FUNCTION millrace.complete_plain(given bigint, seqs bigint[], leases text[], results bytea[], durations bigint[],
                                        soon bigint, needed bytea)
RETURNS TABLE (held bigint[], replies text[], words text[], queues text[], tasks text[], counts bigint[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off
SET lock_timeout = '10s' AS $$
#variable_conflict use_column
DECLARE
    at bigint;
    batch bigint;
    one record;
    queue record;
    limited boolean := false;  -- a queue has `max_running`
    ended_ns bigint[];
    ended_ids text[];
    ended_replies text[];
    ended_words text[];
    held_leases text[];
    gone_leases text[];
    ended_seqs bigint[];
    jobs record;
    still_plain boolean;  -- now that the jobs are locked
    opened record;
    woken_queues text[];
    woken_tasks text[];
    woken_counts bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock(millrace.lock_number('call ' || leases[1]));
    PERFORM pg_advisory_xact_lock_shared(millrace.lock_number('gate'));
    SELECT array_agg(DISTINCT j.queue) AS queues, bool_and(j.plain AND j.extra IS NULL) AS plain,
           bool_or(j.line IS NOT NULL) AS any_line, bool_or(j.key IS NOT NULL) AS any_key, bool_or(j.line LIKE 'l:%') AS lanes
    INTO jobs FROM millrace.job AS j WHERE j.seq = ANY (seqs);
    IF NOT jobs.plain OR jobs.lanes THEN
        RETURN;
    END IF;
    FOR one IN SELECT q AS id FROM unnest(jobs.queues) AS q ORDER BY ('queue ' || q) COLLATE "C" LOOP
        PERFORM pg_advisory_xact_lock_shared(millrace.lock_number('queue ' || one.id));
        SELECT q.plain_end, q.max_running IS NOT NULL AS limited INTO queue FROM millrace.queue AS q WHERE q.id = one.id;
        IF NOT queue.plain_end THEN
            RETURN;
        END IF;
        limited := limited OR queue.limited;
    END LOOP;
    IF EXISTS (SELECT FROM millrace.task) AND
       EXISTS (SELECT FROM millrace.lease AS l JOIN millrace.combo AS c ON c.id = l.combo
               JOIN millrace.task AS t ON t.name = c.task WHERE l.seq = ANY (seqs)) THEN
        RETURN;
    END IF;
    IF (jobs.any_line OR jobs.any_key) AND NOT millrace.lock_lines_and_keys(seqs) THEN
        RETURN;
    END IF;
    at := millrace.clock(given);
    batch := nextval('millrace.event_id');
    WITH held AS MATERIALIZED (
        SELECT i.seq, i.lease, i.result, i.duration, i.n, found.*
        FROM unnest(seqs, leases, results, durations) WITH ORDINALITY AS i (seq, lease, result, duration, n)
        CROSS JOIN LATERAL (
            SELECT h.ctid AS place, h.started_at, h.attempt, h.events, h.newest, h.worker
            FROM millrace.lease AS h WHERE h.seq = i.seq AND h.id = i.lease LIMIT 1
        ) AS found
    ), ended AS (
        UPDATE millrace.job AS j
        SET state = 2, finished_at = at, started_at = l.started_at, attempt = l.attempt, events = l.events + 1,
            newest = batch, result = l.result,
            result_until = CASE WHEN l.result IS NOT NULL THEN at + j.keep_result END
        FROM held AS l
        WHERE j.seq = l.seq AND j.seq = ANY (seqs)  -- so that no plan reads other jobs
        RETURNING l.n, j.seq, j.id, j.combo, j.queue, j.generation, j.failures, j.reply, j.result_until, j.events,
                  j.plain AND j.extra IS NULL AS plain, l.attempt, l.newest AS before, l.worker, l.lease, l.duration,
                  l.place, j.result
    ), logged AS (
        INSERT INTO millrace.event (id, at, seqs, before, combos, generations, ns, attempts, failures, kinds, states,
                                    ids, workers, leases, durations)
        SELECT batch, at, array_agg(e.seq), array_agg(e.before),
               array_agg(e.combo), array_agg(e.generation), array_agg(e.events),
               array_agg(e.attempt), array_agg(e.failures), '{3}', '{2}',
               array_agg(e.id), array_agg(e.worker), array_agg(e.lease),
               array_agg(e.duration)
        FROM ended AS e HAVING count(*) > 0
    ), sent AS (
        INSERT INTO millrace.outbox (event, size, at) SELECT batch, count(*), at FROM ended HAVING count(*) > 0
    ), counted AS (
        INSERT INTO millrace.tally (queue, running, completed, live, processed)
        SELECT e.queue, -count(*), count(*), -count(*), count(*) FROM ended AS e GROUP BY e.queue
    ), noted AS (
        INSERT INTO millrace.agenda (kind, queue, at, seqs)
        SELECT 1, e.queue, at, array_agg(e.seq) FROM ended AS e GROUP BY e.queue
        UNION ALL
        SELECT 2, 0, e.result_until, array_agg(e.seq) FROM ended AS e WHERE e.result_until IS NOT NULL
        GROUP BY e.result_until
    ), released AS (
        DELETE FROM millrace.lease AS l WHERE l.ctid = ANY (ARRAY(SELECT e.place FROM ended AS e))
        RETURNING l.seq, l.id
    )
    SELECT array_agg(e.n), array_agg(e.seq), array_agg(e.reply), array_agg(e.id), array_agg(e.lease ORDER BY e.seq),
           bool_and(e.plain), (SELECT array_agg(r.id ORDER BY r.seq) FROM released AS r),
           CASE WHEN bool_or(e.reply IS NOT NULL) THEN array_agg(
               CASE WHEN e.reply IS NULL THEN NULL
                    WHEN length(e.result) > 4000 THEN json_build_object('ended', ARRAY[e.id])::text
                    ELSE json_build_object(
                        'ended', ARRAY[e.id], 'generation', e.generation,
                        'result', translate(encode(e.result, 'base64'), E'\n', '')
                    )::text END) END
    INTO ended_ns, ended_seqs, ended_replies, ended_ids, held_leases, still_plain, gone_leases, ended_words
    FROM ended AS e;
    IF gone_leases IS DISTINCT FROM held_leases THEN
        RAISE EXCEPTION 'a lease was taken over meanwhile' USING ERRCODE = '40001';
    END IF;
    IF NOT still_plain THEN
        RAISE EXCEPTION 'one of these jobs has changed' USING ERRCODE = 'MR001';
    END IF;
    IF jobs.any_line THEN
        SELECT * INTO opened FROM millrace.leave_lines(ended_seqs);
        woken_queues := opened.queues;
        woken_tasks := opened.tasks;
        woken_counts := opened.counts;
    END IF;
    IF EXISTS (SELECT FROM millrace.dependency AS d WHERE d.parent = ANY (ended_ids)) THEN
        SELECT * INTO opened FROM millrace.parents_completed(ended_seqs, ended_ids, at, at + soon, needed);
        woken_queues := woken_queues || opened.queues;
        woken_tasks := woken_tasks || opened.tasks;
        woken_counts := woken_counts || opened.counts;
    END IF;
    IF jobs.any_key THEN  -- repeats `Step._free_key` of domain/rules/step.py
        DELETE FROM millrace.hold AS h WHERE h.ctid = ANY (ARRAY(
            SELECT k.ctid FROM millrace.job AS j
            CROSS JOIN LATERAL (SELECT one.name FROM millrace.queue AS one WHERE one.id = j.queue LIMIT 1) AS q
            CROSS JOIN LATERAL (
                SELECT one.ctid, one.seq, one.scope FROM millrace.hold AS one
                WHERE one.queue = q.name AND one.key = j.key LIMIT 1
            ) AS k
            WHERE j.seq = ANY (ended_seqs) AND j.key IS NOT NULL AND k.seq = j.seq AND k.scope = 'live'
        ));
    END IF;
    FOR one IN SELECT q.name, count(*) AS freed FROM millrace.job AS j
               CROSS JOIN LATERAL (SELECT * FROM millrace.queue AS q WHERE q.id = j.queue LIMIT 1) AS q
               WHERE limited AND j.seq = ANY (ended_seqs) AND q.max_running IS NOT NULL GROUP BY q.name LOOP
        woken_queues := woken_queues || one.name;
        woken_tasks := woken_tasks || NULL::text;
        woken_counts := woken_counts || one.freed;
    END LOOP;
    RETURN QUERY SELECT coalesce(ended_ns, '{}'), coalesce(ended_replies, '{}'), ended_words, woken_queues, woken_tasks,
                        woken_counts;
END $$;

-- Notifies the processes that wait for one of these ends, except `mine`. A notification is about one job, and includes its
-- result if it fits.
CREATE OR REPLACE PROCEDURE millrace.complete_and_tell(
    INOUT held bigint[], INOUT replies text[], INOUT queues text[], INOUT tasks text[], INOUT counts bigint[],
    given bigint, seqs bigint[], leases text[], results bytea[], durations bigint[], soon bigint, needed bytea, mine text
) LANGUAGE plpgsql AS $$
DECLARE
    words text[];
    n integer;
    sent text;
BEGIN
    SELECT c.held, c.replies, c.words, c.queues, c.tasks, c.counts INTO held, replies, words, queues, tasks, counts
    FROM millrace.complete_plain(given, seqs, leases, results, durations, soon, needed) AS c;
    COMMIT;
    IF words IS NOT NULL THEN
        FOR n IN 1 .. cardinality(replies) LOOP
            IF replies[n] <> mine THEN
                sent := pg_notify(replies[n], words[n]);
            END IF;
        END LOOP;
    END IF;
END $$;

-- Extend leases. Returns for each, 0: the job has another lease or none; 1: extended; 2: extended, and the job is to be
-- cancelled.
CREATE OR REPLACE FUNCTION millrace.extend_leases(given bigint, seqs bigint[], ids text[], spans bigint[], news bytea[])
RETURNS integer[] LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = '10s' AS $$
DECLARE
    at bigint := millrace.clock(given);
    answers integer[];
BEGIN
    WITH item AS (
        SELECT * FROM unnest(seqs, ids, spans, news) WITH ORDINALITY AS i (seq, id, span, progress, n)
    ), held AS (
        UPDATE millrace.lease AS l
        SET until = at + coalesce(i.span, l.span), progress = coalesce(i.progress, l.progress)
        FROM (SELECT DISTINCT ON (seq, id) * FROM item ORDER BY seq, id, n DESC) AS i
        WHERE l.seq = i.seq AND l.id = i.id
        RETURNING l.seq, l.id, l.cancelling
    )
    SELECT array_agg(CASE WHEN held.seq IS NULL THEN 0 WHEN held.cancelling THEN 2 ELSE 1 END ORDER BY item.n)
    INTO answers FROM item LEFT JOIN held ON held.seq = item.seq AND held.id = item.id;
    RETURN coalesce(answers, '{}');
END $$;
