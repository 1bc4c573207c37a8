-- task_cost: the time for which handlers of each task were busy in the period, and its share of all busy time.
-- failed_ms is the part that was spent on runs that failed.
SELECT
    queue,
    task,
    runs,
    busy_ms,
    failed_ms,
    CAST(busy_ms AS DOUBLE) / NULLIF(SUM(busy_ms) OVER (), 0) AS share
FROM (
    SELECT
        r.queue,
        r.task,
        COUNT(*) AS runs,
        SUM(r.busy_ms) AS busy_ms,
        SUM(CASE WHEN r.outcome IN ('retried', 'buried') THEN r.busy_ms ELSE 0 END) AS failed_ms
    FROM run_times r
    CROSS JOIN analytics_period p
    WHERE r.ended_ms >= p.until_ms - p.length_ms AND r.ended_ms < p.until_ms
    GROUP BY r.queue, r.task
) AS costs
