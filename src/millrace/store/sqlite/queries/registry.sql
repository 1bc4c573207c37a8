-- registry.sql: queues, tasks, workers and the store's own row.

-- name: store_row
SELECT last_seq, last_event, trimmed, settings FROM store;

-- name: put_store_row
UPDATE store SET last_seq = :last_seq, last_event = :last_event, trimmed = :trimmed, settings = :settings;

-- name: queue
SELECT id, facts FROM queue WHERE name = :name;

-- name: queue_names
SELECT name FROM queue ORDER BY name;

-- name: insert_queue
INSERT INTO queue (name, facts) VALUES (:name, :facts) RETURNING id;

-- name: put_queue
UPDATE queue SET facts = :facts WHERE id = :id;

-- name: tasks
SELECT facts FROM task;

-- name: put_task
INSERT OR REPLACE INTO task (name, facts) VALUES (:name, :facts);

-- name: worker
SELECT record FROM worker WHERE id = :id;

-- name: workers
SELECT record FROM worker ORDER BY id;

-- name: put_worker
INSERT OR REPLACE INTO worker (id, record) VALUES (:id, :record);

-- name: drop_worker
DELETE FROM worker WHERE id = :id;
