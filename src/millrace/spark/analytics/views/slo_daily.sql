-- slo_daily: the share of jobs that kept each objective, by day in UTC.
SELECT
    make_timestamp_ms(day_ms) AS day,
    task,
    measure,
    within_ms,
    target,
    jobs,
    missed,
    1 - CAST(missed AS DOUBLE) / jobs AS kept_share
FROM (
    SELECT
        day_ms,
        task,
        measure,
        within_ms,
        target,
        SUM(jobs) AS jobs,
        SUM(missed) AS missed
    FROM slo_counts
    GROUP BY day_ms, task, measure, within_ms, target
) AS days
