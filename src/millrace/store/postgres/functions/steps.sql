-- steps.sql: a step of the ledger: the time, its locks, and the jobs and queues that it takes.
-- Rules for all functions: each call is one round trip. In PL/pgSQL, each statement sees what was committed before it
-- began, so rows that are locked first are read in their current state. Sequential and bitmap scans are off: a cached
-- plan that was made for a small table must still work for a large one that was never analyzed. A plain job or queue is
-- one on the fast path (store/postgres/fast_path.py).

CREATE OR REPLACE FUNCTION millrace.clock(given bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(given, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$$;

-- The key of an advisory lock that is held until the end of the transaction.
CREATE OR REPLACE FUNCTION millrace.lock_number(name text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended('millrace.' || name, 0)
$$;

-- Wait until no other step is running. A step that waits here blocks all later steps as well, so it waits only for a
-- short time: steps are short, but a transaction of a caller may be long.
CREATE OR REPLACE FUNCTION millrace.close_gate() RETURNS boolean LANGUAGE plpgsql VOLATILE SET lock_timeout = '150ms' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(millrace.lock_number('gate'));
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Take locks by name, each exclusive or shared, in the order of their names, as all functions do; returns those that another transaction holds. `patient`: wait for each.
CREATE OR REPLACE FUNCTION millrace.take_locks(names text[], shared boolean[], patient boolean) RETURNS SETOF text
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    wanted record;
BEGIN
    FOR wanted IN SELECT name, bool_and(is_shared) AS is_shared FROM unnest(names, shared) AS w (name, is_shared)
                  GROUP BY name ORDER BY name COLLATE "C" LOOP
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

-- Begin a step: pass the gate, which a step closes if it must not miss a concurrent one (`alone`: this step has closed
-- it), and take the planned locks. Returns the time, the id of its row of events, and the tasks with limits. That list
-- cannot change during the step: a task gets its first limit only while no other step is running.
CREATE OR REPLACE FUNCTION millrace.begin_step(given bigint, alone boolean, names text[], shared boolean[],
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

-- The current record of a job: with its lease, and whether it is open. These are looked up for each job: if a table was
-- empty when it was last analyzed, the planner would scan all of it for a join.
CREATE OR REPLACE VIEW millrace.record AS
SELECT job.seq, job.generation, job.state, job.enqueued_at, job.available_at, job.expires_at,
       coalesce(lease.started_at, job.started_at) AS started_at, job.finished_at,
       coalesce(lease.attempt, job.attempt) AS attempt, job.failures, job.blocked,
       coalesce(lease.events, job.events) AS events, job.line,
       ready.seq IS NOT NULL AS open,
       CASE WHEN member.seq IS NULL THEN job.place ELSE 1 END::smallint AS place,  -- 1: it waits in its line
       lease.worker, lease.id AS lease_id, lease.until AS lease_until,
       job.archived, job.next_retry_at, job.result_until, job.result, job.extra,
       coalesce(lease.newest, job.newest) AS newest, job.reply, job.spec,
       coalesce(lease.cancelling, false) AS cancelling, lease.progress, job.combo, job.id
FROM millrace.job
LEFT JOIN LATERAL (SELECT * FROM millrace.lease AS one WHERE one.seq = job.seq LIMIT 1) AS lease ON true
LEFT JOIN LATERAL (
    SELECT one.seq FROM millrace.ready AS one
    WHERE one.combo = job.combo AND one.available_at = job.available_at AND one.seq = job.seq LIMIT 1
) AS ready ON true
LEFT JOIN LATERAL (
    SELECT one.seq FROM millrace.member AS one
    WHERE one.queue = job.queue AND one.line = job.line AND one.rank = job.rank AND one.seq = job.seq LIMIT 1
) AS member ON true;

-- Records by seq or id, locked until the end of the transaction. If another transaction holds one, `mode` 0 fails,
-- 1 waits, 2 skips it.
-- A transaction that ends or takes over a run locks the job first. A plain claim locks only the row in `ready`, so that
-- is locked as well.
CREATE OR REPLACE FUNCTION millrace.take_jobs(wanted_seqs bigint[], wanted_ids text[], mode integer) RETURNS SETOF millrace.record
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
        -- Another transaction is claiming the others: their rows in `ready` exist, but could not be locked.
        taken := ARRAY(SELECT seq FROM millrace.record AS one WHERE seq = ANY (taken)
                       AND (NOT one.open OR seq = ANY (free)));
    END IF;
    RETURN QUERY SELECT * FROM millrace.record WHERE seq = ANY (taken);
END $$;

-- The current settings and counters of a queue.
CREATE OR REPLACE VIEW millrace.counted AS
SELECT q.id, q.name, q.settings, q.exact, q.tokens, q.tokens_at, q.next_lane, q.rearm,
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

-- The current state of a queue and its combinations, under its lock: exclusive if a setting depends on exact counts or
-- with `alone`, otherwise shared. `lacking`: another transaction holds the lock; 1: needed shared, 2: needed exclusive.
-- No row: the queue does not exist.
CREATE OR REPLACE FUNCTION millrace.take_queue(wanted text, alone boolean, OUT lacking integer, OUT mine boolean,
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
            mine := (SELECT q.exact FROM millrace.queue AS q WHERE q.id = found_id);  -- now that no other transaction can change it
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
