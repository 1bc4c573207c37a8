-- claim.sql: queries of a claim, a wait and the reaper. Each reads an index in order.

-- name: in_order
-- Due jobs of one combination that are in order, by (available_at, seq), which is by seq.
WITH wanted (combo, now) AS (VALUES (:combo, :now))
SELECT available_at, seq
FROM (SELECT available_at, seq
      FROM millrace_job
      WHERE combo = (SELECT combo FROM wanted) AND open = 2 AND state = 0
      ORDER BY seq
      LIMIT :limit OFFSET :offset)
WHERE available_at <= (SELECT now FROM wanted);

-- name: ready
-- Other open, due jobs of one combination, by (available_at, seq).
SELECT available_at, seq
FROM millrace_job
WHERE combo = :combo AND open = 1 AND available_at <= :now
ORDER BY available_at, seq
LIMIT :limit OFFSET :offset;

-- name: ready_jobs
-- Records for a JSON list of seqs from the ready index: waiting jobs, so the columns of a run or an end are not read.
SELECT job.seq, generation, enqueued_at, available_at, expires_at, started_at, attempt, failures, events, line, place,
       extra, last_event, reply,
       coalesce(spec, (SELECT body.spec FROM millrace_body AS body WHERE seq = job.seq)) AS spec
FROM json_each(:seqs) AS wanted
CROSS JOIN millrace_job AS job ON job.seq = wanted.value;

-- name: first_ready
-- When the first open job of one combination is due.
SELECT min(available_at)
FROM (SELECT min(available_at) AS available_at FROM millrace_job WHERE combo = :combo AND open = 1
      UNION ALL
      SELECT available_at
      FROM millrace_job
      WHERE seq = (SELECT min(seq) FROM millrace_job WHERE combo = :combo AND open = 2 AND state = 0));

-- name: first_outside
-- When the first job of a queue that waits outside its line is due.
SELECT min(available_at) FROM millrace_job WHERE queue = :queue AND place = 3;

-- name: entering
-- Group members outside their line that are due.
SELECT seq FROM millrace_job WHERE place = 3 AND available_at <= :now ORDER BY available_at, seq LIMIT :limit;

-- name: expiring
SELECT seq
FROM millrace_job
WHERE state = 0 AND expires_at IS NOT NULL AND expires_at <= :now
ORDER BY expires_at, seq
LIMIT :limit;

-- name: lapsed
-- Running jobs whose lease has expired; the caller skips those that it may not take.
SELECT seq, combo, lease_id
FROM millrace_job
WHERE lease_until IS NOT NULL AND lease_until < :now
ORDER BY lease_until, seq
LIMIT :limit OFFSET :offset;

-- name: combos
-- The (task, priority) pairs ever used in a queue.
SELECT id, task, priority FROM millrace_combo WHERE queue = :queue;

-- name: insert_combo
INSERT INTO millrace_combo (queue, task, priority) VALUES (:queue, :task, :priority) RETURNING id;

-- name: running_of_task
SELECT count(*)
FROM millrace_job
WHERE lease_until IS NOT NULL AND combo IN (SELECT id FROM millrace_combo WHERE task = :task);
