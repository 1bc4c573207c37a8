-- within.sql: steps inside a transaction of the caller.

-- name: lock_store
-- Take the write lock before anything is read, so that the step does not decide from stale rows.
UPDATE millrace_store SET one = 1 WHERE one = 1;

-- name: newest_event
SELECT max(last_event, (SELECT coalesce(max(last), 0) FROM millrace_event)) FROM millrace_store;
