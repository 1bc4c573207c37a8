-- Steps inside a transaction of the caller's.

-- name: lock_store
-- Take the write lock now, before anything is read: what a step reads must not be older than what it writes.
UPDATE millrace_store SET one = 1 WHERE one = 1;

-- name: newest_event
SELECT last_event FROM millrace_store;
