-- registry.sql: queues, tasks, workers, schedules, the store's own row, and locks.

-- name: take_locks
SELECT * FROM millrace.take_locks($1::text[], $2::boolean[], $3::boolean);

-- name: begin_step
SELECT now, event, tasks FROM millrace.begin_step($1::bigint, $2::boolean, $3::text[], $4::boolean[]);

-- name: close_gate
SELECT millrace.close_gate();

-- name: clock
SELECT millrace.clock($1::bigint);

-- name: next_seqs
SELECT nextval('millrace.job_seq') FROM generate_series(1, $1::integer);

-- name: store_settings
SELECT settings FROM millrace.store;

-- name: put_store_settings
UPDATE millrace.store SET settings = $1::bytea;

-- name: queue
SELECT * FROM millrace.counted WHERE name = $1::text;

-- name: take_queue
SELECT lacking, mine, ids, tasks, priorities, (facts).* FROM millrace.take_queue($1::text, $2::boolean);

-- name: all_queues
-- Each with what waits in it for its time.
SELECT counted.*, words.later, words.retrying, words.first
FROM millrace.counted CROSS JOIN LATERAL millrace.words(counted.id, $1::bigint) AS words ORDER BY name;

-- name: queue_names
SELECT name FROM millrace.queue;

-- name: make_queue
INSERT INTO millrace.queue (name) VALUES ($1::text) ON CONFLICT (name) DO NOTHING RETURNING id;

-- name: put_queue
UPDATE millrace.queue
SET settings = $2::bytea, exact = $3::boolean, plain_in = $4::boolean, plain_out = $5::boolean, plain_end = $6::boolean,
    bucket = $7::bytea, next_lane = $8::integer
WHERE id = $1::integer;

-- name: put_tally
INSERT INTO millrace.tally (queue, waiting, running, completed, dead, cancelled, blocked, archived, archived_dead, live,
                            processed, died, taken)
VALUES ($1::integer, $2::integer, $3::integer, $4::integer, $5::integer, $6::integer, $7::integer, $8::integer,
        $9::integer, $10::integer, $11::integer, $12::integer, $13::bigint);

-- name: add_counts
UPDATE millrace.queue
SET waiting = waiting + $2::integer, running = running + $3::integer, completed = completed + $4::integer,
    dead = dead + $5::integer, cancelled = cancelled + $6::integer, blocked = blocked + $7::integer,
    archived = archived + $8::integer, archived_dead = archived_dead + $9::integer, live = live + $10::integer,
    processed = processed + $11::integer, died = died + $12::integer, taken = taken + $13::bigint
WHERE id = $1::integer;

-- name: fold_tally
SELECT millrace.fold_tally();

-- name: combos
SELECT id, task, priority FROM millrace.combo WHERE queue = $1::integer;

-- name: make_combo
WITH made AS (
    INSERT INTO millrace.combo (queue, task, priority) VALUES ($1::integer, $2::text, $3::smallint)
    ON CONFLICT (queue, task, priority) DO NOTHING RETURNING id
)
SELECT id FROM made
UNION ALL
SELECT id FROM millrace.combo WHERE queue = $1::integer AND task = $2::text AND priority = $3::smallint LIMIT 1;

-- name: combos_of_queues
SELECT combo.id, queue.id, queue.name, combo.task, combo.priority
FROM millrace.combo JOIN millrace.queue ON queue.id = combo.queue WHERE queue.name = ANY ($1::text[]);

-- name: combo_names
SELECT combo.id, queue.name, combo.task, combo.priority
FROM millrace.combo JOIN millrace.queue ON queue.id = combo.queue;

-- name: task_names
SELECT name FROM millrace.task ORDER BY name;

-- name: task
SELECT facts FROM millrace.task WHERE name = $1::text;

-- name: put_task
INSERT INTO millrace.task (name, facts) VALUES ($1::text, $2::bytea) ON CONFLICT (name) DO UPDATE SET facts = $2::bytea;

-- name: running_of_task
SELECT count(*) FROM millrace.lease JOIN millrace.combo ON combo.id = lease.combo WHERE combo.task = $1::text;

-- name: worker
SELECT record FROM millrace.worker WHERE id = $1::text;

-- name: put_worker
INSERT INTO millrace.worker (id, record) VALUES ($1::text, $2::bytea) ON CONFLICT (id) DO UPDATE SET record = $2::bytea;

-- name: drop_worker
DELETE FROM millrace.worker WHERE id = $1::text;

-- name: workers
SELECT record FROM millrace.worker ORDER BY id;

-- name: count_workers
SELECT count(*) FROM millrace.worker;

-- name: schedule
SELECT record FROM millrace.schedule WHERE name = $1::text;

-- name: put_schedule
INSERT INTO millrace.schedule (name, record) VALUES ($1::text, $2::bytea)
ON CONFLICT (name) DO UPDATE SET record = $2::bytea;

-- name: drop_schedule
DELETE FROM millrace.schedule WHERE name = $1::text;

-- name: schedules
SELECT record FROM millrace.schedule ORDER BY name COLLATE "C";

-- name: identity
SELECT identity FROM millrace.store;

-- name: notify
SELECT pg_notify($1::text, $2::text);

-- name: server_facts
-- Settings that matter, and the oldest transaction of others.
SELECT current_setting('server_version_num') AS version, current_setting('fsync') AS fsync,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('full_page_writes') AS full_page_writes, current_setting('autovacuum') AS autovacuum,
       oldest.pid AS oldest_pid, oldest.application_name AS oldest_name, oldest.state AS oldest_state,
       (extract(epoch FROM clock_timestamp() - oldest.xact_start) * 1000)::bigint AS oldest_age
FROM (SELECT $1::text) AS schema LEFT JOIN LATERAL (
    SELECT pid, application_name, state, xact_start FROM pg_stat_activity
    WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
      AND datname = current_database()
    ORDER BY xact_start LIMIT 1
) AS oldest ON true;

-- name: table_facts
SELECT relname, n_live_tup, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = $1::text ORDER BY relname;
