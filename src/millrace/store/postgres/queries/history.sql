-- history.sql: the feed of events, and generations whose record is gone.

-- name: next_event
SELECT nextval('millrace.event_id');

-- name: put_events
WITH written AS (
    INSERT INTO millrace.event (id, at, seqs, before, combos, generations, ns, attempts, failures, kinds, states, ids,
                                workers, leases, delays, durations, reasons, errors)
    VALUES ($1::bigint, $2::bigint, $3::bigint[], $4::bigint[], $5::integer[], $6::integer[], $7::integer[],
            $8::integer[], $9::integer[], $10::smallint[], $11::smallint[], $12::text[], $13::text[], $14::text[],
            $15::bigint[], $16::bigint[], $17::text[], $18::bytea)
)
INSERT INTO millrace.outbox (event, size, at) VALUES ($1::bigint, cardinality($3::bigint[]), $2::bigint);

-- name: number_events
SELECT millrace.number_events($1::integer);

-- name: feed_bounds
SELECT trimmed, numbered FROM millrace.store;

-- name: feed
-- Rows of the feed after a number, with their events.
SELECT feed.last, feed.size, event.at, seqs, before, combos, generations, ns, attempts, failures, kinds, states, ids,
       workers, leases, delays, durations, reasons, errors
FROM millrace.feed JOIN millrace.event ON event.id = feed.event
WHERE feed.last > $1::bigint
ORDER BY feed.last
LIMIT $2::integer;

-- name: feed_edge
-- The row that retention has begun to take away, if it took only a part of it.
SELECT last, size, event FROM millrace.feed WHERE last > $1::bigint ORDER BY last LIMIT 1;

-- name: feed_sizes
SELECT last, at FROM millrace.feed WHERE last > $1::bigint ORDER BY last LIMIT $2::integer;

-- name: feed_at
-- The number of the last event of the first row, after a number, that is not before an instant.
SELECT last - size FROM millrace.feed WHERE last > $1::bigint AND at >= $2::bigint ORDER BY last LIMIT 1;

-- name: trim_feed
WITH gone AS (DELETE FROM millrace.feed WHERE last <= $1::bigint RETURNING event), cut AS (
    DELETE FROM millrace.event USING gone WHERE event.id = gone.event
)
UPDATE millrace.store SET trimmed = $1::bigint;

-- name: history
-- The rows with events of one job, from its newest back.
WITH RECURSIVE walk AS (
    SELECT event.* FROM millrace.event WHERE id = $2::bigint
    UNION ALL
    SELECT earlier.*
    FROM walk
    CROSS JOIN LATERAL (
        SELECT CASE WHEN cardinality(walk.before) = 1 THEN walk.before[1]
                    ELSE walk.before[array_position(walk.seqs, $1::bigint)] END AS id
    ) AS link
    JOIN millrace.event AS earlier ON earlier.id = link.id AND earlier.id <> walk.id
)
SELECT id, at, seqs, before, combos, generations, ns, attempts, failures, kinds, states, ids, workers, leases, delays,
       durations, reasons, errors
FROM walk;

-- name: past
SELECT id, seq, generation, state, token, gone_at, newest FROM millrace.past WHERE id = ANY ($1::text[]) ORDER BY seq;

-- name: put_past
INSERT INTO millrace.past (seq, id, generation, state, token, gone_at, newest)
VALUES ($1::bigint, $2::text, $3::integer, $4::smallint, $5::text, $6::bigint, $7::bigint);

-- name: stale_past
SELECT id, seq, generation, state, token, gone_at
FROM millrace.past
WHERE gone_at <= $1::bigint
ORDER BY gone_at, seq
LIMIT $2::integer;

-- name: drop_past
DELETE FROM millrace.past WHERE seq = $1::bigint;
