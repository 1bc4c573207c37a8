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
-- Waiting members of a line, first by (priority desc, seq).
SELECT seq FROM millrace.job WHERE queue = $1::integer AND line = $2::text AND place = 1
ORDER BY rank, seq LIMIT $3::integer;

-- name: members_before
-- How many members are ahead of one, counted up to a limit.
SELECT count(*)
FROM (SELECT rank, seq FROM millrace.job
      WHERE queue = $1::integer AND line = $2::text AND place = 1 ORDER BY rank, seq LIMIT $5::integer) AS ahead
WHERE (rank, seq) < ($3::integer, $4::bigint);

-- name: hold
SELECT queue, key, owner, seq, scope, until FROM millrace.hold WHERE queue = $1::text AND key = $2::text;

-- name: put_hold
INSERT INTO millrace.hold (queue, key, owner, seq, scope, until)
VALUES ($1::text, $2::text, $3::text, $4::bigint, $5::text, $6::bigint)
ON CONFLICT (queue, key) DO UPDATE
SET owner = excluded.owner, seq = excluded.seq, scope = excluded.scope, until = excluded.until;

-- name: drop_hold
DELETE FROM millrace.hold WHERE queue = $1::text AND key = $2::text;

-- name: lapsed_holds
SELECT queue, key, owner, seq, scope, until
FROM millrace.hold
WHERE until IS NOT NULL AND until <= $1::bigint
ORDER BY until
LIMIT $2::integer;

-- name: children
SELECT parent, child FROM millrace.dependency WHERE parent = ANY ($1::text[]);

-- name: parents
SELECT parent FROM millrace.dependency WHERE child = $1::bigint ORDER BY n;

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
