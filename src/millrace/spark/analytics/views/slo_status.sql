-- slo_status: one row per objective: the error budget of the last 28 days, burn rates, and whether they alert.
-- The error budget is the share of jobs that may miss the objective: 1 - target. budget_left is 1 if none of it is used,
-- and negative if more was missed than allowed. A burn rate of 1 uses exactly the budget. The alerts are those of the
-- SRE workbook: a long and a short window must both burn faster than the threshold, so that an alert is about something
-- that lasts, and ends when it ends. A single late job never alerts.
WITH counted AS (
    SELECT
        task,
        measure,
        within_ms,
        target,
        SUM(jobs) AS jobs,
        SUM(missed) AS missed,
        SUM(CASE WHEN age < 1 THEN jobs ELSE 0 END) AS jobs_5m,
        SUM(CASE WHEN age < 1 THEN missed ELSE 0 END) AS missed_5m,
        SUM(CASE WHEN age < 6 THEN jobs ELSE 0 END) AS jobs_30m,
        SUM(CASE WHEN age < 6 THEN missed ELSE 0 END) AS missed_30m,
        SUM(CASE WHEN age < 12 THEN jobs ELSE 0 END) AS jobs_1h,
        SUM(CASE WHEN age < 12 THEN missed ELSE 0 END) AS missed_1h,
        SUM(CASE WHEN age < 72 THEN jobs ELSE 0 END) AS jobs_6h,
        SUM(CASE WHEN age < 72 THEN missed ELSE 0 END) AS missed_6h,
        SUM(CASE WHEN age < 864 THEN jobs ELSE 0 END) AS jobs_3d,
        SUM(CASE WHEN age < 864 THEN missed ELSE 0 END) AS missed_3d
    FROM slo_counts
    WHERE age < 8064
    GROUP BY task, measure, within_ms, target
),
burning AS (
    SELECT
        task,
        measure,
        within_ms,
        target,
        jobs,
        missed,
        1 - CAST(missed AS DOUBLE) / jobs AS kept_share,
        1 - CAST(missed AS DOUBLE) / (jobs * (1 - target)) AS budget_left,
        CAST(missed_5m AS DOUBLE) / (NULLIF(jobs_5m, 0) * (1 - target)) AS burn_5m,
        CAST(missed_30m AS DOUBLE) / (NULLIF(jobs_30m, 0) * (1 - target)) AS burn_30m,
        CAST(missed_1h AS DOUBLE) / (NULLIF(jobs_1h, 0) * (1 - target)) AS burn_1h,
        CAST(missed_6h AS DOUBLE) / (NULLIF(jobs_6h, 0) * (1 - target)) AS burn_6h,
        CAST(missed_3d AS DOUBLE) / (NULLIF(jobs_3d, 0) * (1 - target)) AS burn_3d,
        missed_1h,
        missed_6h,
        missed_3d
    FROM counted
)
SELECT
    task,
    measure,
    within_ms,
    target,
    jobs,
    missed,
    kept_share,
    budget_left,
    burn_5m,
    burn_30m,
    burn_1h,
    burn_6h,
    burn_3d,
    CASE
        WHEN burn_1h > 14.4 AND burn_5m > 14.4 AND missed_1h > 1 THEN 'page'
        WHEN burn_6h > 6 AND burn_30m > 6 AND missed_6h > 1 THEN 'page'
        WHEN burn_3d > 1 AND burn_6h > 1 AND missed_3d > 1 THEN 'ticket'
    END AS alert
FROM burning
