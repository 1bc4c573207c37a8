-- claim.sql: queries of a claim, a wait and the reaper, and the fast path of an enqueue, a claim and a completion.

-- name: enqueue_plain
SELECT millrace.enqueue_plain($1::bigint, $2::text[], $3::bytea[], $4::integer[], $5::integer[],
                              $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::text[], $11::text[],
                              $12::smallint[], $13::text[], $14::text[], $15::bigint[], $16::integer[],
                              $17::text[], $18::integer[], $19::bigint[], $20::boolean);

-- name: enqueue_one
SELECT millrace.enqueue_one($1::bigint, $2::text, $3::bytea, $4::integer, $5::integer, $6::bigint, $7::bigint,
                            $8::bigint, $9::bigint, $10::text);

-- name: draw_seqs
SELECT millrace.clock($1::bigint), ARRAY(SELECT nextval('millrace.job_seq') FROM generate_series(1, $2::integer));

-- name: enqueue_and_tell
CALL millrace.enqueue_and_tell(NULL, $1::bigint, $2::text[], $3::bytea[], $4::integer[], $5::integer[], $6::bigint[],
                               $7::bigint[], $8::bigint[], $9::bigint[], $10::text[], $11::text[],
                               $12::smallint[], $13::text[], $14::text[], $15::bigint[], $16::integer[],
                               $17::text[], $18::integer[], $19::bigint[], $20::boolean, $21::text, $22::text);

-- name: enqueue_one_and_tell
CALL millrace.enqueue_one_and_tell(NULL, $1::bigint, $2::text, $3::bytea, $4::integer, $5::integer, $6::bigint,
                                   $7::bigint, $8::bigint, $9::bigint, $10::text, $11::text, $12::text);

-- name: claim_plain
SELECT * FROM millrace.claim_plain($1::bigint, $2::text[], $3::text[], $4::integer, $5::bigint, $6::text, $7::text,
                                   $8::integer, $9::bigint, $10::bigint);

-- name: complete_and_tell
CALL millrace.complete_and_tell(NULL, NULL, NULL, NULL, NULL, $1::bigint, $2::bigint[], $3::text[], $4::bytea[],
                                $5::bigint[], $6::bigint, $7::bytea, $8::text);

-- name: complete_plain
SELECT held, replies, queues, tasks, counts
FROM millrace.complete_plain($1::bigint, $2::bigint[], $3::text[], $4::bytea[], $5::bigint[], $6::bigint, $7::bytea);

-- name: extend_leases
SELECT millrace.extend_leases($1::bigint, $2::bigint[], $3::text[], $4::bigint[], $5::bytea[]);

-- name: ready
-- Open, due jobs of one combination, by (available_at, seq), that no other transaction has locked.
SELECT available_at, seq
FROM millrace.ready
WHERE combo = $1::integer AND available_at <= $2::bigint
ORDER BY available_at, seq
LIMIT $3::integer
FOR UPDATE SKIP LOCKED;

-- name: next_due
SELECT plain, due, now FROM millrace.next_due($1::bigint, $2::text[], $3::text[]);

-- name: first_ready
-- When the first open job of each of these combinations is due.
SELECT min(first.available_at)
FROM unnest($1::integer[]) AS c (id)
CROSS JOIN LATERAL (SELECT available_at FROM millrace.ready WHERE combo = c.id ORDER BY available_at, seq LIMIT 1) AS first;

-- name: first_outside
-- When the first job of a queue that waits outside its line is due.
SELECT min(available_at) FROM millrace.job WHERE queue = $1::integer AND place = 3;

-- name: entering
-- Group members outside their line that are due.
SELECT seq FROM millrace.job WHERE place = 3 AND available_at <= $1::bigint ORDER BY available_at, seq LIMIT $2::integer;

-- name: expiring
SELECT seq FROM millrace.job WHERE expiring IS NOT NULL AND expiring <= $1::bigint
ORDER BY expiring, seq LIMIT $2::integer;

-- name: lapsed
-- Expired leases: reads the whole table, which has one row per running job.
SELECT lease.seq
FROM millrace.lease JOIN millrace.combo ON combo.id = lease.combo JOIN millrace.queue ON queue.id = combo.queue
WHERE lease.until < $1::bigint AND ($2::text[] IS NULL OR queue.name = ANY ($2::text[]))
  AND ($3::text[] IS NULL OR combo.task = ANY ($3::text[])) AND NOT lease.id = ANY ($4::text[])
ORDER BY lease.until, lease.seq
LIMIT $5::integer;

-- name: overdue
-- Whether a reclaim would find anything. Every worker asks every few seconds, and usually there is nothing.
WITH at AS MATERIALIZED (SELECT millrace.clock($1::bigint) AS now)
SELECT EXISTS (SELECT FROM millrace.lease, at WHERE lease.until < at.now)
    OR EXISTS (SELECT FROM millrace.job, at WHERE job.place = 3 AND job.available_at <= at.now);

-- name: held_by_claim
-- The jobs of a claim whose reply was lost.
SELECT record.* FROM millrace.lease JOIN millrace.record ON record.seq = lease.seq
WHERE starts_with(lease.id, $1::text) ORDER BY lease.seq;

-- name: ready_before
-- How many open jobs of one combination come before an instant and seq, counted up to a limit.
SELECT count(*)
FROM (SELECT FROM millrace.ready
      WHERE combo = $1::integer AND (available_at, seq) < ($2::bigint, $3::bigint) LIMIT $4::integer) AS ahead;

-- name: ready_by
-- How many open jobs of one combination are due by an instant, counted up to a limit.
SELECT count(*)
FROM (SELECT FROM millrace.ready WHERE combo = $1::integer AND available_at <= $2::bigint LIMIT $3::integer) AS ahead;
