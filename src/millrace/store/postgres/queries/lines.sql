-- lines.sql: lines, keys and dependencies.

-- name: lines
SELECT line.queue, line.name, holder, open, waiting, live, processed, died
FROM unnest($1::integer[], $2::text[]) AS i (queue, name)
CROSS JOIN LATERAL (
    SELECT * FROM millrace.line AS one WHERE one.queue = i.queue AND one.name = i.name LIMIT 1
) AS line;

-- name: put_lines
INSERT INTO millrace.line (queue, name, holder, open, waiting, live, processed, died)
SELECT * FROM unnest($1::integer[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
                     $8::bigint[])
ON CONFLICT (queue, name) DO UPDATE
SET holder = excluded.holder, open = excluded.open, waiting = excluded.waiting, live = excluded.live,
    processed = excluded.processed, died = excluded.died;

-- name: drop_lines
DELETE FROM millrace.line WHERE ctid = ANY (ARRAY(
    SELECT line.ctid FROM unnest($1::integer[], $2::text[]) AS i (queue, name)
    CROSS JOIN LATERAL (
        SELECT one.ctid FROM millrace.line AS one WHERE one.queue = i.queue AND one.name = i.name LIMIT 1
    ) AS line
));

-- name: members
-- Waiting members of a line, by (priority desc, seq).
SELECT seq, rank FROM millrace.member WHERE queue = $1::integer AND line = $2::text
ORDER BY rank, seq LIMIT $3::integer;

-- name: first_members
-- The first waiting members of each line, as many as are wanted of it, and whether these are all.
SELECT i.queue, i.name, first.rank, first.seq, count(*) OVER (PARTITION BY i.n) < i.wanted
FROM unnest($1::integer[], $2::text[], $3::bigint[]) WITH ORDINALITY AS i (queue, name, wanted, n)
CROSS JOIN LATERAL (
    SELECT rank, seq FROM millrace.member AS one WHERE one.queue = i.queue AND one.line = i.name
    ORDER BY rank, seq LIMIT i.wanted
) AS first
ORDER BY i.n, first.rank, first.seq;

-- name: members_before
-- How many members are ahead of one, counted up to a limit.
SELECT count(*)
FROM (SELECT rank, seq FROM millrace.member
      WHERE queue = $1::integer AND line = $2::text ORDER BY rank, seq LIMIT $3::integer) AS ahead
WHERE (rank, seq) < ($4::integer, $5::bigint);

-- name: holds
SELECT hold.queue, hold.key, owner, seq, scope, until
FROM unnest($1::text[], $2::text[]) AS i (queue, key)
CROSS JOIN LATERAL (
    SELECT * FROM millrace.hold AS one WHERE one.queue = i.queue AND one.key = i.key LIMIT 1
) AS hold;

-- name: put_holds
INSERT INTO millrace.hold (queue, key, owner, seq, scope, until)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::bigint[])
ON CONFLICT (queue, key) DO UPDATE
SET owner = excluded.owner, seq = excluded.seq, scope = excluded.scope, until = excluded.until;

-- name: drop_holds
DELETE FROM millrace.hold WHERE ctid = ANY (ARRAY(
    SELECT hold.ctid FROM unnest($1::text[], $2::text[]) AS i (queue, key)
    CROSS JOIN LATERAL (
        SELECT one.ctid FROM millrace.hold AS one WHERE one.queue = i.queue AND one.key = i.key LIMIT 1
    ) AS hold
));

-- name: lapsed_holds
SELECT queue, key, owner, seq, scope, until
FROM millrace.hold
WHERE until IS NOT NULL AND until <= $1::bigint
ORDER BY until
LIMIT $2::integer;

-- name: windows
SELECT queue, key, owner, seq, scope, until
FROM millrace.hold
WHERE until >= $1::bigint
ORDER BY until, queue, key
OFFSET $2::integer LIMIT $3::integer;

-- name: children
SELECT parent, child FROM millrace.dependency WHERE parent = ANY ($1::text[]);

-- name: parents
SELECT child, parent FROM millrace.dependency WHERE child = ANY ($1::bigint[]) ORDER BY n;

-- name: put_dependencies
INSERT INTO millrace.dependency (parent, child) SELECT * FROM unnest($1::text[], $2::bigint[])
ON CONFLICT (parent, child) DO NOTHING;

-- name: drop_dependencies
DELETE FROM millrace.dependency WHERE ctid = ANY (ARRAY(
    SELECT edge.ctid FROM unnest($1::text[], $2::bigint[]) AS i (parent, child)
    CROSS JOIN LATERAL (
        SELECT one.ctid FROM millrace.dependency AS one WHERE one.parent = i.parent AND one.child = i.child LIMIT 1
    ) AS edge
));

-- name: put_dependents
INSERT INTO millrace.dependent (parent, child) SELECT * FROM unnest($1::text[], $2::bigint[]) ON CONFLICT DO NOTHING;

-- name: drop_dependents
DELETE FROM millrace.dependent WHERE child = ANY ($1::bigint[]);

-- name: dead_dependents
SELECT DISTINCT d.child
FROM unnest($1::text[]) AS p (id)
CROSS JOIN LATERAL (SELECT child FROM millrace.dependent WHERE parent = p.id OFFSET 0) AS d
CROSS JOIN LATERAL (SELECT FROM millrace.job WHERE seq = d.child AND dead_at IS NOT NULL LIMIT 1) AS j
ORDER BY d.child;

-- name: is_needed
SELECT EXISTS (
    SELECT FROM (SELECT child FROM millrace.dependent WHERE parent = $1::text OFFSET 0) AS d
    CROSS JOIN LATERAL (SELECT FROM millrace.job WHERE seq = d.child AND finished_at IS NULL LIMIT 1) AS j
);
