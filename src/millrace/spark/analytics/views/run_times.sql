-- run_times: the ended runs, with the time for which each handler was busy.
-- busy_ms is the duration of the handler by its worker's clock. If its worker was lost, it is the time from the claim to
-- the first reclaim; if the duration is not known, the time from the claim to the end.
SELECT
    seq,
    job,
    queue,
    task,
    outcome,
    error_type,
    error_message,
    error_fingerprint,
    epoch_ms(ended_at) AS ended_ms,
    GREATEST(
        CAST(0 AS BIGINT),
        COALESCE(epoch_ms(reclaimed_at) - epoch_ms(claimed_at), duration_ms, run_ms, CAST(0 AS BIGINT))
    ) AS busy_ms
FROM attempts
