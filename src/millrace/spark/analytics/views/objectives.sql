-- objectives: one row per service level objective; empty until you replace this view.
-- measure: 'start' (from due to the first claim) or 'finish' (from due to completed).
-- within_ms: the time that a job may take. target: the share of jobs that must keep it, below 1.
SELECT
    CAST(NULL AS VARCHAR(255)) AS task,
    CAST(NULL AS VARCHAR(255)) AS measure,
    CAST(NULL AS BIGINT) AS within_ms,
    CAST(NULL AS DOUBLE) AS target
WHERE 1 = 0
