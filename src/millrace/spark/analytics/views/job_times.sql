-- job_times: when each job was due, first claimed and finished, in milliseconds since 1970.
-- A job is due after its enqueue and its delay, and, if it waits for parents, after it was unblocked. due_ms is null if
-- the lake does not have the enqueue; first_seen_ms is the job's oldest event.
WITH due AS (
    SELECT
        seq,
        MAX(CASE WHEN kind = 'enqueued' THEN epoch_ms("at") + COALESCE(delay_ms, 0) END) AS enqueued_ms,
        MAX(CASE WHEN kind = 'unblocked' THEN epoch_ms("at") END) AS unblocked_ms
    FROM events
    WHERE kind IN ('enqueued', 'unblocked')
    GROUP BY seq
)
SELECT
    j.seq,
    j.job,
    j.queue,
    j.task,
    j.state,
    CASE
        WHEN d.unblocked_ms > d.enqueued_ms THEN d.unblocked_ms
        ELSE COALESCE(d.enqueued_ms, epoch_ms(j.enqueued_at))
    END AS due_ms,
    epoch_ms(j.first_claimed_at) AS started_ms,
    epoch_ms(j.finished_at) AS finished_ms,
    epoch_ms(j.oldest_at) AS first_seen_ms
FROM jobs j
LEFT JOIN due d ON d.seq = j.seq
