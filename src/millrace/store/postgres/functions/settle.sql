-- settle.sql: the fast path of a completion, and the extension of leases. Rules for all functions: see steps.sql.

-- Complete plain jobs. Returns the numbers, counted from 1, of those whose lease was valid, and the channels of processes
-- that wait for these ends, with a notification for each. No row, or MR001: the call needs the ledger.
-- Leases are looked up one by one and deleted by ctid: a join may read all leases for each of them.
CREATE OR REPLACE FUNCTION millrace.complete_plain(given bigint, seqs bigint[], leases text[], results bytea[], durations bigint[])
RETURNS TABLE (held bigint[], replies text[], words text[]) LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET lock_timeout = '10s' AS $$
#variable_conflict use_column
DECLARE
    at bigint;
    batch bigint;
    one record;
    ended_ns bigint[];
    ended_ids text[];
    ended_replies text[];
    ended_words text[];
    held_leases text[];
    gone_leases text[];
BEGIN
    PERFORM pg_advisory_xact_lock(millrace.lock_number('call ' || leases[1]));
    PERFORM pg_advisory_xact_lock_shared(millrace.lock_number('gate'));
    FOR one IN SELECT DISTINCT c.queue FROM millrace.lease AS l JOIN millrace.combo AS c ON c.id = l.combo
               WHERE l.seq = ANY (seqs) ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock_shared(millrace.lock_number('queue ' || one.queue));
        IF NOT (SELECT q.plain_end FROM millrace.queue AS q WHERE q.id = one.queue) THEN
            RETURN;
        END IF;
    END LOOP;
    IF EXISTS (SELECT FROM millrace.job AS j WHERE j.seq = ANY (seqs) AND (NOT j.plain OR j.extra IS NOT NULL)) THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM millrace.task) AND
       EXISTS (SELECT FROM millrace.lease AS l JOIN millrace.combo AS c ON c.id = l.combo
               JOIN millrace.task AS t ON t.name = c.task WHERE l.seq = ANY (seqs)) THEN
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
                  l.attempt, l.newest AS before, l.worker, l.lease, l.duration, l.place, j.result
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
    SELECT array_agg(e.n), array_agg(e.reply), array_agg(e.id), array_agg(e.lease ORDER BY e.seq),
           (SELECT array_agg(r.id ORDER BY r.seq) FROM released AS r),
           CASE WHEN bool_or(e.reply IS NOT NULL) THEN array_agg(
               CASE WHEN e.reply IS NULL THEN NULL
                    WHEN length(e.result) > 4000 THEN json_build_object('ended', ARRAY[e.id])::text
                    ELSE json_build_object(
                        'ended', ARRAY[e.id], 'generation', e.generation,
                        'result', translate(encode(e.result, 'base64'), E'\n', '')
                    )::text END) END
    INTO ended_ns, ended_replies, ended_ids, held_leases, gone_leases, ended_words FROM ended AS e;
    IF gone_leases IS DISTINCT FROM held_leases THEN
        RAISE EXCEPTION 'a lease was taken over meanwhile' USING ERRCODE = '40001';
    END IF;
    IF EXISTS (SELECT FROM millrace.dependency AS d WHERE d.parent = ANY (ended_ids)) THEN
        RAISE EXCEPTION 'others wait for one of these jobs' USING ERRCODE = 'MR001';
    END IF;
    RETURN QUERY SELECT coalesce(ended_ns, '{}'), coalesce(ended_replies, '{}'), ended_words;
END $$;

-- Notifies the processes that wait for one of these ends, except `mine`. A notification is about one job, and includes its
-- result if it fits.
CREATE OR REPLACE PROCEDURE millrace.complete_and_tell(
    INOUT held bigint[], INOUT replies text[], given bigint, seqs bigint[], leases text[], results bytea[],
    durations bigint[], mine text
) LANGUAGE plpgsql AS $$
DECLARE
    words text[];
    n integer;
    sent text;
BEGIN
    SELECT c.held, c.replies, c.words INTO held, replies, words
    FROM millrace.complete_plain(given, seqs, leases, results, durations) AS c;
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
