-- search.sql: upkeep, counts and searches. A walk reads seqs in order, forwards or backwards, between two bounds.

-- name: finished
-- Completed and cancelled jobs of a queue that ended before an instant. Repeats is_kept_for_children of domain/job.py: the
-- literal is the field has_dependents in `extra`, when it is true.
SELECT seq
FROM millrace_job
WHERE queue = :queue AND finished_at IS NOT NULL AND state <> 3 AND finished_at <= :before
    AND (result_until IS NULL OR extra IS NULL OR instr(extra, x'ae6861735f646570656e64656e7473c3') = 0)
ORDER BY finished_at, seq
LIMIT :limit;

-- name: dead
SELECT seq FROM millrace_job
WHERE queue = :queue AND state = 3 AND finished_at <= :before ORDER BY finished_at, seq LIMIT :limit;

-- name: dead_shown
-- The oldest dead jobs that are not archived.
SELECT seq FROM millrace_job WHERE queue = :queue AND state = 3 AND archived = 0 ORDER BY finished_at, seq LIMIT :limit;

-- name: due_retries
SELECT seq
FROM millrace_job
WHERE next_retry_at IS NOT NULL AND next_retry_at <= :now
ORDER BY next_retry_at, seq
LIMIT :limit;

-- name: expired_results
SELECT seq
FROM millrace_job
WHERE result_until IS NOT NULL AND result_until <= :now
ORDER BY result_until, seq
LIMIT :limit;

-- name: ready_later
-- How many open jobs of one combination are not due yet.
SELECT (SELECT count(*) FROM millrace_job WHERE combo = :combo AND open = 1 AND available_at > :now)
     + CASE WHEN :now < (SELECT available_at FROM millrace_job
                         WHERE seq = (SELECT max(seq) FROM millrace_job WHERE combo = :combo AND open = 2 AND state = 0))
            THEN (SELECT count(*) FROM millrace_job
                  WHERE combo = :combo AND open = 2 AND state = 0 AND available_at > :now)
            ELSE 0 END;

-- name: aside_later
-- How many members of a queue's lines are neither open nor due yet.
SELECT count(*) FROM millrace_job WHERE queue = :queue AND place IS NOT NULL AND open = 0 AND available_at > :now;

-- name: retrying_later
SELECT count(*)
FROM millrace_job
WHERE queue = :queue AND state = 0 AND failures > 0 AND blocked = 0 AND available_at > :now;

-- name: seq_bounds
SELECT (SELECT min(seq) FROM millrace_job), (SELECT max(seq) FROM millrace_job);

-- name: walk_all
SELECT seq FROM millrace_job WHERE seq > :after AND seq < :before ORDER BY seq LIMIT :limit;

-- name: walk_all_back
SELECT seq FROM millrace_job WHERE seq > :after AND seq < :before ORDER BY seq DESC LIMIT :limit;

-- name: walk_waiting
-- Waiting jobs of one combination with one value of `open`.
SELECT seq
FROM millrace_job
WHERE combo = :combo AND open = :open AND state = 0 AND seq > :after AND seq < :before
ORDER BY seq
LIMIT :limit;

-- name: walk_waiting_back
SELECT seq
FROM millrace_job
WHERE combo = :combo AND open = :open AND state = 0 AND seq > :after AND seq < :before
ORDER BY seq DESC
LIMIT :limit;

-- name: walk_running
-- Running jobs of a JSON list of combinations, found among all running jobs.
SELECT seq
FROM millrace_job
WHERE lease_until IS NOT NULL AND combo IN (SELECT value FROM json_each(:combos)) AND seq > :after AND seq < :before
ORDER BY seq
LIMIT :limit;

-- name: walk_running_back
SELECT seq
FROM millrace_job
WHERE lease_until IS NOT NULL AND combo IN (SELECT value FROM json_each(:combos)) AND seq > :after AND seq < :before
ORDER BY seq DESC
LIMIT :limit;

-- name: walk_ended
-- Jobs of one combination that ended in one state.
SELECT seq
FROM millrace_job
WHERE combo = :combo AND finished_at IS NOT NULL AND state = :state AND seq > :after AND seq < :before
ORDER BY seq
LIMIT :limit;

-- name: walk_ended_back
SELECT seq
FROM millrace_job
WHERE combo = :combo AND finished_at IS NOT NULL AND state = :state AND seq > :after AND seq < :before
ORDER BY seq DESC
LIMIT :limit;

-- name: walk_group
SELECT seq FROM millrace_job WHERE grp = :text AND seq > :after AND seq < :before ORDER BY seq LIMIT :limit;

-- name: walk_group_back
SELECT seq FROM millrace_job WHERE grp = :text AND seq > :after AND seq < :before ORDER BY seq DESC LIMIT :limit;

-- name: walk_key
SELECT seq FROM millrace_job WHERE key = :text AND seq > :after AND seq < :before ORDER BY seq LIMIT :limit;

-- name: walk_key_back
SELECT seq FROM millrace_job WHERE key = :text AND seq > :after AND seq < :before ORDER BY seq DESC LIMIT :limit;

-- name: running_seqs
-- All running jobs: one row per lease.
SELECT seq FROM millrace_job WHERE lease_until IS NOT NULL;

-- name: all_combos
-- The combinations of a queue, of a task, of both, or all of them.
SELECT combo.id
FROM millrace_combo AS combo JOIN millrace_queue AS queue ON queue.id = combo.queue
WHERE (:queue IS NULL OR queue.name = :queue) AND (:task IS NULL OR combo.task = :task);

-- name: span_bounds
-- The blocks of seqs that may hold jobs enqueued in [from, to).
SELECT min(block), max(block) FROM millrace_span WHERE high >= :from AND low < :to;
