-- lines.sql: lines, keys and dependencies.

-- name: lines
-- Lines for a JSON list of [queue, name].
SELECT line.queue, name, holder, open, waiting, live, processed, died
FROM json_each(:places) AS place
CROSS JOIN millrace_line AS line ON line.queue = place.value ->> 0 AND line.name = place.value ->> 1;

-- name: put_lines
INSERT OR REPLACE INTO millrace_line (queue, name, holder, open, waiting, live, processed, died)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: drop_lines
DELETE FROM millrace_line
WHERE (queue, name) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:places));

-- name: members
-- Waiting members of a line, by (priority desc, seq).
SELECT seq, rank FROM millrace_job WHERE queue = :queue AND line = :line AND place = 1 ORDER BY rank, seq LIMIT :limit;

-- name: first_members
-- The first waiting member of each line, for a JSON list of [queue, name, …]. The last column says that there may be
-- more.
SELECT queue, line, rank, seq, 0
FROM json_each(:places) AS wanted
CROSS JOIN millrace_job AS job ON job.seq = (
    SELECT seq FROM millrace_job
    WHERE queue = wanted.value ->> 0 AND line = wanted.value ->> 1 AND place = 1 ORDER BY rank, seq LIMIT 1
);

-- name: members_before
-- How many members are ahead of one, counted up to a limit.
SELECT count(*)
FROM (SELECT rank, seq FROM millrace_job
      WHERE queue = :queue AND line = :line AND place = 1 ORDER BY rank, seq LIMIT :most)
WHERE (rank, seq) < (:rank, :seq);

-- name: ready_before
-- How many open jobs of one combination come before an instant and seq, counted up to a limit.
SELECT count(*)
FROM (SELECT * FROM (SELECT 1 FROM millrace_job
                     WHERE combo = :combo AND open = 1 AND available_at <= :at AND (available_at < :at OR seq < :seq)
                     LIMIT :most)
      UNION ALL
      SELECT 1 FROM (SELECT available_at, seq FROM millrace_job
                     WHERE combo = :combo AND open = 2 AND state = 0 ORDER BY seq LIMIT :most)
      WHERE (available_at, seq) < (:at, :seq)
      LIMIT :most);

-- name: ready_by
-- How many open jobs of one combination are due by an instant, counted up to a limit.
SELECT count(*)
FROM (SELECT * FROM (SELECT 1 FROM millrace_job WHERE combo = :combo AND open = 1 AND available_at <= :at LIMIT :most)
      UNION ALL
      SELECT 1 FROM (SELECT available_at FROM millrace_job
                     WHERE combo = :combo AND open = 2 AND state = 0 ORDER BY seq LIMIT :most)
      WHERE available_at <= :at
      LIMIT :most);

-- name: holds
-- For a JSON list of [queue, key].
SELECT hold.queue, hold.key, owner, seq, scope, until
FROM json_each(:keys) AS wanted
CROSS JOIN millrace_hold AS hold ON hold.queue = wanted.value ->> 0 AND hold.key = wanted.value ->> 1;

-- name: put_holds
INSERT OR REPLACE INTO millrace_hold (queue, key, owner, seq, scope, until) VALUES (?, ?, ?, ?, ?, ?);

-- name: drop_holds
-- For a JSON list of [queue, key].
DELETE FROM millrace_hold WHERE (queue, key) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:keys));

-- name: lapsed_holds
SELECT queue, key, owner, seq, scope, until
FROM millrace_hold
WHERE until IS NOT NULL AND until <= :now
ORDER BY until
LIMIT :limit;

-- name: windows
SELECT queue, key, owner, seq, scope, until
FROM millrace_hold
WHERE until IS NOT NULL AND until >= :since
ORDER BY until, queue, key
LIMIT :skip, :limit;

-- name: any_dependency
SELECT EXISTS (SELECT 1 FROM millrace_dependency);

-- name: put_dependencies
INSERT OR IGNORE INTO millrace_dependency (parent, child) VALUES (?, ?);

-- name: drop_dependencies
-- For a JSON list of [parent, child].
DELETE FROM millrace_dependency WHERE (parent, child) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:pairs));

-- name: children
-- Jobs that wait for one of these ids, for a JSON list of ids.
SELECT dependency.parent, child
FROM json_each(:parents) AS wanted
CROSS JOIN millrace_dependency AS dependency ON dependency.parent = wanted.value;

-- name: parents
-- For a JSON list of seqs of children.
SELECT child, parent FROM millrace_dependency WHERE child IN (SELECT value FROM json_each(:children)) ORDER BY n;

-- name: put_dependents
INSERT OR IGNORE INTO millrace_dependent (parent, child) VALUES (?, ?);

-- name: drop_dependents
-- For a JSON list of [parent, child].
DELETE FROM millrace_dependent WHERE (parent, child) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:pairs));

-- name: dead_dependents
SELECT DISTINCT child
FROM json_each(:parents) AS wanted
CROSS JOIN millrace_dependent AS dependent ON dependent.parent = wanted.value
CROSS JOIN millrace_job AS job ON job.seq = child AND job.state = 3
ORDER BY child;

-- name: is_needed
SELECT EXISTS (
    SELECT 1 FROM millrace_dependent AS dependent
    CROSS JOIN millrace_job AS job ON job.seq = child AND job.finished_at IS NULL
    WHERE dependent.parent = :parent
);
