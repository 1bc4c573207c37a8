-- history.sql: the feed of events, and generations whose record is deleted.

-- name: next_event
SELECT nextval('millrace.event_id');

-- name: next_events
SELECT nextval('millrace.event_id') FROM generate_series(1, $1::integer);

-- name: put_events
INSERT INTO millrace.event (id, at, seqs, before, combos, generations, ns, attempts, failures, kinds, states, ids,
                            workers, leases, delays, durations, reasons, errors)
VALUES ($1::bigint, $2::bigint, $3::bigint[], $4::bigint[], $5::integer[], $6::integer[], $7::integer[],
        $8::integer[], $9::integer[], $10::smallint[], $11::smallint[], $12::text[], $13::text[], $14::text[],
        $15::bigint[], $16::bigint[], $17::text[], $18::bytea);

-- name: put_outbox
INSERT INTO millrace.outbox (event, size, at) VALUES ($1::bigint, $2::integer, $3::bigint);

-- name: put_outbox_rows
-- Many rows, whose places are in their order.
INSERT INTO millrace.outbox (event, size, at) SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bigint[]);

-- name: number_events
SELECT millrace.number_events($1::integer);

-- name: settled_place
-- The last place of the events without a number, and whether a transaction may still write an event before it: every
-- transaction that has taken a place holds a lock on the table until its end. The place is read before the locks. A
-- standby does not know the locks.
SELECT max(place), pg_is_in_recovery() OR EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'relation' AND relation = 'millrace.outbox'::regclass AND mode LIKE '%Exclusive%'
      AND mode <> 'ShareUpdateExclusiveLock'
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
FROM millrace.outbox;

-- name: unnumbered
-- Rows of events without a number, up to a limit: the number that the last event of the row gets if no other row comes
-- before it, the number of its events, its id, and its place.
SELECT (store.numbered + sum(waiting.size) OVER (ORDER BY waiting.place))::bigint, waiting.size, waiting.event,
       waiting.place
FROM millrace.store CROSS JOIN (SELECT * FROM millrace.outbox ORDER BY place LIMIT $1::integer) AS waiting
ORDER BY waiting.place;

-- name: event_rows
SELECT id, at, seqs, before, combos, generations, ns, attempts, failures, kinds, states, ids,
       workers, leases, delays, durations, reasons, errors
FROM millrace.event WHERE id = ANY ($1::bigint[]);

-- name: feed_bounds
SELECT trimmed, numbered, trimmed_mark FROM millrace.store;

-- name: feed
-- The rows with the next events after a number, up to a limit.
SELECT feed.last, feed.size, event.at, seqs, before, combos, generations, ns, attempts, failures, kinds, states, ids,
       workers, leases, delays, durations, reasons, errors
FROM millrace.feed CROSS JOIN LATERAL (SELECT * FROM millrace.event AS one WHERE one.id = feed.event LIMIT 1) AS event
WHERE feed.last > $1::bigint
  AND feed.last <= coalesce((SELECT last FROM millrace.feed WHERE last >= $1::bigint + $2::bigint ORDER BY last LIMIT 1),
                            $1::bigint + $2::bigint)
ORDER BY feed.last;

-- name: feed_sizes
SELECT last, at FROM millrace.feed WHERE last > $1::bigint ORDER BY last LIMIT $2::integer;

-- name: trim_feed
WITH gone AS (DELETE FROM millrace.feed WHERE last <= $1::bigint RETURNING event), cut AS (
    DELETE FROM millrace.event WHERE id = ANY (ARRAY(SELECT gone.event FROM gone))
)
UPDATE millrace.store SET trimmed = $1::bigint, trimmed_mark = $2::text;

-- name: history
-- The rows with the events of all generations of an id, each from the newest back, and how many events retention has
-- deleted from a row.
WITH RECURSIVE start AS (
    SELECT past.seq, past.newest FROM millrace.past WHERE past.id = $1::text
    UNION ALL
    SELECT job.seq, coalesce((SELECT lease.newest FROM millrace.lease WHERE lease.seq = job.seq), job.newest)
    FROM millrace.job WHERE job.id = $1::text
), walk AS (
    SELECT start.seq AS wanted, newest.*
    FROM start CROSS JOIN LATERAL (SELECT * FROM millrace.event WHERE event.id = start.newest OFFSET 0) AS newest
    UNION ALL
    SELECT walk.wanted, earlier.*
    FROM walk
    CROSS JOIN LATERAL (  -- OFFSET forces one lookup per row instead of a join that reads the whole table
        SELECT * FROM millrace.event
        WHERE event.id = CASE WHEN cardinality(walk.before) = 1 THEN walk.before[1]
                              ELSE walk.before[array_position(walk.seqs, walk.wanted)] END
          AND event.id <> walk.id
        OFFSET 0
    ) AS earlier
), edge AS (
    SELECT feed.event, store.trimmed - feed.last + feed.size AS hidden
    FROM millrace.store JOIN LATERAL (
        SELECT * FROM millrace.feed WHERE feed.last > store.trimmed ORDER BY feed.last LIMIT 1
    ) AS feed ON store.trimmed > 0
)
SELECT wanted, coalesce(edge.hidden, 0), at, seqs, before, combos, generations, ns, attempts, failures, kinds, states,
       ids, workers, leases, delays, durations, reasons, errors
FROM walk LEFT JOIN edge ON edge.event = walk.id;

-- name: feed_edge
-- The row of which retention has deleted some events, and how many.
SELECT feed.event, store.trimmed - feed.last + feed.size
FROM millrace.store JOIN LATERAL (
    SELECT * FROM millrace.feed WHERE feed.last > store.trimmed ORDER BY feed.last LIMIT 1
) AS feed ON store.trimmed > 0;

-- name: feed_page
SELECT * FROM millrace.feed_page($1::bigint, $2::bigint, $3::integer);

-- name: past
SELECT id, seq, generation, state, token, gone_at, newest FROM millrace.past WHERE id = ANY ($1::text[]) ORDER BY seq;

-- name: put_past
INSERT INTO millrace.past (seq, id, generation, state, token, gone_at, newest)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::integer[], $4::smallint[], $5::text[], $6::bigint[], $7::bigint[]);

-- name: past_after
SELECT id, seq, generation, state, token, gone_at, newest
FROM millrace.past
WHERE (gone_at, seq) > ($1::bigint, $2::bigint)
ORDER BY gone_at, seq
LIMIT $3::integer;

-- name: stale_past
SELECT id, seq, generation, state, token, gone_at
FROM millrace.past
WHERE gone_at <= $1::bigint
ORDER BY gone_at, seq
LIMIT $2::integer;

-- name: drop_past
DELETE FROM millrace.past WHERE seq = ANY ($1::bigint[]);
