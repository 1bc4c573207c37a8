-- jobs.sql: loading job records, and writing back what a step changed.
-- A row of question marks after VALUES is repeated for as many rows as one call writes: each statement may have to wait
-- for Python's GIL, so few large statements are faster than many small ones.

-- name: jobs_by_seq
-- Records for a JSON list of seqs.
SELECT job.seq, generation, state, enqueued_at, available_at, expires_at, started_at, finished_at, attempt, failures,
       blocked, events, line, open, place, worker, lease_id, lease_until, archived, next_retry_at, result_until,
       result, extra, last_event, reply,
       coalesce(spec, (SELECT body.spec FROM millrace_body AS body WHERE seq = job.seq)) AS spec
FROM json_each(:seqs) AS wanted
CROSS JOIN millrace_job AS job ON job.seq = wanted.value;

-- name: jobs_by_id
-- Records for a JSON list of ids.
SELECT job.seq, generation, state, enqueued_at, available_at, expires_at, started_at, finished_at, attempt, failures,
       blocked, events, line, open, place, worker, lease_id, lease_until, archived, next_retry_at, result_until,
       result, extra, last_event, reply,
       coalesce(spec, (SELECT body.spec FROM millrace_body AS body WHERE seq = job.seq)) AS spec
FROM json_each(:ids) AS wanted
CROSS JOIN millrace_job AS job ON job.id = wanted.value;

-- name: seq_of
-- Most ids that are looked up alone are new. sqlite3 takes longer to name the columns of a record than to find no row.
SELECT seq FROM millrace_job WHERE id = :id;

-- name: insert_simple
-- New open jobs without a line.
INSERT INTO millrace_job (seq, id, combo, queue, generation, enqueued_at, available_at, last_event, open, spec)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_marked
-- New jobs with a line, parents, a key, a reply address or an expiry. If a job was changed since it was added, for
-- example buried, update_all writes its other columns.
INSERT INTO millrace_job (seq, id, combo, queue, generation, enqueued_at, available_at, last_event, open, blocked,
                          place, line, rank, grp, key, reply, expires_at, spec)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_body
-- Specs that are too long for the job's row.
INSERT INTO millrace_body (seq, spec) VALUES (?, ?);

-- name: update_running
-- A run began, or its lease was extended or reclaimed; nothing else about the job changed.
WITH new (attempt, events, last_event, started_at, worker, lease_id, lease_until, seq) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
)
UPDATE millrace_job AS job
SET state       = 1,
    open        = 0,
    place       = NULL,
    attempt     = new.attempt,
    events      = new.events,
    last_event  = new.last_event,
    started_at  = new.started_at,
    worker      = new.worker,
    lease_id    = new.lease_id,
    lease_until = new.lease_until
FROM new
WHERE job.seq = new.seq;

-- name: update_ended
-- A job finished; nothing else about it changed.
WITH new (state, attempt, events, last_event, started_at, finished_at, result_until, result, seq) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
)
UPDATE millrace_job AS job
SET state        = new.state,
    open         = 0,
    place        = NULL,
    attempt      = new.attempt,
    events       = new.events,
    last_event   = new.last_event,
    started_at   = new.started_at,
    finished_at  = new.finished_at,
    worker       = NULL,
    lease_id     = NULL,
    lease_until  = NULL,
    result_until = new.result_until,
    result       = new.result
FROM new
WHERE job.seq = new.seq;

-- name: update_all
-- Any other change.
WITH new (state, open, place, available_at, attempt, failures, blocked, events, last_event, started_at, finished_at,
          worker, lease_id, lease_until, expires_at, archived, next_retry_at, result_until, result, extra, line, rank,
          seq) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
)
UPDATE millrace_job AS job
SET state         = new.state,
    open          = new.open,
    place         = new.place,
    available_at  = new.available_at,
    attempt       = new.attempt,
    failures      = new.failures,
    blocked       = new.blocked,
    events        = new.events,
    last_event    = new.last_event,
    started_at    = new.started_at,
    finished_at   = new.finished_at,
    worker        = new.worker,
    lease_id      = new.lease_id,
    lease_until   = new.lease_until,
    expires_at    = new.expires_at,
    archived      = new.archived,
    next_retry_at = new.next_retry_at,
    result_until  = new.result_until,
    result        = new.result,
    extra         = new.extra,
    line          = new.line,
    rank          = new.rank
FROM new
WHERE job.seq = new.seq;

-- name: update_open
-- A member of a line was elected, or another member replaced it; nothing else about it changed.
WITH new (open, seq) AS (
    VALUES (?, ?)
)
UPDATE millrace_job AS job
SET open = new.open
FROM new
WHERE job.seq = new.seq;

-- name: delete_jobs
DELETE FROM millrace_job WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: delete_bodies
DELETE FROM millrace_body WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: widen_span
-- Extend the period of a block of seqs.
INSERT INTO millrace_span (block, low, high) VALUES (:block, :low, :high)
ON CONFLICT (block) DO UPDATE SET low = min(low, excluded.low), high = max(high, excluded.high);
