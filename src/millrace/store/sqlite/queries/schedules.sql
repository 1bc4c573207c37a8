-- schedules.sql: the schedules that apps have declared.

-- name: schedule
SELECT record FROM millrace_schedule WHERE name = :name;

-- name: schedules
SELECT record FROM millrace_schedule ORDER BY name;

-- name: put_schedule
INSERT OR REPLACE INTO millrace_schedule (name, record) VALUES (:name, :record);

-- name: drop_schedule
DELETE FROM millrace_schedule WHERE name = :name;
