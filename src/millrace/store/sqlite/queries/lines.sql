-- lines.sql: lines, keys and dependencies.

-- name: lines
-- Lines for a JSON list of [queue, name].
SELECT line.queue, name, holder, open, waiting, live, processed, died
FROM json_each(:places) AS place
CROSS JOIN millrace_line AS line ON line.queue = place.value ->> 0 AND line.name = place.value ->> 1;

-- name: put_line
INSERT OR REPLACE INTO millrace_line (queue, name, holder, open, waiting, live, processed, died)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: drop_lines
DELETE FROM millrace_line
WHERE (queue, name) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:places));

-- name: members
-- Waiting members of a line, first by (priority desc, seq).
SELECT rank, seq FROM millrace_job WHERE queue = :queue AND line = :line AND place = 1 ORDER BY rank, seq LIMIT :limit;

-- name: first_members
-- Of each of these lines, for a JSON list of [queue, name], the record of the first waiting member.
SELECT job.seq, generation, state, enqueued_at, available_at, expires_at, started_at, finished_at, attempt, failures,
       blocked, events, line, open, place, worker, lease_id, lease_until, archived, next_retry_at, result_until,
       result, extra, last_event, reply, spec
FROM json_each(:places) AS wanted
CROSS JOIN millrace_job AS job ON job.seq = (
    SELECT seq FROM millrace_job
    WHERE queue = wanted.value ->> 0 AND line = wanted.value ->> 1 AND place = 1 ORDER BY rank, seq LIMIT 1
)
CROSS JOIN millrace_body AS body ON body.seq = job.seq;

-- name: members_before
-- How many members are ahead of one, counted up to a limit.
SELECT count(*)
FROM (SELECT rank, seq FROM millrace_job
      WHERE queue = :queue AND line = :line AND place = 1 ORDER BY rank, seq LIMIT :most)
WHERE (rank, seq) < (:rank, :seq);

-- name: ready_before
-- How many open jobs of one combination come before an instant and seq, counted up to a limit.
SELECT count(*)
FROM (SELECT 1 FROM millrace_job
      WHERE combo = :combo AND open = 1 AND available_at <= :at AND (available_at < :at OR seq < :seq) LIMIT :most);

-- name: ready_by
-- How many open jobs of one combination are due by an instant, counted up to a limit.
SELECT count(*) FROM (SELECT 1 FROM millrace_job WHERE combo = :combo AND open = 1 AND available_at <= :at LIMIT :most);

-- name: hold
SELECT queue, key, owner, seq, scope, until FROM millrace_hold WHERE queue = :queue AND key = :key;

-- name: put_hold
INSERT OR REPLACE INTO millrace_hold (queue, key, owner, seq, scope, until) VALUES (?, ?, ?, ?, ?, ?);

-- name: drop_hold
DELETE FROM millrace_hold WHERE queue = :queue AND key = :key;

-- name: lapsed_holds
SELECT queue, key, owner, seq, scope, until
FROM millrace_hold
WHERE until IS NOT NULL AND until <= :now
ORDER BY until
LIMIT :limit;

-- name: any_dependency
SELECT EXISTS (SELECT 1 FROM millrace_dependency);

-- name: put_dependency
INSERT OR IGNORE INTO millrace_dependency (parent, child) VALUES (?, ?);

-- name: drop_dependency
DELETE FROM millrace_dependency WHERE parent = :parent AND child = :child;

-- name: children
-- Who waits for these ids, for a JSON list of them.
SELECT dependency.parent, child
FROM json_each(:parents) AS wanted
CROSS JOIN millrace_dependency AS dependency ON dependency.parent = wanted.value;

-- name: parents
SELECT parent FROM millrace_dependency WHERE child = :child ORDER BY n;
