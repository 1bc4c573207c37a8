-- registry.sql: queues, tasks, workers and the store's own row.

-- name: store_row
-- The store's row, and the counters in the newest page of the feed.
SELECT max(store.last_seq, coalesce(page.last_seq, 0)), max(last_event, coalesce(page.last, 0)), trimmed,
       max(store.last_due, coalesce(page.last_due, 0)), settings, counters
FROM millrace_store AS store
LEFT JOIN millrace_event AS page ON page.last = (SELECT max(last) FROM millrace_event);

-- name: put_store_row
UPDATE millrace_store
SET last_seq = :last_seq, last_event = :last_event, trimmed = :trimmed, last_due = :last_due, settings = :settings;

-- name: queue
SELECT id, facts FROM millrace_queue WHERE name = :name;

-- name: queue_name
SELECT name FROM millrace_queue WHERE id = :id;

-- name: queue_names
SELECT name FROM millrace_queue ORDER BY name;

-- name: insert_queue
INSERT INTO millrace_queue (name, facts) VALUES (:name, :facts) RETURNING id;

-- name: put_queue
UPDATE millrace_queue SET facts = :facts WHERE id = :id;

-- name: tasks
SELECT facts FROM millrace_task;

-- name: put_task
INSERT OR REPLACE INTO millrace_task (name, facts) VALUES (:name, :facts);

-- name: worker
SELECT record FROM millrace_worker WHERE id = :id;

-- name: workers
SELECT record FROM millrace_worker ORDER BY id;

-- name: put_worker
INSERT OR REPLACE INTO millrace_worker (id, record) VALUES (:id, :record);

-- name: drop_worker
DELETE FROM millrace_worker WHERE id = :id;

-- name: data_version
-- Changes when another connection has written.
PRAGMA data_version;
