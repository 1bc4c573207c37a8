-- slo_counts: how many jobs kept and missed each objective, by day and by five minutes. age is the number of whole five
-- minutes between the decision and the end of the period.
SELECT
    task,
    measure,
    within_ms,
    target,
    decided_ms - decided_ms % 86400000 AS day_ms,
    FLOOR(CAST(until_ms - 1 - decided_ms AS DOUBLE) / 300000) AS age,
    COUNT(*) AS jobs,
    SUM(1 - kept) AS missed
FROM slo_jobs
GROUP BY
    task,
    measure,
    within_ms,
    target,
    decided_ms - decided_ms % 86400000,
    FLOOR(CAST(until_ms - 1 - decided_ms AS DOUBLE) / 300000)
