-- Version 1 of the PostgreSQL store: functions.
-- Each is one round trip and, in PL/pgSQL, each statement sees what was committed before it began: what is locked first
-- is read as it is. Sequential and bitmap scans are off in them: a plan that was made for a small table, and is kept,
-- must do for a large one that was never analyzed.

CREATE FUNCTION millrace.clock(given bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(given, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$$;

-- The number of a lock that is held until the end of the transaction.
CREATE FUNCTION millrace.lock_number(name text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended('millrace.' || name, 0)
$$;

-- Let nobody else be under way. Whoever waits here keeps everybody behind them waiting as well, so it waits for a
-- moment only: steps are short, but a transaction of a caller's may be long.
CREATE FUNCTION millrace.close_gate() RETURNS boolean LANGUAGE plpgsql VOLATILE SET lock_timeout = '150ms' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(millrace.lock_number('gate'));
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Locks by name, each for oneself or shared; answers those that somebody else holds. With `patient`, waits for each.
CREATE FUNCTION millrace.take_locks(names text[], shared boolean[], patient boolean) RETURNS SETOF text
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    wanted record;
BEGIN
    FOR wanted IN SELECT name, bool_and(is_shared) AS is_shared FROM unnest(names, shared) AS w (name, is_shared)
                  GROUP BY name ORDER BY name LOOP
        IF patient AND wanted.is_shared THEN
            PERFORM pg_advisory_xact_lock_shared(millrace.lock_number(wanted.name));
        ELSIF patient THEN
            PERFORM pg_advisory_xact_lock(millrace.lock_number(wanted.name));
        ELSIF wanted.is_shared AND NOT pg_try_advisory_xact_lock_shared(millrace.lock_number(wanted.name)) THEN
            RETURN NEXT wanted.name;
        ELSIF NOT wanted.is_shared AND NOT pg_try_advisory_xact_lock(millrace.lock_number(wanted.name)) THEN
            RETURN NEXT wanted.name;
        END IF;
    END LOOP;
END $$;

-- A step begins: it passes the gate, which only those close who must not miss anybody (`alone`: it has closed it), and takes
-- what it is known to need. Answers the clock, the number of its row of events, and the tasks that have limits: since
-- nobody gives a task its first limit while others are under way, that stays so.
CREATE FUNCTION millrace.begin_step(given bigint, alone boolean, names text[], shared boolean[],
                                    OUT now bigint, OUT event bigint, OUT tasks text[])
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT alone THEN
        PERFORM pg_advisory_xact_lock_shared(millrace.lock_number('gate'));
    END IF;
    IF cardinality(names) > 0 THEN
        PERFORM millrace.take_locks(names, shared, true);
    END IF;
    now := millrace.clock(given);
    event := nextval('millrace.event_id');
    tasks := ARRAY(SELECT t.name FROM millrace.task AS t ORDER BY t.name);
END $$;

-- A job's record as it is now: with its lease, and whether it is open. These are looked up for each job: where a server
-- believes that a table is empty, because it was when it was last analyzed, it would rather read all of it and join.
CREATE VIEW millrace.record AS
SELECT job.seq, job.generation, job.state, job.enqueued_at, job.available_at, job.expires_at,
       coalesce(lease.started_at, job.started_at) AS started_at, job.finished_at,
       coalesce(lease.attempt, job.attempt) AS attempt, job.failures, job.blocked,
       coalesce(lease.events, job.events) AS events, job.line,
       ready.seq IS NOT NULL AS open, job.place, lease.worker, lease.id AS lease_id, lease.until AS lease_until,
       job.archived, job.next_retry_at, job.result_until, job.result, job.extra,
       coalesce(lease.newest, job.newest) AS newest, job.reply, job.spec,
       coalesce(lease.cancelling, false) AS cancelling, lease.progress, job.combo, job.id
FROM millrace.job
LEFT JOIN LATERAL (SELECT * FROM millrace.lease AS one WHERE one.seq = job.seq LIMIT 1) AS lease ON true
LEFT JOIN LATERAL (
    SELECT one.seq FROM millrace.ready AS one
    WHERE one.combo = job.combo AND one.available_at = job.available_at AND one.seq = job.seq LIMIT 1
) AS ready ON true;

-- Records by seq or id, locked until the end of the transaction. `mode`: 0 fails when somebody else holds one,
-- 1 waits for it, 2 leaves it out.
-- Whoever ends or takes over a run locks the job first; a plain claim locks only the row in `ready`, so that is locked
-- too.
CREATE FUNCTION millrace.take_jobs(wanted_seqs bigint[], wanted_ids text[], mode integer) RETURNS SETOF millrace.record
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    taken bigint[];
    free bigint[];
BEGIN
    IF cardinality(wanted_ids) > 0 THEN
        wanted_seqs := wanted_seqs || ARRAY(SELECT seq FROM millrace.job WHERE id = ANY (wanted_ids));
    END IF;
    IF mode = 0 THEN
        taken := ARRAY(SELECT seq FROM millrace.job WHERE seq = ANY (wanted_seqs) ORDER BY seq FOR UPDATE NOWAIT);
        PERFORM 1 FROM millrace.job AS j CROSS JOIN LATERAL (
            SELECT 1 FROM millrace.ready AS r
            WHERE r.combo = j.combo AND r.available_at = j.available_at AND r.seq = j.seq FOR UPDATE NOWAIT
        ) AS its WHERE j.seq = ANY (taken);
    ELSIF mode = 1 THEN
        taken := ARRAY(SELECT seq FROM millrace.job WHERE seq = ANY (wanted_seqs) ORDER BY seq FOR UPDATE);
        PERFORM 1 FROM (
            SELECT combo, available_at, seq FROM millrace.job WHERE seq = ANY (taken) ORDER BY seq
        ) AS j CROSS JOIN LATERAL (
            SELECT 1 FROM millrace.ready AS r
            WHERE r.combo = j.combo AND r.available_at = j.available_at AND r.seq = j.seq FOR UPDATE
        ) AS its;
    ELSE
        taken := ARRAY(SELECT seq FROM millrace.job WHERE seq = ANY (wanted_seqs) ORDER BY seq FOR UPDATE SKIP LOCKED);
        free := ARRAY(SELECT its.seq FROM millrace.job AS j CROSS JOIN LATERAL (
                          SELECT r.seq FROM millrace.ready AS r
                          WHERE r.combo = j.combo AND r.available_at = j.available_at AND r.seq = j.seq
                          FOR UPDATE SKIP LOCKED
                      ) AS its WHERE j.seq = ANY (taken));
        -- Somebody is claiming those that are left: their rows in `ready` are there still, and not ours.
        taken := ARRAY(SELECT seq FROM millrace.record AS one WHERE seq = ANY (taken)
                       AND (NOT one.open OR seq = ANY (free)));
    END IF;
    RETURN QUERY SELECT * FROM millrace.record WHERE seq = ANY (taken);
END $$;

-- Plain jobs under ids that nobody has seen, each open at once. An array with one element is for all of them. Answers
-- their seqs, which may be `drawn` before; none when a queue is not plain. MR001, or an id that is taken (23505): it goes the long way.
-- Streams from arrays into tables, without a CTE between them, and without ON CONFLICT, which writes to each row twice.
CREATE FUNCTION millrace.enqueue_plain(given bigint, ids text[], specs bytea[], combos integer[], queues integer[],
                                       delays bigint[], expires bigint[], leases bigint[], keeps bigint[],
                                       replies text[], drawn bigint[])
RETURNS bigint[] LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = '10s' AS $$
DECLARE
    size integer := cardinality(ids);
    many_combos integer[] := CASE WHEN cardinality(combos) > 1 THEN combos END;
    many_queues integer[] := CASE WHEN cardinality(queues) > 1 THEN queues END;
    many_leases bigint[] := CASE WHEN cardinality(leases) > 1 THEN leases END;
    many_keeps bigint[] := CASE WHEN cardinality(keeps) > 1 THEN keeps END;
    many_replies text[] := CASE WHEN cardinality(replies) > 1 THEN replies END;
    one_keep bigint := CASE WHEN many_keeps IS NULL THEN keeps[1] END;
    one_reply text := CASE WHEN many_replies IS NULL THEN replies[1] END;
    used integer[] := queues;
    one integer;
    taken text;  -- an assignment costs less than PERFORM
    now bigint;
    batch bigint;
    seqs bigint[] := drawn;
    known boolean;
BEGIN
    taken := pg_advisory_xact_lock_shared(millrace.lock_number('gate'));
    IF many_queues IS NOT NULL THEN
        used := ARRAY(SELECT DISTINCT q FROM unnest(many_queues) AS q ORDER BY q);
    END IF;
    FOREACH one IN ARRAY used LOOP
        taken := pg_advisory_xact_lock_shared(millrace.lock_number('queue ' || one));
        IF NOT (SELECT plain_in FROM millrace.queue WHERE id = one) THEN
            RETURN NULL;
        END IF;
    END LOOP;
    now := millrace.clock(given);
    batch := nextval('millrace.event_id');
    IF drawn IS NULL THEN
        seqs := ARRAY(SELECT nextval('millrace.job_seq') FROM generate_series(1, size));
    END IF;
    INSERT INTO millrace.job (seq, id, combo, queue, enqueued_at, available_at, expires_at, expiring, newest, lease,
                              keep_result, plain, reply, spec)
    SELECT i.seq, i.id, coalesce(i.combo, combos[1]), coalesce(i.queue, queues[1]), now, now + coalesce(i.delay, 0),
           now + i.expire, now + i.expire, batch, coalesce(i.lease, leases[1]), coalesce(i.keep, one_keep),
           coalesce(i.keep, one_keep) IS DISTINCT FROM 0, coalesce(i.reply, one_reply), i.spec
    FROM (SELECT unnest(seqs) AS seq, unnest(ids) AS id, unnest(specs) AS spec, unnest(many_combos) AS combo,
                 unnest(many_queues) AS queue, unnest(delays) AS delay, unnest(expires) AS expire,
                 unnest(many_leases) AS lease, unnest(many_keeps) AS keep, unnest(many_replies) AS reply) AS i;
    WITH opened AS (
        INSERT INTO millrace.ready (combo, available_at, seq, special)
        SELECT coalesce(i.combo, combos[1]), now + coalesce(i.delay, 0), i.seq, i.expire IS NOT NULL
        FROM (SELECT unnest(seqs) AS seq, unnest(many_combos) AS combo, unnest(delays) AS delay,
                     unnest(expires) AS expire) AS i
    ), told AS (
        INSERT INTO millrace.event (id, at, seqs, before, combos, generations, ns, attempts, failures, kinds, states,
                                    ids, delays)
        VALUES (batch, now, seqs, '{0}', combos, '{1}', '{1}', '{0}', '{0}', '{0}', '{0}', ids, delays)
    ), sent AS (
        INSERT INTO millrace.outbox (event, size, at) VALUES (batch, size, now)
    ), counted AS (
        INSERT INTO millrace.tally (queue, waiting, live) SELECT queues[1], size, size WHERE many_queues IS NULL
    )
    SELECT EXISTS (SELECT FROM millrace.past) AND EXISTS (SELECT FROM millrace.past AS p WHERE p.id = ANY (ids))
    INTO known;
    IF many_queues IS NOT NULL THEN
        INSERT INTO millrace.tally (queue, waiting, live)
        SELECT q, count(*), count(*) FROM unnest(many_queues) AS q GROUP BY q;
    END IF;
    IF known THEN
        RAISE EXCEPTION 'an id is known' USING ERRCODE = 'MR001';
    END IF;
    RETURN seqs;
END $$;

-- Due jobs in order, each under a new lease. One row with seq -1: it takes the long way.
-- `floor` is a place in one combination up to which all was taken a moment ago: as long as an old transaction keeps vacuum
-- from removing what was there, a claim would pass over it again and again. If there is too little above, all is looked at.
CREATE FUNCTION millrace.claim_plain(given bigint, queues text[], tasks text[], most integer, span bigint, worker text,
                                     claim text, floor_combo integer, floor_at bigint, floor_seq bigint)
RETURNS TABLE (seq bigint, generation integer, enqueued_at bigint, available_at bigint, expires_at bigint,
               attempt integer, failures integer, events integer, lease_id text, lease_until bigint, now bigint,
               extra bytea, spec bytea)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET lock_timeout = '10s' AS $$
#variable_conflict use_column
DECLARE
    at bigint;
    batch bigint;
    level record;
    one record;
    queue_ids integer[];
    left_over integer := most;
    places tid[] := '{}';
    seqs bigint[] := '{}';
    found_places tid[];
    found_seqs bigint[];
    found_special boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(millrace.lock_number('call ' || claim));
    PERFORM pg_advisory_xact_lock_shared(millrace.lock_number('gate'));
    queue_ids := ARRAY(SELECT q.id FROM millrace.queue AS q WHERE q.name = ANY (queues) ORDER BY q.id);
    FOR one IN SELECT unnest(queue_ids) AS id LOOP
        PERFORM pg_advisory_xact_lock_shared(millrace.lock_number('queue ' || one.id));
    END LOOP;
    at := millrace.clock(given);
    IF EXISTS (SELECT FROM millrace.queue AS q WHERE q.id = ANY (queue_ids) AND NOT q.plain_out)
       OR EXISTS (SELECT FROM millrace.task AS t WHERE tasks IS NULL OR t.name = ANY (tasks))
       OR (SELECT j.available_at FROM millrace.job AS j WHERE j.place = 3
           ORDER BY j.available_at, j.seq LIMIT 1) <= at  -- in this order, so that no other index will do
       OR (SELECT j.expiring FROM millrace.job AS j WHERE j.expiring IS NOT NULL
           ORDER BY j.expiring, j.seq LIMIT 1) <= at THEN
        RETURN QUERY SELECT -1::bigint, 0, 0::bigint, 0::bigint, 0::bigint, 0, 0, 0, '', 0::bigint, at, NULL::bytea,
                            NULL::bytea;
        RETURN;
    END IF;
    FOR level IN SELECT c.priority, array_agg(c.id) AS combos FROM millrace.combo AS c
                 WHERE c.queue = ANY (queue_ids) AND (tasks IS NULL OR c.task = ANY (tasks))
                 GROUP BY c.priority ORDER BY c.priority DESC LOOP
        EXIT WHEN left_over <= 0;
        found_seqs := NULL;
        IF level.combos = ARRAY[floor_combo] THEN
            SELECT array_agg(h.ctid), array_agg(h.seq), bool_or(h.special)
            INTO found_places, found_seqs, found_special
            FROM (SELECT r.ctid, r.seq, r.special FROM millrace.ready AS r
                  WHERE r.combo = floor_combo AND (r.available_at, r.seq) > (floor_at, floor_seq)
                    AND r.available_at <= at
                  ORDER BY r.available_at, r.seq LIMIT left_over FOR UPDATE SKIP LOCKED) AS h;
        END IF;
        IF cardinality(found_seqs) = left_over THEN
            NULL;
        ELSIF cardinality(level.combos) = 1 THEN
            SELECT array_agg(h.ctid), array_agg(h.seq), bool_or(h.special)
            INTO found_places, found_seqs, found_special
            FROM (SELECT r.ctid, r.seq, r.special FROM millrace.ready AS r
                  WHERE r.combo = level.combos[1] AND r.available_at <= at
                  ORDER BY r.available_at, r.seq LIMIT left_over FOR UPDATE SKIP LOCKED) AS h;
        ELSE
            SELECT array_agg(h.ctid), array_agg(h.seq), bool_or(h.special)
            INTO found_places, found_seqs, found_special
            FROM (SELECT r.ctid, r.seq, r.special
                  FROM (SELECT head.* FROM unnest(level.combos) AS c (id) CROSS JOIN LATERAL
                            (SELECT r.combo, r.available_at, r.seq FROM millrace.ready AS r
                             WHERE r.combo = c.id AND r.available_at <= at
                             ORDER BY r.available_at, r.seq LIMIT left_over) AS head
                        ORDER BY head.available_at, head.seq LIMIT left_over) AS head
                  CROSS JOIN LATERAL (SELECT one.ctid, one.* FROM millrace.ready AS one
                                      WHERE one.combo = head.combo AND one.available_at = head.available_at
                                        AND one.seq = head.seq FOR UPDATE SKIP LOCKED) AS r
                  ORDER BY r.available_at, r.seq) AS h;
            IF coalesce(cardinality(found_seqs), 0) < left_over THEN  -- others are at the same heads: look behind them
                SELECT array_agg(h.ctid), array_agg(h.seq), bool_or(h.special)
                INTO found_places, found_seqs, found_special
                FROM (SELECT head.* FROM unnest(level.combos) AS c (id) CROSS JOIN LATERAL
                          (SELECT r.ctid, r.seq, r.special, r.available_at FROM millrace.ready AS r
                           WHERE r.combo = c.id AND r.available_at <= at
                           ORDER BY r.available_at, r.seq LIMIT left_over FOR UPDATE SKIP LOCKED) AS head
                      ORDER BY head.available_at, head.seq LIMIT left_over) AS h;
            END IF;
        END IF;
        IF found_special THEN
            RETURN QUERY SELECT -1::bigint, 0, 0::bigint, 0::bigint, 0::bigint, 0, 0, 0, '', 0::bigint, at, NULL::bytea,
                            NULL::bytea;
            RETURN;
        END IF;
        IF found_seqs IS NOT NULL THEN
            places := places || found_places;
            seqs := seqs || found_seqs;
            left_over := left_over - cardinality(found_seqs);
        END IF;
    END LOOP;
    IF cardinality(seqs) = 0 THEN
        RETURN;
    END IF;
    batch := nextval('millrace.event_id');
    DELETE FROM millrace.ready AS r WHERE r.ctid = ANY (places);
    RETURN QUERY
    WITH item AS MATERIALIZED (
        SELECT j.seq, j.generation, j.enqueued_at, j.available_at, j.expires_at, j.attempt + 1 AS attempt, j.failures,
               j.events + 1 AS events, claim || '.' || j.seq AS lease_id, at + coalesce(span, j.lease) AS until,
               j.extra, j.spec, j.combo, j.queue, j.newest, j.id, j.lease, i.n
        FROM unnest(seqs) WITH ORDINALITY AS i (seq, n)
        CROSS JOIN LATERAL (SELECT * FROM millrace.job AS one WHERE one.seq = i.seq LIMIT 1) AS j
    ), leased AS (
        INSERT INTO millrace.lease (seq, id, worker, until, started_at, attempt, events, newest, span, combo)
        SELECT item.seq, item.lease_id, worker, item.until, at, item.attempt, item.events, batch, item.lease, item.combo
        FROM item
    ), told AS (
        INSERT INTO millrace.event (id, at, seqs, before, combos, generations, ns, attempts, failures, kinds, states,
                                    ids, workers, leases)
        SELECT batch, at, array_agg(item.seq), array_agg(item.newest),
               array_agg(item.combo), array_agg(item.generation),
               array_agg(item.events), array_agg(item.attempt),
               array_agg(item.failures), '{2}', '{1}', array_agg(item.id),
               ARRAY[worker], array_agg(item.lease_id)
        FROM item
    ), sent AS (
        INSERT INTO millrace.outbox (event, size, at) VALUES (batch, cardinality(seqs), at)
    ), counted AS (
        INSERT INTO millrace.tally (queue, waiting, running, taken)
        SELECT item.queue, -count(*), count(*), count(*) FROM item GROUP BY item.queue
    )
    SELECT item.seq, item.generation, item.enqueued_at, item.available_at, item.expires_at, item.attempt, item.failures,
           item.events, item.lease_id, item.until, at, item.extra, item.spec
    FROM item ORDER BY item.n;
END $$;

-- Completions of plain jobs. Answers which of them, counted from 1, were under the lease that held the job, and the
-- channels of those who wait for these ends, with the word for each. No row: it takes the long way. MR001: it does, after
-- all. Leases are looked up one by one and deleted by their place: joined, all that runs may be read for each of them.
CREATE FUNCTION millrace.complete_plain(given bigint, seqs bigint[], leases text[], results bytea[], durations bigint[])
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
    ), told AS (
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

-- The plain ways with word to those who wait elsewhere, in the same round trip. The word is a transaction of its own
-- behind the commit, and waits for no disk: inside of one, it would make all commits of the database take turns.
CREATE PROCEDURE millrace.enqueue_and_tell(
    INOUT seqs bigint[], given bigint, ids text[], specs bytea[], combos integer[], queues integer[], delays bigint[],
    expires bigint[], leases bigint[], keeps bigint[], replies text[], drawn bigint[], channel text, word text
) LANGUAGE plpgsql AS $$
DECLARE
    told text;
BEGIN
    seqs := millrace.enqueue_plain(given, ids, specs, combos, queues, delays, expires, leases, keeps, replies,
                                   drawn);
    COMMIT;
    IF seqs IS NOT NULL THEN
        told := pg_notify(channel, word);
    END IF;
END $$;

-- Whoever waits for one of these ends, and is not `mine`, hears of it. A word is for one job: with its result, if there is
-- room for that.
CREATE PROCEDURE millrace.complete_and_tell(
    INOUT held bigint[], INOUT replies text[], given bigint, seqs bigint[], leases text[], results bytea[],
    durations bigint[], mine text
) LANGUAGE plpgsql AS $$
DECLARE
    words text[];
    n integer;
    told text;
BEGIN
    SELECT c.held, c.replies, c.words INTO held, replies, words
    FROM millrace.complete_plain(given, seqs, leases, results, durations) AS c;
    COMMIT;
    IF words IS NOT NULL THEN
        FOR n IN 1 .. cardinality(replies) LOOP
            IF replies[n] <> mine THEN
                told := pg_notify(replies[n], words[n]);
            END IF;
        END LOOP;
    END IF;
END $$;

-- Lengthen leases. Answers, for each, 0: it is no longer the job's; 1: it is; 2: it is, and the job is to be cancelled.
CREATE FUNCTION millrace.extend_leases(given bigint, seqs bigint[], ids text[], spans bigint[], news bytea[])
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

-- Give the events that have none yet their numbers in the feed, in the order in which they were written. Answers how
-- many rows of them there were: as many as asked for, and there may be more.
CREATE FUNCTION millrace.number_events(most integer) RETURNS integer LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    so_far bigint;
    new record;
BEGIN
    IF NOT EXISTS (SELECT FROM millrace.outbox) THEN
        RETURN 0;
    END IF;
    SELECT numbered INTO so_far FROM millrace.store FOR UPDATE;
    WITH taken AS (
        DELETE FROM millrace.outbox WHERE place IN (SELECT place FROM millrace.outbox ORDER BY place LIMIT most)
        RETURNING place, event, size, at
    ), numbered AS (
        INSERT INTO millrace.feed (last, event, size, at)
        SELECT so_far + sum(size) OVER (ORDER BY place), event, size, at FROM taken ORDER BY place
        RETURNING last
    )
    SELECT max(last) AS last, count(*) AS count INTO new FROM numbered;
    IF new.last IS NOT NULL THEN
        UPDATE millrace.store SET numbered = new.last;
    END IF;
    RETURN new.count;
END $$;

-- Jobs that upkeep has to look at: 1 ended ones by (finished_at, seq), 2 expired results by (result_until, seq).
-- What the agenda says is a hint: it counts only where the job says the same. Rows without such a job go.
CREATE FUNCTION millrace.on_agenda(wanted smallint, of_queue integer, before bigint, most integer)
RETURNS TABLE (at bigint, seq bigint) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    row record;
    valid bigint[];
    found_at bigint[] := '{}';
    found_seq bigint[] := '{}';
BEGIN
    FOR row IN SELECT a.id, a.at, a.seqs FROM millrace.agenda AS a
               WHERE a.kind = wanted AND a.queue = of_queue AND a.at <= before ORDER BY a.at, a.id LOOP
        EXIT WHEN cardinality(found_seq) >= most AND row.at > found_at[cardinality(found_at)];
        valid := ARRAY(SELECT j.seq FROM millrace.job AS j WHERE j.seq = ANY (row.seqs)
                       AND CASE wanted WHEN 1 THEN j.finished_at = row.at AND j.state IN (2, 4)
                                       ELSE j.result_until = row.at END);
        IF cardinality(valid) = 0 THEN
            DELETE FROM millrace.agenda AS a WHERE a.id = row.id;
        ELSE
            found_seq := found_seq || valid;
            found_at := found_at || array_fill(row.at, ARRAY[cardinality(valid)]);
        END IF;
    END LOOP;
    RETURN QUERY SELECT DISTINCT f.at, f.seq FROM unnest(found_at, found_seq) AS f (at, seq) ORDER BY 1, 2 LIMIT most;
END $$;

-- Add the tally to the counters of the queues.
CREATE FUNCTION millrace.fold_tally() RETURNS void LANGUAGE sql VOLATILE AS $$
    WITH gone AS (DELETE FROM millrace.tally RETURNING *), total AS (
        SELECT queue, sum(waiting) AS waiting, sum(running) AS running, sum(completed) AS completed, sum(dead) AS dead,
               sum(cancelled) AS cancelled, sum(blocked) AS blocked, sum(archived) AS archived,
               sum(archived_dead) AS archived_dead, sum(live) AS live, sum(processed) AS processed, sum(died) AS died,
               sum(taken) AS taken
        FROM gone GROUP BY queue
    )
    UPDATE millrace.queue AS q
    SET waiting = q.waiting + t.waiting, running = q.running + t.running, completed = q.completed + t.completed,
        dead = q.dead + t.dead, cancelled = q.cancelled + t.cancelled, blocked = q.blocked + t.blocked,
        archived = q.archived + t.archived, archived_dead = q.archived_dead + t.archived_dead, live = q.live + t.live,
        processed = q.processed + t.processed, died = q.died + t.died, taken = q.taken + t.taken
    FROM total AS t WHERE q.id = t.queue
$$;

-- A queue's settings and counters as they are now.
CREATE VIEW millrace.counted AS
SELECT q.id, q.name, q.settings, q.exact, q.bucket, q.next_lane,
       (q.waiting + coalesce(sum(t.waiting), 0))::bigint AS waiting,
       (q.running + coalesce(sum(t.running), 0))::bigint AS running,
       (q.completed + coalesce(sum(t.completed), 0))::bigint AS completed,
       (q.dead + coalesce(sum(t.dead), 0))::bigint AS dead,
       (q.cancelled + coalesce(sum(t.cancelled), 0))::bigint AS cancelled,
       (q.blocked + coalesce(sum(t.blocked), 0))::bigint AS blocked,
       (q.archived + coalesce(sum(t.archived), 0))::bigint AS archived,
       (q.archived_dead + coalesce(sum(t.archived_dead), 0))::bigint AS archived_dead,
       (q.live + coalesce(sum(t.live), 0))::bigint AS live,
       (q.processed + coalesce(sum(t.processed), 0))::bigint AS processed,
       (q.died + coalesce(sum(t.died), 0))::bigint AS died,
       (q.taken + coalesce(sum(t.taken), 0))::bigint AS taken
FROM millrace.queue AS q LEFT JOIN millrace.tally AS t ON t.queue = q.id
GROUP BY q.id;

-- A queue as it is now, under its lock: for oneself where a setting decides by numbers or with `alone`, shared otherwise.
-- `lacking`: somebody else has it; 1: it is wanted shared, 2: for oneself. No row: there is no such queue.
-- With its combinations of task and priority.
CREATE FUNCTION millrace.take_queue(wanted text, alone boolean, OUT lacking integer, OUT mine boolean,
                                    OUT facts millrace.counted, OUT ids integer[], OUT tasks text[],
                                    OUT priorities integer[])
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_id integer;
BEGIN
    SELECT q.id, q.exact OR alone INTO found_id, mine FROM millrace.queue AS q WHERE q.name = wanted;
    IF found_id IS NULL THEN
        RETURN;
    END IF;
    lacking := 0;
    IF NOT mine THEN
        IF NOT pg_try_advisory_xact_lock_shared(millrace.lock_number('queue ' || found_id)) THEN
            lacking := 1;
        ELSE
            mine := (SELECT q.exact FROM millrace.queue AS q WHERE q.id = found_id);  -- now that nobody changes it
        END IF;
    END IF;
    IF mine AND NOT pg_try_advisory_xact_lock(millrace.lock_number('queue ' || found_id)) THEN
        lacking := 2;
    END IF;
    SELECT c.* INTO facts FROM millrace.counted AS c WHERE c.id = found_id;
    SELECT array_agg(c.id), array_agg(c.task), array_agg(c.priority) INTO ids, tasks, priorities
    FROM millrace.combo AS c WHERE c.queue = found_id;
    RETURN NEXT;
END $$;

-- The first seq that was enqueued at an instant or after it, as far as seqs were enqueued in order: by halves.
CREATE FUNCTION millrace.seq_at(instant bigint) RETURNS bigint LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    low bigint;
    high bigint;
    middle record;
BEGIN
    SELECT min(seq), max(seq) + 1 INTO low, high FROM millrace.job;
    IF low IS NULL THEN
        RETURN 1;
    END IF;
    WHILE low < high LOOP
        SELECT seq, enqueued_at INTO middle FROM millrace.job WHERE seq >= (low + high) / 2 ORDER BY seq LIMIT 1;
        IF middle.enqueued_at < instant THEN
            low := middle.seq + 1;
        ELSE
            high := (low + high) / 2;
        END IF;
    END LOOP;
    RETURN low;
END $$;

-- When a claim may find something; not plain: limits have a say, which are not looked at here.
CREATE FUNCTION millrace.next_due(given bigint, queues text[], tasks text[])
RETURNS TABLE (plain boolean, due bigint, now bigint) LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT NOT EXISTS (SELECT FROM millrace.queue AS q WHERE q.name = ANY (queues) AND NOT q.plain_out)
           AND NOT EXISTS (SELECT FROM millrace.task AS t WHERE tasks IS NULL OR t.name = ANY (tasks)),
           least(
               (SELECT min(first.available_at)
                FROM millrace.queue AS q JOIN millrace.combo AS c ON c.queue = q.id
                CROSS JOIN LATERAL (SELECT r.available_at FROM millrace.ready AS r WHERE r.combo = c.id
                                    ORDER BY r.available_at, r.seq LIMIT 1) AS first
                WHERE q.name = ANY (queues) AND (tasks IS NULL OR c.task = ANY (tasks))),
               (SELECT min(first.available_at)
                FROM millrace.queue AS q
                CROSS JOIN LATERAL (SELECT j.available_at FROM millrace.job AS j WHERE j.queue = q.id AND j.place = 3
                                    ORDER BY j.available_at LIMIT 1) AS first
                WHERE q.name = ANY (queues))
           ),
           millrace.clock(given);
END $$;

-- How many jobs run before one, counted up to a limit; none when it does not wait.
CREATE FUNCTION millrace.position_of(given bigint, wanted text, most integer) RETURNS integer LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    job record;
    starts bigint;
    before bigint;
BEGIN
    SELECT j.seq, j.queue, j.line, j.rank, j.available_at, c.priority INTO job
    FROM (SELECT * FROM millrace.job AS one WHERE one.id = wanted LIMIT 1) AS j
    JOIN millrace.combo AS c ON c.id = j.combo
    WHERE j.state = 0 AND (SELECT l.seq FROM millrace.lease AS l WHERE l.seq = j.seq) IS NULL;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF job.line IS NULL THEN
        starts := greatest(millrace.clock(given), job.available_at);  -- what is due only after that is not ahead
        SELECT sum(ahead.count) INTO before
        FROM millrace.combo AS c CROSS JOIN LATERAL (
            SELECT count(*) AS count
            FROM (SELECT FROM millrace.ready AS r
                  WHERE r.combo = c.id AND (r.available_at, r.seq)
                        < (CASE WHEN c.priority > job.priority THEN starts + 1 ELSE job.available_at END,
                           CASE WHEN c.priority > job.priority THEN 0 ELSE job.seq END)
                  LIMIT most) AS r
        ) AS ahead
        WHERE c.queue = job.queue AND c.priority >= job.priority;
    ELSE
        SELECT count(*) INTO before
        FROM (SELECT m.rank, m.seq FROM millrace.job AS m
              WHERE m.queue = job.queue AND m.line = job.line AND m.place = 1 ORDER BY m.rank, m.seq LIMIT most) AS ahead
        WHERE (ahead.rank, ahead.seq) < (job.rank, job.seq);
        before := before + (SELECT count(*) FROM millrace.line AS l
                          WHERE l.queue = job.queue AND l.name = job.line AND l.holder <> job.seq);
    END IF;
    RETURN least(most, before);
END $$;

-- What waits in a queue for its time, what does so after a failure, and when the first open job is due.
CREATE FUNCTION millrace.words(of_queue integer, at bigint, OUT later bigint, OUT retrying bigint, OUT first bigint)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    SELECT coalesce(sum(r.later), 0), min(r.first) INTO later, first
    FROM millrace.combo AS c CROSS JOIN LATERAL (
        SELECT (SELECT count(*) FROM millrace.ready AS r WHERE r.combo = c.id AND r.available_at > at) AS later,
               (SELECT r.available_at FROM millrace.ready AS r WHERE r.combo = c.id
                ORDER BY r.available_at, r.seq LIMIT 1) AS first
    ) AS r
    WHERE c.queue = of_queue;
    later := later + (SELECT count(*) FROM millrace.job AS j
                      WHERE j.queue = of_queue AND j.place IS NOT NULL AND j.available_at > at
                        AND (SELECT r.seq FROM millrace.ready AS r WHERE r.combo = j.combo
                             AND r.available_at = j.available_at AND r.seq = j.seq) IS NULL);
    retrying := (SELECT count(*) FROM millrace.job AS j
                 WHERE j.queue = of_queue AND j.retry_at IS NOT NULL AND j.retry_at > at);
END $$;

-- A page of the feed after a number, or from its start, with the bounds of the feed in each row. What is committed now has
-- its number before that; `more`: there was too much of it for one go.
CREATE FUNCTION millrace.feed_page(after bigint, most bigint, at_once integer)
RETURNS TABLE (more boolean, trimmed bigint, numbered bigint, last bigint, size integer, at bigint, seqs bigint[],
               before bigint[], combos integer[], generations integer[], ns integer[], attempts integer[],
               failures integer[], kinds smallint[], states smallint[], ids text[], workers text[], leases text[],
               delays bigint[], durations bigint[], reasons text[], errors bytea)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    new integer := millrace.number_events(at_once);
    bounds record;
    start bigint;
    until bigint;
BEGIN
    SELECT s.trimmed, s.numbered INTO bounds FROM millrace.store AS s;
    start := coalesce(after, bounds.trimmed);
    until := coalesce((SELECT f.last FROM millrace.feed AS f WHERE f.last >= start + most ORDER BY f.last LIMIT 1),
                      start + most);
    RETURN QUERY
    SELECT new = at_once, bounds.trimmed, bounds.numbered, f.last, f.size, e.at, e.seqs, e.before, e.combos, e.generations,
           e.ns, e.attempts, e.failures, e.kinds, e.states, e.ids, e.workers, e.leases, e.delays, e.durations, e.reasons,
           e.errors
    FROM millrace.feed AS f
    CROSS JOIN LATERAL (SELECT * FROM millrace.event AS one WHERE one.id = f.event LIMIT 1) AS e
    WHERE f.last > start AND f.last <= until ORDER BY f.last;
    IF NOT FOUND THEN
        RETURN QUERY
        SELECT new = at_once, bounds.trimmed, bounds.numbered, NULL::bigint, NULL::integer, NULL::bigint, NULL::bigint[],
               NULL::bigint[], NULL::integer[], NULL::integer[], NULL::integer[], NULL::integer[], NULL::integer[],
               NULL::smallint[], NULL::smallint[], NULL::text[], NULL::text[], NULL::text[], NULL::bigint[],
               NULL::bigint[], NULL::text[], NULL::bytea;
    END IF;
END $$;
