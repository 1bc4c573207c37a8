-- jobs.sql: loading job records, and writing back what a step changed.

-- name: take_jobs
SELECT * FROM millrace.take_jobs($1::bigint[], $2::text[], $3::integer);

-- name: look_at_seqs
SELECT * FROM millrace.record WHERE seq = ANY ($1::bigint[]);

-- name: insert_jobs
-- In a column that is never NULL, an array with one element holds the value of all jobs.
INSERT INTO millrace.job (seq, state, place, available_at, attempt, failures, blocked, events, newest, started_at,
                          finished_at, expires_at, expiring, retry_at, dead_at, archived, next_retry_at, result_until,
                          result, extra, line, rank, id, combo, queue, generation, enqueued_at, grp, key, reply, lease,
                          keep_result, plain, spec)
SELECT seq, coalesce(state, ($2::smallint[])[1]), place, coalesce(available_at, ($4::bigint[])[1]),
       coalesce(attempt, ($5::integer[])[1]), coalesce(failures, ($6::integer[])[1]),
       coalesce(blocked, ($7::integer[])[1]), coalesce(events, ($8::integer[])[1]), coalesce(newest, ($9::bigint[])[1]),
       started_at, finished_at, expires_at, expiring, retry_at, dead_at, coalesce(archived, ($16::boolean[])[1]),
       next_retry_at, result_until, result, extra, line, rank, id, coalesce(combo, ($24::integer[])[1]),
       coalesce(queue, ($25::integer[])[1]), coalesce(generation, ($26::integer[])[1]),
       coalesce(enqueued_at, ($27::bigint[])[1]), grp, key, reply, coalesce(lease, ($31::bigint[])[1]), keep_result,
       coalesce(plain, ($33::boolean[])[1]), spec
FROM unnest($1::bigint[], $2::smallint[], $3::smallint[], $4::bigint[], $5::integer[], $6::integer[],
            $7::integer[], $8::integer[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
            $13::bigint[], $14::bigint[], $15::bigint[], $16::boolean[], $17::bigint[], $18::bigint[],
            $19::bytea[], $20::bytea[], $21::text[], $22::smallint[], $23::text[], $24::integer[],
            $25::integer[], $26::integer[], $27::bigint[], $28::text[], $29::text[], $30::text[],
            $31::bigint[], $32::bigint[], $33::boolean[], $34::bytea[])
     AS i (seq, state, place, available_at, attempt, failures, blocked, events, newest, started_at, finished_at,
           expires_at, expiring, retry_at, dead_at, archived, next_retry_at, result_until, result, extra, line, rank, id,
           combo, queue, generation, enqueued_at, grp, key, reply, lease, keep_result, plain, spec);

-- name: update_jobs
-- The second condition ensures that no plan reads other jobs.
UPDATE millrace.job AS j
SET state = i.state, place = i.place, available_at = i.available_at, attempt = i.attempt, failures = i.failures,
    blocked = i.blocked, events = i.events, newest = i.newest, started_at = i.started_at, finished_at = i.finished_at,
    expires_at = i.expires_at, expiring = i.expiring, retry_at = i.retry_at, dead_at = i.dead_at,
    archived = i.archived, next_retry_at = i.next_retry_at, result_until = i.result_until, result = i.result,
    extra = i.extra, line = i.line, rank = i.rank
FROM unnest($1::bigint[], $2::smallint[], $3::smallint[], $4::bigint[], $5::integer[], $6::integer[], $7::integer[],
            $8::integer[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
            $15::bigint[], $16::boolean[], $17::bigint[], $18::bigint[], $19::bytea[], $20::bytea[], $21::text[],
            $22::smallint[])
     AS i (seq, state, place, available_at, attempt, failures, blocked, events, newest, started_at, finished_at,
           expires_at, expiring, retry_at, dead_at, archived, next_retry_at, result_until, result, extra, line, rank)
WHERE j.seq = i.seq AND j.seq = ANY ($1::bigint[]);

-- name: delete_jobs
WITH gone AS (DELETE FROM millrace.job WHERE seq = ANY ($1::bigint[]))
DELETE FROM millrace.lease WHERE seq = ANY ($1::bigint[]);

-- name: close_jobs
-- By ctid, which no other transaction changes: the step has locked the rows.
DELETE FROM millrace.ready WHERE ctid = ANY (ARRAY(
    SELECT r.ctid FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) AS i (combo, available_at, seq)
    CROSS JOIN LATERAL (
        SELECT one.ctid FROM millrace.ready AS one
        WHERE one.combo = i.combo AND one.available_at = i.available_at AND one.seq = i.seq LIMIT 1
    ) AS r
));

-- name: put_members
INSERT INTO millrace.member (queue, line, rank, seq, due)
SELECT * FROM unnest($1::integer[], $2::text[], $3::smallint[], $4::bigint[], $5::bigint[])
ON CONFLICT (queue, line, rank, seq) DO UPDATE SET due = excluded.due;

-- name: drop_members
-- Remove these jobs from the lines that their stored rows name. The step has locked these rows.
DELETE FROM millrace.member WHERE ctid = ANY (ARRAY(
    SELECT m.ctid FROM unnest($1::bigint[]) AS i (seq)
    CROSS JOIN LATERAL (SELECT * FROM millrace.job AS one WHERE one.seq = i.seq LIMIT 1) AS j
    CROSS JOIN LATERAL (
        SELECT one.ctid FROM millrace.member AS one
        WHERE one.queue = j.queue AND one.line = j.line AND one.rank = j.rank AND one.seq = j.seq LIMIT 1
    ) AS m
));

-- name: open_jobs
INSERT INTO millrace.ready (combo, available_at, seq, special)
SELECT * FROM unnest($1::integer[], $2::bigint[], $3::bigint[], $4::boolean[]);

-- name: end_leases
DELETE FROM millrace.lease WHERE seq = ANY ($1::bigint[]);

-- name: begin_leases
INSERT INTO millrace.lease (seq, id, worker, until, started_at, attempt, events, newest, span, combo, cancelling,
                            progress)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::integer[], $7::integer[],
                     $8::bigint[], $9::bigint[], $10::integer[], $11::boolean[], $12::bytea[])
ON CONFLICT (seq) DO UPDATE
SET id = excluded.id, worker = excluded.worker, until = excluded.until, started_at = excluded.started_at,
    attempt = excluded.attempt, events = excluded.events, newest = excluded.newest, cancelling = excluded.cancelling,
    progress = excluded.progress;

-- name: ask_to_cancel
UPDATE millrace.lease AS l SET cancelling = i.cancelling
FROM unnest($1::bigint[], $2::boolean[]) AS i (seq, cancelling) WHERE l.seq = i.seq;

-- name: put_agenda
INSERT INTO millrace.agenda (kind, queue, at, seqs)
SELECT kind, queue, at, array_agg(seq)
FROM unnest($1::smallint[], $2::integer[], $3::bigint[], $4::bigint[]) AS i (kind, queue, at, seq)
GROUP BY kind, queue, at;

-- name: look_at_ids
-- Records by id, each with the time.
SELECT millrace.clock($1::bigint), record.* FROM millrace.record WHERE id = ANY ($2::text[]);

-- name: scan
-- Records from one seq to another, in order, each with the time.
SELECT millrace.clock($1::bigint), record.* FROM millrace.record
WHERE seq > $2::bigint AND seq <= $3::bigint ORDER BY seq LIMIT $4::integer;

-- name: ended_under
-- Which of these leases have ended a run, and whether it was cancelled, according to the job's newest events. With the id
-- of the job and the channel that waits for its end, if the job is final.
SELECT DISTINCT ended.lease, ended.kind = $4::smallint, final.id, final.reply
FROM unnest($1::bigint[], $2::text[]) AS i (seq, lease)
JOIN LATERAL (
    SELECT newest FROM millrace.job WHERE job.seq = i.seq
    UNION ALL
    SELECT newest FROM millrace.lease WHERE lease.seq = i.seq
    UNION ALL
    SELECT newest FROM millrace.past WHERE past.seq = i.seq
) AS last ON true
JOIN LATERAL (
    WITH RECURSIVE walk AS (
        SELECT event.*, 1 AS depth FROM millrace.event WHERE id = last.newest
        UNION ALL
        SELECT earlier.*, walk.depth + 1
        FROM walk
        CROSS JOIN LATERAL (
            SELECT * FROM millrace.event AS one
            WHERE one.id = CASE WHEN cardinality(walk.before) = 1 THEN walk.before[1]
                                ELSE walk.before[array_position(walk.seqs, i.seq)] END
            LIMIT 1
        ) AS earlier
        WHERE walk.depth < 20 AND earlier.id <> walk.id
    )
    SELECT e.lease, e.kind
    FROM walk
    CROSS JOIN LATERAL unnest(walk.seqs, walk.leases, walk.kinds) AS u (seq, lease, kind)
    CROSS JOIN LATERAL (SELECT coalesce(u.lease, walk.leases[1]) AS lease, coalesce(u.kind, walk.kinds[1]) AS kind) AS e
    WHERE u.seq = i.seq AND e.lease = i.lease AND e.kind = ANY ($3::smallint[])
) AS ended ON true
LEFT JOIN LATERAL (
    SELECT job.id, job.reply FROM millrace.job WHERE job.seq = i.seq AND job.state >= 2
) AS final ON true;
