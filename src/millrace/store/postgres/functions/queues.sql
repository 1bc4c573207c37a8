-- queues.sql: counts of a queue, and the position of a job. Rules for all functions: see steps.sql.

-- How many jobs of a queue are not due yet, how many of these after a failure, and when the first open job is due.
CREATE OR REPLACE FUNCTION millrace.words(of_queue integer, at bigint, OUT later bigint, OUT retrying bigint, OUT first bigint)
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
    later := later + (SELECT count(*) FROM millrace.member AS m
                      CROSS JOIN LATERAL (SELECT one.combo FROM millrace.job AS one WHERE one.seq = m.seq LIMIT 1) AS j
                      WHERE m.queue + 0 = of_queue AND m.due > at
                        AND (SELECT r.seq FROM millrace.ready AS r WHERE r.combo = j.combo
                             AND r.available_at = m.due AND r.seq = m.seq) IS NULL);
    retrying := (SELECT count(*) FROM millrace.job AS j
                 WHERE j.queue = of_queue AND j.retry_at IS NOT NULL AND j.retry_at > at);
END $$;

-- How many jobs run before one, counted up to a limit; NULL if the job is not waiting.
CREATE OR REPLACE FUNCTION millrace.position_of(given bigint, wanted text, most integer) RETURNS integer LANGUAGE plpgsql STABLE
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
        starts := greatest(millrace.clock(given), job.available_at);  -- a job that is due later is not ahead
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
        FROM (SELECT m.rank, m.seq FROM millrace.member AS m
              WHERE m.queue = job.queue AND m.line = job.line ORDER BY m.rank, m.seq LIMIT most) AS ahead
        WHERE (ahead.rank, ahead.seq) < (job.rank, job.seq);
        before := before + (SELECT count(*) FROM millrace.line AS l
                          WHERE l.queue = job.queue AND l.name = job.line AND l.holder <> job.seq);
    END IF;
    RETURN least(most, before);
END $$;

-- The first seq that was enqueued at or after an instant, by binary search, as far as seqs were enqueued in order.
CREATE OR REPLACE FUNCTION millrace.seq_at(instant bigint) RETURNS bigint LANGUAGE plpgsql STABLE
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
