-- enqueue.sql: the fast path of an enqueue. Rules for all functions: see steps.sql.

-- Lock the lines and keys of new jobs of one queue. Returns whether the fast path applies: no other transaction holds one of
-- the locks, no job holds one of the keys, and no new job overtakes the open job of its line.
CREATE OR REPLACE FUNCTION millrace.may_join(of_queue integer, lines text[], ranks smallint[], keys text[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    name text := (SELECT q.name FROM millrace.queue AS q WHERE q.id = of_queue);
BEGIN
    RETURN coalesce((SELECT bool_and(pg_try_advisory_xact_lock(millrace.lock_number('line ' || name || ' ' || l.line)))
                     FROM (SELECT DISTINCT line FROM unnest(lines) AS i (line)) AS l WHERE l.line IS NOT NULL), true)
       AND coalesce((SELECT bool_and(pg_try_advisory_xact_lock(millrace.lock_number('key ' || name || ' ' || k.key)))
                     FROM unnest(keys) AS k (key) WHERE k.key IS NOT NULL), true)
       AND NOT millrace.is_overtaken(of_queue, lines, ranks)
       AND NOT EXISTS (SELECT FROM unnest(keys) AS k (key) CROSS JOIN LATERAL (
                           SELECT FROM millrace.hold AS one WHERE one.queue = name AND one.key = k.key LIMIT 1) AS h);
END $$;

-- Whether one of these new members comes before the open job of its line, which the ledger then closes.
CREATE OR REPLACE FUNCTION millrace.is_overtaken(of_queue integer, lines text[], ranks smallint[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM (SELECT i.line, min(i.rank) AS rank FROM unnest(lines, ranks) AS i (line, rank) GROUP BY i.line) AS m
        CROSS JOIN LATERAL (
            SELECT one.open FROM millrace.line AS one
            WHERE one.queue = of_queue AND one.name = m.line AND one.holder IS NULL LIMIT 1
        ) AS l
        CROSS JOIN LATERAL (SELECT one.rank FROM millrace.job AS one WHERE one.seq = l.open LIMIT 1) AS o
        WHERE m.rank < o.rank
    );
END $$;

-- Add new members to their lines, which are locked, and open the first member of a line that has neither an open job nor a
-- holder. Members with a place of 3 wait outside until they are due; the others are due `at` this time. `combos`: NULL if
-- all have the same, `one_combo`. Repeats `Step.added` and `Step.elect` of domain/rules/step.py.
CREATE OR REPLACE FUNCTION millrace.join_lines(of_queue integer, at bigint, seqs bigint[], lines text[], ranks smallint[],
                                    places smallint[], combos integer[], one_combo integer)
RETURNS void LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    WITH joined AS (
        SELECT i.line, count(*) AS size, (array_agg(i.seq ORDER BY i.rank, i.seq) FILTER (WHERE i.place = 1))[1] AS first
        FROM unnest(seqs, lines, ranks, places) AS i (seq, line, rank, place) WHERE i.line IS NOT NULL GROUP BY i.line
    ), written AS (
        INSERT INTO millrace.line AS l (queue, name, holder, open, waiting, live, processed, died)
        SELECT of_queue, j.line, NULL, j.first, j.size, j.size, 0, 0 FROM joined AS j
        ON CONFLICT (queue, name) DO UPDATE
        SET waiting = l.waiting + excluded.waiting, live = l.live + excluded.live,
            open = CASE WHEN l.holder IS NULL THEN coalesce(l.open, excluded.open) ELSE l.open END
        RETURNING l.open
    )
    INSERT INTO millrace.ready (combo, available_at, seq, special)
    SELECT coalesce(i.combo, one_combo), at, i.seq, true
    FROM unnest(seqs, combos) AS i (seq, combo) JOIN written AS w ON w.open = i.seq;
    INSERT INTO millrace.member (queue, line, rank, seq, due)
    SELECT of_queue, i.line, i.rank, i.seq, at FROM unnest(seqs, lines, ranks, places) AS i (seq, line, rank, place)
    WHERE i.place = 1;
END $$;

-- Enqueue plain jobs with new ids. An array with one element holds the value of all jobs. Returns their seqs, which may
-- be `drawn` before; NULL if a queue is not plain. MR001, or an id that exists (23505): the call needs the ledger.
-- `lines`, `keys`: the jobs have groups or unique keys, and all are of one queue. `scopes`, `windows`: of the keys.
-- `ranks`: -priority of each job with a group. `blocked`: how many parents each job has; `parents`, `children`: the ids of
-- the parents, which are all among the new jobs, and the numbers of their children, counted from 1. `brief`: do not wait
-- long for locks.
-- Streams from arrays into tables, without a CTE between them, and without ON CONFLICT, which writes each row twice.
CREATE OR REPLACE FUNCTION millrace.enqueue_plain(given bigint, ids text[], specs bytea[], combos integer[], queues integer[],
                                       delays bigint[], expires bigint[], leases bigint[], keeps bigint[],
                                       replies text[], lines text[], ranks smallint[], keys text[], scopes text[],
                                       windows bigint[], blocked integer[], parents text[], children integer[],
                                       drawn bigint[], brief boolean)
RETURNS bigint[] LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = '10s' AS $$
DECLARE
    size integer := cardinality(ids);
    many_combos integer[] := CASE WHEN cardinality(combos) > 1 THEN combos END;
    many_queues integer[] := CASE WHEN cardinality(queues) > 1 THEN queues END;
    many_leases bigint[] := CASE WHEN cardinality(leases) > 1 THEN leases END;
    many_keeps bigint[] := CASE WHEN cardinality(keeps) > 1 THEN keeps END;
    many_replies text[] := CASE WHEN cardinality(replies) > 1 THEN replies END;
    one_keep bigint := CASE WHEN many_keeps IS NULL THEN keeps[1] END;
    one_reply text := CASE WHEN many_replies IS NULL THEN replies[1] END;
    used integer[] := queues;
    one integer;
    taken text;  -- an assignment costs less than PERFORM
    now bigint;
    batch bigint;
    seqs bigint[] := drawn;
    known boolean;
    places smallint[];  -- 1: the job waits in its line, 3: outside
BEGIN
    IF brief THEN
        taken := set_config('lock_timeout', '50ms', true);
    END IF;
    taken := pg_advisory_xact_lock_shared(millrace.lock_number('gate'));
    IF many_queues IS NOT NULL THEN
        used := ARRAY(SELECT q FROM (SELECT DISTINCT q FROM unnest(many_queues) AS q) AS q
                      ORDER BY ('queue ' || q) COLLATE "C");
    END IF;
    FOREACH one IN ARRAY used LOOP
        taken := pg_advisory_xact_lock_shared(millrace.lock_number('queue ' || one));
        IF NOT (SELECT plain_in FROM millrace.queue WHERE id = one) THEN
            RETURN NULL;
        END IF;
    END LOOP;
    IF (lines IS NOT NULL OR keys IS NOT NULL) AND NOT millrace.may_join(queues[1], lines, ranks, keys) THEN
        RETURN NULL;
    END IF;
    IF parents IS NOT NULL AND EXISTS (SELECT FROM millrace.dependency AS d WHERE d.parent = ANY (ids)) THEN
        RETURN NULL;  -- the ledger looks for cycles
    END IF;
    IF lines IS NOT NULL THEN
        places := ARRAY(SELECT CASE WHEN i.line IS NULL THEN NULL WHEN i.delay > 0 THEN 3 ELSE 1 END
                        FROM unnest(lines, delays) WITH ORDINALITY AS i (line, delay, n) ORDER BY i.n);
    END IF;
    now := millrace.clock(given);
    batch := nextval('millrace.event_id');
    IF drawn IS NULL THEN
        seqs := ARRAY(SELECT nextval('millrace.job_seq') FROM generate_series(1, size));
    END IF;
    INSERT INTO millrace.job (seq, id, combo, queue, enqueued_at, available_at, expires_at, expiring, newest, lease,
                              keep_result, plain, reply, place, line, grp, rank, key, blocked, spec)
    SELECT i.seq, i.id, coalesce(i.combo, combos[1]), coalesce(i.queue, queues[1]), now, now + coalesce(i.delay, 0),
           now + i.expire, now + i.expire, batch, coalesce(i.lease, leases[1]), coalesce(i.keep, one_keep),
           coalesce(i.keep, one_keep) IS DISTINCT FROM 0, coalesce(i.reply, one_reply), nullif(i.place, 1), i.line, substr(i.line, 3),
           i.rank, i.key, coalesce(i.blocked, 0), i.spec
    FROM (SELECT unnest(seqs) AS seq, unnest(ids) AS id, unnest(specs) AS spec, unnest(many_combos) AS combo,
                 unnest(many_queues) AS queue, unnest(delays) AS delay, unnest(expires) AS expire,
                 unnest(many_leases) AS lease, unnest(many_keeps) AS keep, unnest(many_replies) AS reply,
                 unnest(places) AS place, unnest(lines) AS line, unnest(ranks) AS rank, unnest(keys) AS key,
                 unnest(enqueue_plain.blocked) AS blocked) AS i;
    IF lines IS NOT NULL THEN
        PERFORM millrace.join_lines(queues[1], now, seqs, lines, ranks, places, many_combos, combos[1]);
    END IF;
    IF keys IS NOT NULL THEN
        INSERT INTO millrace.hold (queue, key, owner, seq, scope, until)
        SELECT q.name, i.key, i.id, i.seq, i.scope, CASE WHEN i.scope = 'window' THEN now + i.span END
        FROM unnest(keys, ids, seqs, scopes, windows) AS i (key, id, seq, scope, span)
        CROSS JOIN (SELECT q.name FROM millrace.queue AS q WHERE q.id = queues[1]) AS q WHERE i.key IS NOT NULL;
    END IF;
    IF parents IS NOT NULL THEN
        INSERT INTO millrace.dependency (parent, child)
        SELECT i.parent, seqs[i.child] FROM unnest(parents, children) AS i (parent, child);
        INSERT INTO millrace.dependent (parent, child)
        SELECT i.parent, seqs[i.child] FROM unnest(parents, children) AS i (parent, child);
        INSERT INTO millrace.tally (queue, blocked)
        SELECT coalesce(i.queue, queues[1]), count(*) FROM unnest(enqueue_plain.blocked, many_queues) AS i (blocked, queue)
        WHERE i.blocked > 0 GROUP BY 1;
    END IF;
    WITH opened AS (
        INSERT INTO millrace.ready (combo, available_at, seq, special)
        SELECT coalesce(i.combo, combos[1]), now + coalesce(i.delay, 0), i.seq, i.expire IS NOT NULL
        FROM (SELECT unnest(seqs) AS seq, unnest(many_combos) AS combo, unnest(delays) AS delay,
                     unnest(expires) AS expire, unnest(lines) AS line,
                     unnest(enqueue_plain.blocked) AS blocked) AS i
        WHERE i.line IS NULL AND coalesce(i.blocked, 0) = 0
    ), logged AS (
        INSERT INTO millrace.event (id, at, seqs, before, combos, generations, ns, attempts, failures, kinds, states,
                                    ids, delays)
        VALUES (batch, now, seqs, '{0}', combos, '{1}', '{1}', '{0}', '{0}', '{0}', '{0}', ids, delays)
    ), sent AS (
        INSERT INTO millrace.outbox (event, size, at) VALUES (batch, size, now)
    ), counted AS (
        INSERT INTO millrace.tally (queue, waiting, live) SELECT queues[1], size, size WHERE many_queues IS NULL
    )
    SELECT EXISTS (SELECT FROM millrace.past) AND EXISTS (SELECT FROM millrace.past AS p WHERE p.id = ANY (ids))
    INTO known;
    IF many_queues IS NOT NULL THEN
        INSERT INTO millrace.tally (queue, waiting, live)
        SELECT q, count(*), count(*) FROM unnest(many_queues) AS q GROUP BY q;
    END IF;
    IF known THEN
        RAISE EXCEPTION 'an id is known' USING ERRCODE = 'MR001';
    END IF;
    RETURN seqs;
END $$;

-- Enqueue one plain job without line, key and parents. Writes the same rows as `enqueue_plain` and refuses the same calls
-- (tests/store/postgres/test_enqueue_one.py), in two thirds of the time: scalars need neither arrays nor unnest.
CREATE OR REPLACE FUNCTION millrace.enqueue_one(given bigint, new_id text, new_spec bytea, one_combo integer, one_queue integer,
                                     delay bigint, expire bigint, new_lease bigint, keep bigint, reply_to text)
RETURNS bigint[] LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = '10s' AS $$
DECLARE
    taken text;
    now bigint;
    batch bigint;
    new_seq bigint;
    known boolean;
BEGIN
    taken := pg_advisory_xact_lock_shared(millrace.lock_number('gate'));
    taken := pg_advisory_xact_lock_shared(millrace.lock_number('queue ' || one_queue));
    IF NOT (SELECT plain_in FROM millrace.queue WHERE id = one_queue) THEN
        RETURN NULL;
    END IF;
    now := millrace.clock(given);
    batch := nextval('millrace.event_id');
    new_seq := nextval('millrace.job_seq');
    INSERT INTO millrace.job (seq, id, combo, queue, enqueued_at, available_at, expires_at, expiring, newest, lease,
                              keep_result, plain, reply, spec)
    VALUES (new_seq, new_id, one_combo, one_queue, now, now + delay, now + expire, now + expire, batch, new_lease,
            keep, keep IS DISTINCT FROM 0, reply_to, new_spec);
    WITH opened AS (
        INSERT INTO millrace.ready (combo, available_at, seq, special)
        VALUES (one_combo, now + delay, new_seq, expire IS NOT NULL)
    ), logged AS (
        INSERT INTO millrace.event (id, at, seqs, before, combos, generations, ns, attempts, failures, kinds, states,
                                    ids, delays)
        VALUES (batch, now, ARRAY[new_seq], '{0}', ARRAY[one_combo], '{1}', '{1}', '{0}', '{0}', '{0}', '{0}',
                ARRAY[new_id], CASE WHEN delay > 0 THEN ARRAY[delay] END)
    ), sent AS (
        INSERT INTO millrace.outbox (event, size, at) VALUES (batch, 1, now)
    ), counted AS (
        INSERT INTO millrace.tally (queue, waiting, live) VALUES (one_queue, 1, 1)
    )
    SELECT EXISTS (SELECT FROM millrace.past) AND EXISTS (SELECT FROM millrace.past AS p WHERE p.id = new_id) INTO known;
    IF known THEN
        RAISE EXCEPTION 'an id is known' USING ERRCODE = 'MR001';
    END IF;
    RETURN ARRAY[new_seq];
END $$;

-- Fast-path calls that also notify other processes, in the same round trip. NOTIFY runs in its own transaction after the
-- commit and does not wait for the disk. Inside the first transaction, it would serialize all commits of the database.
CREATE OR REPLACE PROCEDURE millrace.enqueue_and_tell(
    INOUT seqs bigint[], given bigint, ids text[], specs bytea[], combos integer[], queues integer[], delays bigint[],
    expires bigint[], leases bigint[], keeps bigint[], replies text[], lines text[], ranks smallint[], keys text[],
    scopes text[], windows bigint[], blocked integer[], parents text[], children integer[], drawn bigint[], brief boolean,
    channel text, word text
) LANGUAGE plpgsql AS $$
DECLARE
    sent text;
BEGIN
    seqs := millrace.enqueue_plain(given, ids, specs, combos, queues, delays, expires, leases, keeps, replies,
                                   lines, ranks, keys, scopes, windows, blocked, parents, children, drawn, brief);
    COMMIT;
    IF seqs IS NOT NULL THEN
        sent := pg_notify(channel, word);
    END IF;
END $$;

CREATE OR REPLACE PROCEDURE millrace.enqueue_one_and_tell(
    INOUT seqs bigint[], given bigint, new_id text, new_spec bytea, one_combo integer, one_queue integer, delay bigint,
    expire bigint, new_lease bigint, keep bigint, reply_to text, channel text, word text
) LANGUAGE plpgsql AS $$
DECLARE
    sent text;
BEGIN
    seqs := millrace.enqueue_one(given, new_id, new_spec, one_combo, one_queue, delay, expire, new_lease, keep, reply_to);
    COMMIT;
    IF seqs IS NOT NULL THEN
        sent := pg_notify(channel, word);
    END IF;
END $$;
