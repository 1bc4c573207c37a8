-- group_cost: the time for which handlers were busy with the jobs of each group in the period, and its share of all busy
-- time. group_name is null for the jobs whose group is not known or that have none.
SELECT
    group_name,
    runs,
    busy_ms,
    failed_ms,
    CAST(busy_ms AS DOUBLE) / NULLIF(SUM(busy_ms) OVER (), 0) AS share
FROM (
    SELECT
        g.group_name,
        COUNT(*) AS runs,
        SUM(r.busy_ms) AS busy_ms,
        SUM(CASE WHEN r.outcome IN ('retried', 'buried') THEN r.busy_ms ELSE 0 END) AS failed_ms
    FROM run_times r
    LEFT JOIN job_groups g ON g.seq = r.seq
    CROSS JOIN analytics_period p
    WHERE r.ended_ms >= p.until_ms - p.length_ms AND r.ended_ms < p.until_ms
    GROUP BY g.group_name
) AS costs
