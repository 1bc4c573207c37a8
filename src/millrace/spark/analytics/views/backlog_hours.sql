-- backlog_hours: how many jobs became due and finished in each hour.
-- A job is open from the time when it is due until it is completed, dead or cancelled; also while it runs, or waits for
-- a retry. A job that was cancelled before it was due is not counted. Hours in which nothing changed have no row.
WITH known AS (
    SELECT j.queue, COALESCE(j.due_ms, j.first_seen_ms) AS due_ms, j.finished_ms, p.until_ms
    FROM job_times j
    CROSS JOIN analytics_period p
),
changes AS (
    SELECT
        k.queue,
        CASE WHEN s.is_end = 1 THEN k.finished_ms ELSE k.due_ms END AS at_ms,
        1 - s.is_end AS arrived,
        s.is_end AS finished,
        k.until_ms
    FROM known k
    CROSS JOIN (SELECT 0 AS is_end UNION ALL SELECT 1 AS is_end) AS s
    WHERE k.due_ms < k.until_ms AND (k.finished_ms IS NULL OR k.finished_ms >= k.due_ms)
)
SELECT queue, at_ms - at_ms % 3600000 AS hour_ms, SUM(arrived) AS arrived, SUM(finished) AS finished
FROM changes
WHERE at_ms < until_ms
GROUP BY queue, at_ms - at_ms % 3600000
