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
-- The rows with the events after a number, so many of them.
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
UPDATE millrace.store SET trimmed = $1::bigint;

-- name: history
-- The rows with events of an id's generations, each from its newest back; how many events of a row retention has taken.
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
    CROSS JOIN LATERAL (  -- with OFFSET it is looked up for each, and never joined by reading all of it
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

-- name: feed_page
SELECT * FROM millrace.feed_page($1::bigint, $2::bigint, $3::integer);

-- name: past
SELECT id, seq, generation, state, token, gone_at FROM millrace.past WHERE id = ANY ($1::text[]) ORDER BY seq;

-- name: put_past
INSERT INTO millrace.past (seq, id, generation, state, token, gone_at, newest)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::integer[], $4::smallint[], $5::text[], $6::bigint[], $7::bigint[]);

-- name: stale_past
SELECT id, seq, generation, state, token, gone_at
FROM millrace.past
WHERE gone_at <= $1::bigint
ORDER BY gone_at, seq
LIMIT $2::integer;

-- name: drop_past
DELETE FROM millrace.past WHERE seq = ANY ($1::bigint[]);
