-- search.sql: upkeep, counts and searches. A walk reads seqs in order, forwards or backwards, between two bounds.

-- name: finished
-- Completed and cancelled jobs of a queue that ended before an instant.
SELECT seq FROM millrace.on_agenda(1::smallint, $1::integer, $2::bigint, $3::integer);

-- name: expired_results
SELECT seq FROM millrace.on_agenda(2::smallint, 0, $1::bigint, $2::integer);

-- name: dead
SELECT seq FROM millrace.job
WHERE queue = $1::integer AND dead_at IS NOT NULL AND dead_at <= $2::bigint ORDER BY dead_at, seq LIMIT $3::integer;

-- name: dead_shown
-- The oldest dead jobs that are not archived.
SELECT seq FROM millrace.job
WHERE queue = $1::integer AND dead_at IS NOT NULL AND NOT archived ORDER BY dead_at, seq LIMIT $2::integer;

-- name: due_retries
SELECT seq FROM millrace.job
WHERE next_retry_at IS NOT NULL AND next_retry_at <= $1::bigint ORDER BY next_retry_at, seq LIMIT $2::integer;

-- name: words
SELECT later, retrying, first FROM millrace.words($1::integer, $2::bigint);

-- name: position_of
SELECT millrace.position_of($1::bigint, $2::text, $3::integer);

-- name: seq_bounds
SELECT min(seq), max(seq) FROM millrace.job;

-- name: seq_at
SELECT millrace.seq_at($1::bigint);

-- name: running_seqs
SELECT seq FROM millrace.lease;

-- name: all_combos
-- The combinations of a queue, of a task, of both, or all of them.
SELECT combo.id
FROM millrace.combo JOIN millrace.queue ON queue.id = combo.queue
WHERE ($1::text IS NULL OR queue.name = $1::text) AND ($2::text IS NULL OR combo.task = $2::text);

-- name: walk_all
SELECT seq FROM millrace.job WHERE seq > $1::bigint AND seq < $2::bigint
ORDER BY seq LIMIT $3::integer;

-- name: walk_all_back
SELECT seq FROM millrace.job WHERE seq > $1::bigint AND seq < $2::bigint
ORDER BY seq DESC LIMIT $3::integer;

-- name: walk_combo
SELECT seq FROM millrace.job WHERE combo = $1::integer AND seq > $2::bigint AND seq < $3::bigint
ORDER BY seq LIMIT $4::integer;

-- name: walk_combo_back
SELECT seq FROM millrace.job WHERE combo = $1::integer AND seq > $2::bigint AND seq < $3::bigint
ORDER BY seq DESC LIMIT $4::integer;

-- name: walk_dead
SELECT seq FROM millrace.job WHERE combo = $1::integer AND dead_at IS NOT NULL AND seq > $2::bigint AND seq < $3::bigint
ORDER BY seq LIMIT $4::integer;

-- name: walk_dead_back
SELECT seq FROM millrace.job WHERE combo = $1::integer AND dead_at IS NOT NULL AND seq > $2::bigint AND seq < $3::bigint
ORDER BY seq DESC LIMIT $4::integer;

-- name: walk_group
SELECT seq FROM millrace.job WHERE grp = $1::text AND seq > $2::bigint AND seq < $3::bigint
ORDER BY seq LIMIT $4::integer;

-- name: walk_group_back
SELECT seq FROM millrace.job WHERE grp = $1::text AND seq > $2::bigint AND seq < $3::bigint
ORDER BY seq DESC LIMIT $4::integer;

-- name: walk_key
SELECT seq FROM millrace.job WHERE key = $1::text AND seq > $2::bigint AND seq < $3::bigint
ORDER BY seq LIMIT $4::integer;

-- name: walk_key_back
SELECT seq FROM millrace.job WHERE key = $1::text AND seq > $2::bigint AND seq < $3::bigint
ORDER BY seq DESC LIMIT $4::integer;
