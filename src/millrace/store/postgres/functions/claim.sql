-- claim.sql: the fast path of a claim, and when the next job is due. Rules for all functions: see steps.sql.

-- The tokens in the bucket of a queue at an instant. Repeats `refill` of domain/rules/limits.py.
CREATE OR REPLACE FUNCTION millrace.tokens_of(q millrace.queue, at bigint) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT least(q.capacity, coalesce(q.tokens + greatest(0, at - q.tokens_at) * q.rate / 1000, q.capacity))
$$;

-- How many jobs a claim may take from a queue, up to `most`. The queue is locked exclusively. NULL: its bucket is dated in
-- the future. Repeats `allowance` of domain/rules/limits.py.
CREATE OR REPLACE FUNCTION millrace.room_in(wanted integer, at bigint, most integer) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT CASE WHEN q.tokens_at > at THEN NULL
           ELSE greatest(0, least(most, floor(millrace.tokens_of(q, at) + 1e-9),
                                  q.max_running - q.running - coalesce(t.running, 0)))::integer END
    FROM millrace.queue AS q
    CROSS JOIN LATERAL (SELECT sum(t.running) AS running FROM millrace.tally AS t WHERE t.queue = q.id) AS t
    WHERE q.id = wanted);
END $$;

-- Of these open jobs, whose rows in `ready` are locked, those that a claim can take: it locks their lines and jobs, unless
-- another transaction holds one. `members`, `queues`, `lines`, `ranks`: the jobs that are in a line, and where. `lanes`: one
-- is in a lane, so the call needs the ledger.
CREATE OR REPLACE FUNCTION millrace.free_members(places tid[], seqs bigint[], OUT free_places tid[], OUT free_seqs bigint[],
                                      OUT members bigint[], OUT queues integer[], OUT lines text[], OUT ranks smallint[],
                                      OUT lanes boolean)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    SELECT array_agg(i.place ORDER BY i.n), array_agg(i.seq ORDER BY i.n),
           array_agg(i.seq ORDER BY i.n) FILTER (WHERE j.line IS NOT NULL),
           array_agg(j.queue ORDER BY i.n) FILTER (WHERE j.line IS NOT NULL),
           array_agg(j.line ORDER BY i.n) FILTER (WHERE j.line IS NOT NULL),
           array_agg(j.rank ORDER BY i.n) FILTER (WHERE j.line IS NOT NULL),
           bool_or(j.line LIKE 'l:%')
    INTO free_places, free_seqs, members, queues, lines, ranks, lanes
    FROM unnest(places, seqs) WITH ORDINALITY AS i (place, seq, n)
    CROSS JOIN LATERAL (
        SELECT one.queue, one.line, one.rank FROM millrace.job AS one WHERE one.seq = i.seq LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS j
    WHERE j.line IS NULL
       OR pg_try_advisory_xact_lock(millrace.lock_number(
              'line ' || (SELECT q.name FROM millrace.queue AS q WHERE q.id = j.queue) || ' ' || j.line));
END $$;

-- These members leave their lines, which are locked, and become the holders. Repeats `Step.claimed` of
-- domain/rules/step.py.
CREATE OR REPLACE FUNCTION millrace.take_lines(members bigint[], queues integer[], lines text[], ranks smallint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    DELETE FROM millrace.member AS m WHERE m.ctid = ANY (ARRAY(
        SELECT found.ctid FROM unnest(members, queues, lines, ranks) AS i (seq, queue, line, rank)
        CROSS JOIN LATERAL (
            SELECT one.ctid FROM millrace.member AS one
            WHERE one.queue = i.queue AND one.line = i.line AND one.rank = i.rank AND one.seq = i.seq LIMIT 1
        ) AS found
    ));
    UPDATE millrace.line AS l SET holder = i.seq, open = NULL, waiting = l.waiting - 1
    FROM (
        SELECT i.seq, found.place FROM unnest(members, queues, lines) AS i (seq, queue, line)
        CROSS JOIN LATERAL (
            SELECT one.ctid AS place FROM millrace.line AS one WHERE one.queue = i.queue AND one.name = i.line LIMIT 1
        ) AS found
    ) AS i
    WHERE l.ctid = i.place;
END $$;

-- Claim due jobs in order, each with a new lease. One row with seq -1: the call needs the ledger.
-- A queue whose claims are bounded is locked exclusively; it must be the only queue of the call. With a fair share, a
-- claim is on the fast path if all jobs have one task and one priority, because then there is only one order.
-- `floor` is a position in one combination up to which all jobs were claimed recently. While an old transaction keeps
-- vacuum from removing their index entries, each claim would read them again. If there are too few jobs above the floor,
-- the whole index is read.
CREATE OR REPLACE FUNCTION millrace.claim_plain(given bigint, queues text[], tasks text[], most integer, span bigint, worker text,
                                     claim text, floor_combo integer, floor_at bigint, floor_seq bigint)
RETURNS TABLE (seq bigint, generation integer, enqueued_at bigint, available_at bigint, expires_at bigint,
               attempt integer, failures integer, events integer, lease_id text, lease_until bigint, now bigint,
               extra bytea, spec bytea)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET lock_timeout = '10s' AS $$
#variable_conflict use_column
DECLARE
    at bigint;
    batch bigint;
    level record;
    one record;
    queue_ids integer[];
    left_over integer := most;
    places tid[] := '{}';
    seqs bigint[] := '{}';
    found_places tid[];
    found_seqs bigint[];
    found_special boolean;
    special boolean := false;
    bounded boolean;
    members bigint[];
    line_queues integer[];
    lines text[];
    ranks smallint[];
    free record;
    seen bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock(millrace.lock_number('call ' || claim));
    PERFORM pg_advisory_xact_lock_shared(millrace.lock_number('gate'));
    queue_ids := ARRAY(SELECT q.id FROM millrace.queue AS q WHERE q.name = ANY (queues)
                       ORDER BY ('queue ' || q.id) COLLATE "C");
    bounded := cardinality(queue_ids) = 1 AND (SELECT q.bounded_out FROM millrace.queue AS q WHERE q.id = queue_ids[1]);
    FOR one IN SELECT unnest(queue_ids) AS id LOOP
        IF bounded THEN
            PERFORM pg_advisory_xact_lock(millrace.lock_number('queue ' || one.id));
        ELSE
            PERFORM pg_advisory_xact_lock_shared(millrace.lock_number('queue ' || one.id));
        END IF;
    END LOOP;
    at := millrace.clock(given);
    IF bounded THEN
        left_over := millrace.room_in(queue_ids[1], at, most);
    END IF;
    IF left_over IS NULL
       OR EXISTS (SELECT FROM millrace.queue AS q WHERE q.id = ANY (queue_ids)
                  AND NOT (q.plain_out OR bounded AND q.bounded_out))
       OR bounded AND (SELECT q.fair FROM millrace.queue AS q WHERE q.id = queue_ids[1])
          AND 1 < (SELECT count(*) FROM millrace.combo AS c
                   WHERE c.queue = queue_ids[1] AND (tasks IS NULL OR c.task = ANY (tasks)))
       OR EXISTS (SELECT FROM millrace.task AS t WHERE tasks IS NULL OR t.name = ANY (tasks))
       OR (SELECT j.available_at FROM millrace.job AS j WHERE j.place = 3
           ORDER BY j.available_at, j.seq LIMIT 1) <= at  -- in this order, so that the planner uses this index
       OR (SELECT j.expiring FROM millrace.job AS j WHERE j.expiring IS NOT NULL
           ORDER BY j.expiring, j.seq LIMIT 1) <= at THEN
        RETURN QUERY SELECT -1::bigint, 0, 0::bigint, 0::bigint, 0::bigint, 0, 0, 0, '', 0::bigint, at, NULL::bytea,
                            NULL::bytea;
        RETURN;
    END IF;
    FOR level IN SELECT c.priority, array_agg(c.id) AS combos FROM millrace.combo AS c
                 WHERE c.queue = ANY (queue_ids) AND (tasks IS NULL OR c.task = ANY (tasks))
                 GROUP BY c.priority ORDER BY c.priority DESC LOOP
        EXIT WHEN left_over <= 0;
        found_seqs := NULL;
        IF level.combos = ARRAY[floor_combo] THEN
            SELECT array_agg(h.ctid), array_agg(h.seq), bool_or(h.special)
            INTO found_places, found_seqs, found_special
            FROM (SELECT r.ctid, r.seq, r.special FROM millrace.ready AS r
                  WHERE r.combo = floor_combo AND (r.available_at, r.seq) > (floor_at, floor_seq)
                    AND r.available_at <= at
                  ORDER BY r.available_at, r.seq LIMIT left_over FOR UPDATE SKIP LOCKED) AS h;
        END IF;
        IF cardinality(found_seqs) = left_over THEN
            NULL;
        ELSIF cardinality(level.combos) = 1 THEN
            SELECT array_agg(h.ctid), array_agg(h.seq), bool_or(h.special)
            INTO found_places, found_seqs, found_special
            FROM (SELECT r.ctid, r.seq, r.special FROM millrace.ready AS r
                  WHERE r.combo = level.combos[1] AND r.available_at <= at
                  ORDER BY r.available_at, r.seq LIMIT left_over FOR UPDATE SKIP LOCKED) AS h;
        ELSE
            SELECT array_agg(h.ctid), array_agg(h.seq), bool_or(h.special)
            INTO found_places, found_seqs, found_special
            FROM (SELECT r.ctid, r.seq, r.special
                  FROM (SELECT head.* FROM unnest(level.combos) AS c (id) CROSS JOIN LATERAL
                            (SELECT r.combo, r.available_at, r.seq FROM millrace.ready AS r
                             WHERE r.combo = c.id AND r.available_at <= at
                             ORDER BY r.available_at, r.seq LIMIT left_over) AS head
                        ORDER BY head.available_at, head.seq LIMIT left_over) AS head
                  CROSS JOIN LATERAL (SELECT one.ctid, one.* FROM millrace.ready AS one
                                      WHERE one.combo = head.combo AND one.available_at = head.available_at
                                        AND one.seq = head.seq FOR UPDATE SKIP LOCKED) AS r
                  ORDER BY r.available_at, r.seq) AS h;
            IF coalesce(cardinality(found_seqs), 0) < left_over THEN  -- other claims have locked these jobs: read further
                SELECT array_agg(h.ctid), array_agg(h.seq), bool_or(h.special)
                INTO found_places, found_seqs, found_special
                FROM (SELECT head.* FROM unnest(level.combos) AS c (id) CROSS JOIN LATERAL
                          (SELECT r.ctid, r.seq, r.special, r.available_at FROM millrace.ready AS r
                           WHERE r.combo = c.id AND r.available_at <= at
                           ORDER BY r.available_at, r.seq LIMIT left_over FOR UPDATE SKIP LOCKED) AS head
                      ORDER BY head.available_at, head.seq LIMIT left_over) AS h;
            END IF;
        END IF;
        IF found_seqs IS NOT NULL THEN
            places := places || found_places;
            seqs := seqs || found_seqs;
            special := special OR found_special;
            left_over := left_over - cardinality(found_seqs);
        END IF;
    END LOOP;
    IF special THEN
        found_places := places;
        found_seqs := seqs;
        places := '{}';
        seqs := '{}';
        seen := found_seqs;
        FOR n IN 1 .. 20 LOOP  -- other transactions may have locked the first jobs: read further, but not without end
            SELECT * INTO free FROM millrace.free_members(found_places, found_seqs);
            IF free.lanes THEN
                RETURN QUERY SELECT -1::bigint, 0, 0::bigint, 0::bigint, 0::bigint, 0, 0, 0, '', 0::bigint, at, NULL::bytea,
                                    NULL::bytea;
                RETURN;
            END IF;
            places := places || free.free_places;
            seqs := seqs || free.free_seqs;
            members := members || free.members;
            line_queues := line_queues || free.queues;
            lines := lines || free.lines;
            ranks := ranks || free.ranks;
            EXIT WHEN cardinality(free.free_seqs) = cardinality(found_seqs);
            left_over := left_over + cardinality(found_seqs) - coalesce(cardinality(free.free_seqs), 0);
            SELECT array_agg(h.ctid), array_agg(h.seq) INTO found_places, found_seqs
            FROM (SELECT head.* FROM millrace.combo AS c CROSS JOIN LATERAL
                      (SELECT r.ctid, r.seq, r.available_at, c.priority FROM millrace.ready AS r
                       WHERE r.combo = c.id AND r.available_at <= at AND r.seq <> ALL (seen)
                       ORDER BY r.available_at, r.seq LIMIT left_over FOR UPDATE SKIP LOCKED) AS head
                  WHERE c.queue = ANY (queue_ids) AND (tasks IS NULL OR c.task = ANY (tasks))
                  ORDER BY head.priority DESC, head.available_at, head.seq LIMIT left_over) AS h;
            EXIT WHEN found_seqs IS NULL;
            seen := seen || found_seqs;
            left_over := left_over - cardinality(found_seqs);
        END LOOP;
        UPDATE millrace.job AS j SET place = NULL, expiring = NULL, retry_at = NULL
        WHERE j.seq = ANY (seqs) AND (j.place IS NOT NULL OR j.expiring IS NOT NULL OR j.retry_at IS NOT NULL);
        IF members IS NOT NULL THEN
            PERFORM millrace.take_lines(members, line_queues, lines, ranks);
        END IF;
    END IF;
    IF seqs IS NULL OR cardinality(seqs) = 0 THEN
        RETURN;
    END IF;
    IF bounded THEN  -- repeats `spend` of domain/rules/limits.py
        UPDATE millrace.queue AS q
        SET tokens = greatest(0, millrace.tokens_of(q, at) - cardinality(seqs)), tokens_at = at
        WHERE q.id = queue_ids[1] AND q.rate IS NOT NULL;
    END IF;
    batch := nextval('millrace.event_id');
    DELETE FROM millrace.ready AS r WHERE r.ctid = ANY (places);
    RETURN QUERY
    WITH item AS MATERIALIZED (
        SELECT j.seq, j.generation, j.enqueued_at, j.available_at, j.expires_at, j.attempt + 1 AS attempt, j.failures,
               j.events + 1 AS events, claim || '.' || j.seq AS lease_id, at + coalesce(span, j.lease) AS until,
               j.extra, j.spec, j.combo, j.queue, j.newest, j.id, j.lease, i.n
        FROM unnest(seqs) WITH ORDINALITY AS i (seq, n)
        CROSS JOIN LATERAL (SELECT * FROM millrace.job AS one WHERE one.seq = i.seq LIMIT 1) AS j
    ), leased AS (
        INSERT INTO millrace.lease (seq, id, worker, until, started_at, attempt, events, newest, span, combo)
        SELECT item.seq, item.lease_id, worker, item.until, at, item.attempt, item.events, batch, item.lease, item.combo
        FROM item
    ), logged AS (
        INSERT INTO millrace.event (id, at, seqs, before, combos, generations, ns, attempts, failures, kinds, states,
                                    ids, workers, leases)
        SELECT batch, at, array_agg(item.seq), array_agg(item.newest),
               array_agg(item.combo), array_agg(item.generation),
               array_agg(item.events), array_agg(item.attempt),
               array_agg(item.failures), '{2}', '{1}', array_agg(item.id),
               ARRAY[worker], array_agg(item.lease_id)
        FROM item
    ), sent AS (
        INSERT INTO millrace.outbox (event, size, at) VALUES (batch, cardinality(seqs), at)
    ), counted AS (
        INSERT INTO millrace.tally (queue, waiting, running, taken)
        SELECT item.queue, -count(*), count(*), count(*) FROM item GROUP BY item.queue
    )
    SELECT item.seq, item.generation, item.enqueued_at, item.available_at, item.expires_at, item.attempt, item.failures,
           item.events, item.lease_id, item.until, at, item.extra, item.spec
    FROM item ORDER BY item.n;
END $$;

-- When the next job is due. Not plain: limits apply, which this function does not check.
CREATE OR REPLACE FUNCTION millrace.next_due(given bigint, queues text[], tasks text[])
RETURNS TABLE (plain boolean, due bigint, now bigint) LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT NOT EXISTS (SELECT FROM millrace.queue AS q WHERE q.name = ANY (queues) AND NOT q.plain_out)
           AND NOT EXISTS (SELECT FROM millrace.task AS t WHERE tasks IS NULL OR t.name = ANY (tasks)),
           least(
               (SELECT min(first.available_at)
                FROM millrace.queue AS q JOIN millrace.combo AS c ON c.queue = q.id
                CROSS JOIN LATERAL (SELECT r.available_at FROM millrace.ready AS r WHERE r.combo = c.id
                                    ORDER BY r.available_at, r.seq LIMIT 1) AS first
                WHERE q.name = ANY (queues) AND (tasks IS NULL OR c.task = ANY (tasks))),
               (SELECT min(first.available_at)
                FROM millrace.queue AS q
                CROSS JOIN LATERAL (SELECT j.available_at FROM millrace.job AS j WHERE j.queue = q.id AND j.place = 3
                                    ORDER BY j.available_at LIMIT 1) AS first
                WHERE q.name = ANY (queues))
           ),
           millrace.clock(given);
END $$;
