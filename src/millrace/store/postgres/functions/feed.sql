-- feed.sql: the feed of events. Rules for all functions: see steps.sql.

-- Number the events that have no number in the feed yet, in the order in which they were written. Returns how many rows
-- there were; if it returns `most`, there may be more.
CREATE OR REPLACE FUNCTION millrace.number_events(most integer) RETURNS integer LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    so_far bigint;
    new record;
BEGIN
    IF NOT EXISTS (SELECT FROM millrace.outbox) THEN
        RETURN 0;
    END IF;
    SELECT numbered INTO so_far FROM millrace.store FOR UPDATE;
    WITH taken AS (
        DELETE FROM millrace.outbox WHERE place IN (SELECT place FROM millrace.outbox ORDER BY place LIMIT most)
        RETURNING place, event, size, at
    ), numbered AS (
        INSERT INTO millrace.feed (last, event, size, at)
        SELECT so_far + sum(size) OVER (ORDER BY place), event, size, at FROM taken ORDER BY place
        RETURNING last
    )
    SELECT max(last) AS last, count(*) AS count INTO new FROM numbered;
    IF new.last IS NOT NULL THEN
        UPDATE millrace.store SET numbered = new.last;
    END IF;
    RETURN new.count;
END $$;

-- A page of the feed after a number, or from its start, with the bounds of the feed in each row. Committed events are
-- numbered first; `more`: there were too many of them for one call.
CREATE OR REPLACE FUNCTION millrace.feed_page(after bigint, most bigint, at_once integer)
RETURNS TABLE (more boolean, trimmed bigint, numbered bigint, trimmed_mark text, last bigint, size integer, at bigint,
               seqs bigint[], before bigint[], combos integer[], generations integer[], ns integer[],
               attempts integer[], failures integer[], kinds smallint[], states smallint[], ids text[],
               workers text[], leases text[], delays bigint[], durations bigint[], reasons text[], errors bytea)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    new integer := millrace.number_events(at_once);
    bounds record;
    start bigint;
    until bigint;
BEGIN
    SELECT s.trimmed, s.numbered, s.trimmed_mark INTO bounds FROM millrace.store AS s;
    start := coalesce(after, bounds.trimmed);
    until := coalesce((SELECT f.last FROM millrace.feed AS f WHERE f.last >= start + most ORDER BY f.last LIMIT 1),
                      start + most);
    RETURN QUERY
    SELECT new = at_once, bounds.trimmed, bounds.numbered, bounds.trimmed_mark, f.last, f.size, e.at, e.seqs, e.before,
           e.combos, e.generations, e.ns, e.attempts, e.failures, e.kinds, e.states, e.ids, e.workers, e.leases, e.delays,
           e.durations, e.reasons, e.errors
    FROM millrace.feed AS f
    CROSS JOIN LATERAL (SELECT * FROM millrace.event AS one WHERE one.id = f.event LIMIT 1) AS e
    WHERE f.last > start AND f.last <= until ORDER BY f.last;
    IF NOT FOUND THEN
        RETURN QUERY
        SELECT new = at_once, bounds.trimmed, bounds.numbered, bounds.trimmed_mark, NULL::bigint, NULL::integer,
               NULL::bigint, NULL::bigint[], NULL::bigint[], NULL::integer[], NULL::integer[], NULL::integer[],
               NULL::integer[], NULL::integer[], NULL::smallint[], NULL::smallint[], NULL::text[], NULL::text[],
               NULL::text[], NULL::bigint[], NULL::bigint[], NULL::text[], NULL::bytea;
    END IF;
END $$;
