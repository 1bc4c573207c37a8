-- slo_jobs: one row per objective and job that has kept or missed it, at the time when this was decided.
-- kept: at the first claim or at the completion, if this was in time. Missed: when the time was over, even if the job is
-- still open, or when the job died before that. A job that was cancelled in time counts for nothing.
WITH timed AS (
    SELECT
        o.task,
        o.measure,
        o.within_ms,
        o.target,
        j.seq,
        j.state,
        j.finished_ms,
        j.due_ms + o.within_ms AS limit_ms,
        CASE
            WHEN o.measure = 'start' THEN j.started_ms
            WHEN j.state = 'completed' THEN j.finished_ms
        END AS done_ms,
        p.until_ms
    FROM objectives o
    JOIN job_times j ON j.task = o.task
    CROSS JOIN analytics_period p
    WHERE j.due_ms IS NOT NULL
),
decided AS (
    SELECT
        task,
        measure,
        within_ms,
        target,
        seq,
        CASE WHEN done_ms <= limit_ms THEN 1 ELSE 0 END AS kept,
        CASE
            WHEN done_ms <= limit_ms THEN done_ms
            WHEN finished_ms <= limit_ms AND state = 'dead' THEN finished_ms
            WHEN finished_ms <= limit_ms AND state = 'cancelled' THEN NULL
            ELSE limit_ms
        END AS decided_ms,
        until_ms
    FROM timed
)
SELECT task, measure, within_ms, target, seq, kept, decided_ms, until_ms
FROM decided
WHERE decided_ms < until_ms
