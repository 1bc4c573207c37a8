-- Version 3: schedules that any scheduler can run.

ALTER TABLE millrace.schedule ALTER name TYPE text COLLATE "C";
ALTER TABLE millrace.schedule ADD due_at bigint;  -- when any scheduler looks at it; NULL: only those of its app's code
CREATE INDEX schedule_due ON millrace.schedule (due_at, name) WHERE due_at IS NOT NULL;
