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

-- name: close_store
SELECT millrace.close_store($1::text, $2::text);

-- name: open_store
SELECT millrace.open_store();

-- name: allow_import
SELECT millrace.allow_import();

-- name: queues
SELECT * FROM millrace.counted WHERE name = ANY ($1::text[]);

-- name: take_queues
SELECT taken.lacking, taken.mine, taken.ids, taken.tasks, taken.priorities, (taken.facts).*
FROM unnest($1::text[], $2::boolean[]) AS i (name, alone) CROSS JOIN LATERAL millrace.take_queue(i.name, i.alone) AS taken;

-- name: all_queues
-- All queues, each with the number of jobs that are not due yet.
SELECT counted.*, words.later, words.retrying, words.first
FROM millrace.counted CROSS JOIN LATERAL millrace.words(counted.id, $1::bigint) AS words ORDER BY name;

-- name: queue_names
SELECT name FROM millrace.queue;

-- name: make_queue
INSERT INTO millrace.queue (name) VALUES ($1::text) ON CONFLICT (name) DO NOTHING RETURNING id;

-- name: put_queues
-- Settings, and what to add to the counters.
UPDATE millrace.queue AS q
SET waiting = q.waiting + i.waiting, running = q.running + i.running, completed = q.completed + i.completed,
    dead = q.dead + i.dead, cancelled = q.cancelled + i.cancelled, blocked = q.blocked + i.blocked,
    archived = q.archived + i.archived, archived_dead = q.archived_dead + i.archived_dead, live = q.live + i.live,
    processed = q.processed + i.processed, died = q.died + i.died, taken = q.taken + i.taken,
    settings = i.settings, exact = i.exact, plain_in = i.plain_in, plain_out = i.plain_out, plain_end = i.plain_end,
    bounded_out = i.bounded_out, max_running = i.max_running, rate = i.rate, capacity = i.capacity, fair = i.fair,
    tokens = i.tokens, tokens_at = i.tokens_at, next_lane = i.next_lane, rearm = i.rearm
FROM unnest($1::integer[], $2::integer[], $3::integer[], $4::integer[], $5::integer[], $6::integer[], $7::integer[],
            $8::integer[], $9::integer[], $10::integer[], $11::integer[], $12::integer[], $13::bigint[], $14::bytea[],
            $15::boolean[], $16::boolean[], $17::boolean[], $18::boolean[], $19::boolean[], $20::bigint[],
            $21::double precision[], $22::double precision[], $23::boolean[], $24::double precision[], $25::bigint[],
            $26::integer[], $27::boolean[])
     AS i (id, waiting, running, completed, dead, cancelled, blocked, archived, archived_dead, live, processed, died,
           taken, settings, exact, plain_in, plain_out, plain_end, bounded_out, max_running, rate, capacity, fair,
           tokens, tokens_at, next_lane, rearm)
WHERE q.id = i.id;

-- name: put_tally
INSERT INTO millrace.tally (queue, waiting, running, completed, dead, cancelled, blocked, archived, archived_dead, live,
                            processed, died, taken)
SELECT * FROM unnest($1::integer[], $2::integer[], $3::integer[], $4::integer[], $5::integer[], $6::integer[],
                     $7::integer[], $8::integer[], $9::integer[], $10::integer[], $11::integer[], $12::integer[],
                     $13::bigint[]);

-- name: add_counts
UPDATE millrace.queue AS q
SET waiting = q.waiting + i.waiting, running = q.running + i.running, completed = q.completed + i.completed,
    dead = q.dead + i.dead, cancelled = q.cancelled + i.cancelled, blocked = q.blocked + i.blocked,
    archived = q.archived + i.archived, archived_dead = q.archived_dead + i.archived_dead, live = q.live + i.live,
    processed = q.processed + i.processed, died = q.died + i.died, taken = q.taken + i.taken
FROM unnest($1::integer[], $2::integer[], $3::integer[], $4::integer[], $5::integer[], $6::integer[], $7::integer[],
            $8::integer[], $9::integer[], $10::integer[], $11::integer[], $12::integer[], $13::bigint[])
     AS i (id, waiting, running, completed, dead, cancelled, blocked, archived, archived_dead, live, processed, died, taken)
WHERE q.id = i.id;

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

-- name: tasks
SELECT name, facts FROM millrace.task WHERE name = ANY ($1::text[]);

-- name: put_tasks
INSERT INTO millrace.task (name, facts) SELECT * FROM unnest($1::text[], $2::bytea[])
ON CONFLICT (name) DO UPDATE SET facts = excluded.facts;

-- name: running_of_task
SELECT count(*) FROM millrace.lease JOIN millrace.combo ON combo.id = lease.combo WHERE combo.task = $1::text;

-- name: worker
SELECT record FROM millrace.worker WHERE id = $1::text;

-- name: put_worker
INSERT INTO millrace.worker (id, record, queues, until) VALUES ($1::text, $2::bytea, $3::text[], $4::bigint)
ON CONFLICT (id) DO UPDATE SET record = $2::bytea, queues = $3::text[], until = $4::bigint;

-- name: drop_worker
DELETE FROM millrace.worker WHERE id = $1::text;

-- name: workers
SELECT record FROM millrace.worker ORDER BY id;

-- name: count_workers
-- Live workers by the queue they serve; NULL: all of them.
SELECT s.queue, count(DISTINCT w.id)::integer FROM millrace.worker AS w
CROSS JOIN LATERAL (SELECT unnest(w.queues) UNION ALL SELECT NULL) AS s (queue)
WHERE w.until >= millrace.clock($1::bigint) GROUP BY s.queue;

-- name: schedules_named
SELECT name, record FROM millrace.schedule WHERE name = ANY ($1::text[]);

-- name: schedules
SELECT record FROM millrace.schedule WHERE name > $1::text COLLATE "C" ORDER BY name LIMIT $2::integer;

-- name: due_schedules
SELECT record FROM millrace.schedule WHERE due_at <= $1::bigint ORDER BY due_at, name
LIMIT $2::integer OFFSET $3::integer;

-- name: next_schedule
SELECT min(due_at) FROM millrace.schedule WHERE due_at > $1::bigint;

-- name: put_schedules
INSERT INTO millrace.schedule (name, record, due_at)
SELECT * FROM unnest($1::text[], $2::bytea[], $3::bigint[])
ON CONFLICT (name) DO UPDATE SET record = excluded.record, due_at = excluded.due_at;

-- name: drop_schedules
DELETE FROM millrace.schedule WHERE name = ANY ($1::text[]);

-- name: identity
SELECT identity FROM millrace.store;

-- name: notify
SELECT pg_notify($1::text, $2::text);

-- name: server_facts
-- The server settings that matter, and the oldest open transaction.
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
