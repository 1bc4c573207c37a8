-- upkeep.sql: jobs that are due for upkeep, and the counters of queues. Rules for all functions: see steps.sql.

-- Jobs that are due for upkeep: 1 ended jobs by (finished_at, seq), 2 expired results by (result_until, seq).
-- Ended jobs that are kept for their children are left out (is_kept_for_children of domain/job.py): the literal is the field
-- has_dependents in `extra`, when it is true.
-- A row of the agenda is a hint: it counts only if the job has the same time. Rows without such a job are deleted.
CREATE OR REPLACE FUNCTION millrace.on_agenda(wanted smallint, of_queue integer, before bigint, most integer)
RETURNS TABLE (at bigint, seq bigint) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    row record;
    valid bigint[];
    found_at bigint[] := '{}';
    found_seq bigint[] := '{}';
BEGIN
    FOR row IN SELECT a.id, a.at, a.seqs FROM millrace.agenda AS a
               WHERE a.kind = wanted AND a.queue = of_queue AND a.at <= before ORDER BY a.at, a.id LOOP
        EXIT WHEN cardinality(found_seq) >= most AND row.at > found_at[cardinality(found_at)];
        valid := ARRAY(SELECT j.seq FROM millrace.job AS j WHERE j.seq = ANY (row.seqs)
                       AND CASE wanted WHEN 1 THEN j.finished_at = row.at AND j.state IN (2, 4)
                                       ELSE j.result_until = row.at END);
        IF cardinality(valid) = 0 THEN
            DELETE FROM millrace.agenda AS a WHERE a.id = row.id;
            CONTINUE;
        END IF;
        IF wanted = 1 THEN
            valid := ARRAY(SELECT j.seq FROM millrace.job AS j WHERE j.seq = ANY (valid)
                           AND (j.result_until IS NULL OR j.extra IS NULL
                                OR position('\xae6861735f646570656e64656e7473c3'::bytea IN j.extra) = 0));
        END IF;
        IF cardinality(valid) > 0 THEN
            found_seq := found_seq || valid;
            found_at := found_at || array_fill(row.at, ARRAY[cardinality(valid)]);
        END IF;
    END LOOP;
    RETURN QUERY SELECT DISTINCT f.at, f.seq FROM unnest(found_at, found_seq) AS f (at, seq) ORDER BY 1, 2 LIMIT most;
END $$;

-- Add the tally to the counters of the queues.
CREATE OR REPLACE FUNCTION millrace.fold_tally() RETURNS void LANGUAGE sql VOLATILE AS $$
    WITH gone AS (DELETE FROM millrace.tally RETURNING *), total AS (
        SELECT queue, sum(waiting) AS waiting, sum(running) AS running, sum(completed) AS completed, sum(dead) AS dead,
               sum(cancelled) AS cancelled, sum(blocked) AS blocked, sum(archived) AS archived,
               sum(archived_dead) AS archived_dead, sum(live) AS live, sum(processed) AS processed, sum(died) AS died,
               sum(taken) AS taken
        FROM gone GROUP BY queue
    )
    UPDATE millrace.queue AS q
    SET waiting = q.waiting + t.waiting, running = q.running + t.running, completed = q.completed + t.completed,
        dead = q.dead + t.dead, cancelled = q.cancelled + t.cancelled, blocked = q.blocked + t.blocked,
        archived = q.archived + t.archived, archived_dead = q.archived_dead + t.archived_dead, live = q.live + t.live,
        processed = q.processed + t.processed, died = q.died + t.died, taken = q.taken + t.taken
    FROM total AS t WHERE q.id = t.queue
$$;
