-- enqueue.sql: the fast path of an enqueue. Rules for all functions: see steps.sql.

-- Enqueue plain jobs with new ids. An array with one element holds the value of all jobs. Returns their seqs, which may
-- be `drawn` before; NULL if a queue is not plain. MR001, or an id that exists (23505): the call needs the ledger.
-- Streams from arrays into tables, without a CTE between them, and without ON CONFLICT, which writes each row twice.
CREATE OR REPLACE FUNCTION millrace.enqueue_plain(given bigint, ids text[], specs bytea[], combos integer[], queues integer[],
                                       delays bigint[], expires bigint[], leases bigint[], keeps bigint[],
                                       replies text[], drawn bigint[])
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
BEGIN
    taken := pg_advisory_xact_lock_shared(millrace.lock_number('gate'));
    IF many_queues IS NOT NULL THEN
        used := ARRAY(SELECT DISTINCT q FROM unnest(many_queues) AS q ORDER BY q);
    END IF;
    FOREACH one IN ARRAY used LOOP
        taken := pg_advisory_xact_lock_shared(millrace.lock_number('queue ' || one));
        IF NOT (SELECT plain_in FROM millrace.queue WHERE id = one) THEN
            RETURN NULL;
        END IF;
    END LOOP;
    now := millrace.clock(given);
    batch := nextval('millrace.event_id');
    IF drawn IS NULL THEN
        seqs := ARRAY(SELECT nextval('millrace.job_seq') FROM generate_series(1, size));
    END IF;
    INSERT INTO millrace.job (seq, id, combo, queue, enqueued_at, available_at, expires_at, expiring, newest, lease,
                              keep_result, plain, reply, spec)
    SELECT i.seq, i.id, coalesce(i.combo, combos[1]), coalesce(i.queue, queues[1]), now, now + coalesce(i.delay, 0),
           now + i.expire, now + i.expire, batch, coalesce(i.lease, leases[1]), coalesce(i.keep, one_keep),
           coalesce(i.keep, one_keep) IS DISTINCT FROM 0, coalesce(i.reply, one_reply), i.spec
    FROM (SELECT unnest(seqs) AS seq, unnest(ids) AS id, unnest(specs) AS spec, unnest(many_combos) AS combo,
                 unnest(many_queues) AS queue, unnest(delays) AS delay, unnest(expires) AS expire,
                 unnest(many_leases) AS lease, unnest(many_keeps) AS keep, unnest(many_replies) AS reply) AS i;
    WITH opened AS (
        INSERT INTO millrace.ready (combo, available_at, seq, special)
        SELECT coalesce(i.combo, combos[1]), now + coalesce(i.delay, 0), i.seq, i.expire IS NOT NULL
        FROM (SELECT unnest(seqs) AS seq, unnest(many_combos) AS combo, unnest(delays) AS delay,
                     unnest(expires) AS expire) AS i
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

-- Fast-path calls that also notify other processes, in the same round trip. NOTIFY runs in its own transaction after the
-- commit and does not wait for the disk. Inside the first transaction, it would serialize all commits of the database.
CREATE OR REPLACE PROCEDURE millrace.enqueue_and_tell(
    INOUT seqs bigint[], given bigint, ids text[], specs bytea[], combos integer[], queues integer[], delays bigint[],
    expires bigint[], leases bigint[], keeps bigint[], replies text[], drawn bigint[], channel text, word text
) LANGUAGE plpgsql AS $$
DECLARE
    sent text;
BEGIN
    seqs := millrace.enqueue_plain(given, ids, specs, combos, queues, delays, expires, leases, keeps, replies,
                                   drawn);
    COMMIT;
    IF seqs IS NOT NULL THEN
        sent := pg_notify(channel, word);
    END IF;
END $$;
