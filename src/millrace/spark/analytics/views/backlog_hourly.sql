-- backlog_hourly: backlog_hours, with the number of jobs that were open at the end of each hour.
SELECT
    make_timestamp_ms(hour_ms) AS hour,
    queue,
    arrived,
    finished,
    SUM(arrived - finished) OVER (
        PARTITION BY queue ORDER BY hour_ms ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS open_jobs
FROM backlog_hours
