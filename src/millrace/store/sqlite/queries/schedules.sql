-- schedules.sql: the schedules that apps have declared or stored.

-- name: schedules_named
-- Schedules for a JSON list of names.
SELECT name, record FROM millrace_schedule WHERE name IN (SELECT value FROM json_each(:names));

-- name: schedules
SELECT record FROM millrace_schedule WHERE name > :after ORDER BY name LIMIT :limit;

-- name: due_schedules
SELECT record FROM millrace_schedule WHERE due_at <= :until ORDER BY due_at, name
LIMIT :limit OFFSET :skip;

-- name: next_schedule
SELECT min(due_at) FROM millrace_schedule WHERE due_at > :after;

-- name: put_schedules
INSERT OR REPLACE INTO millrace_schedule (name, record, due_at)
VALUES (?, ?, ?);

-- name: drop_schedules
-- For a JSON list of names.
DELETE FROM millrace_schedule WHERE name IN (SELECT value FROM json_each(:names));
