-- backlog_forecast: for each queue, how many jobs are open, and when there are none left if jobs go on to arrive and to
-- finish at the rates of the last hours (rate_ms of analytics_period, from the full hour before).
-- Rates of a few hours are uncertain. The counts are taken as Poisson counts, so the difference between finished and
-- arrived is known to about twice the root of their sum. If it may be 0, trend is 'steady' and there is no forecast;
-- otherwise earliest_empty_at and latest_empty_at are the bounds that follow from it. Daily and weekly rhythms are not
-- part of the forecast. latest_empty_at is the cautious answer.
WITH known AS (
    SELECT
        b.queue,
        b.hour_ms,
        b.arrived,
        b.finished,
        p.until_ms,
        p.until_ms - p.rate_ms - (p.until_ms - p.rate_ms) % 3600000 AS since_ms
    FROM backlog_hours b
    CROSS JOIN analytics_period p
),
counted AS (
    SELECT
        queue,
        until_ms,
        CASE WHEN MIN(hour_ms) > since_ms THEN MIN(hour_ms) ELSE since_ms END AS since_ms,
        SUM(arrived - finished) AS open_jobs,
        SUM(CASE WHEN hour_ms >= since_ms THEN arrived ELSE 0 END) AS arrived,
        SUM(CASE WHEN hour_ms >= since_ms THEN finished ELSE 0 END) AS finished
    FROM known
    GROUP BY queue, until_ms, since_ms
),
bounds AS (
    SELECT
        queue,
        until_ms,
        CAST(until_ms - since_ms AS DOUBLE) AS rate_ms,
        open_jobs,
        arrived,
        finished,
        CAST(finished - arrived AS DOUBLE) AS gained,
        2 * SQRT(CAST(finished + arrived AS DOUBLE)) AS doubt
    FROM counted
),
judged AS (
    SELECT
        queue,
        until_ms,
        rate_ms,
        open_jobs,
        arrived,
        finished,
        gained,
        doubt,
        CASE
            WHEN open_jobs = 0 THEN 'empty'
            WHEN gained > doubt THEN 'draining'
            WHEN gained < -doubt THEN 'growing'
            ELSE 'steady'
        END AS trend
    FROM bounds
),
ends AS (
    SELECT
        queue,
        open_jobs,
        arrived * 3600000 / rate_ms AS arrived_per_hour,
        finished * 3600000 / rate_ms AS finished_per_hour,
        trend,
        CASE WHEN trend = 'draining' THEN until_ms + CAST(open_jobs * rate_ms / gained AS BIGINT) END AS empty_ms,
        CASE WHEN trend = 'draining' THEN until_ms + CAST(open_jobs * rate_ms / (gained + doubt) AS BIGINT) END
            AS earliest_ms,
        CASE WHEN trend = 'draining' THEN until_ms + CAST(open_jobs * rate_ms / (gained - doubt) AS BIGINT) END
            AS latest_ms
    FROM judged
)
SELECT
    queue,
    open_jobs,
    arrived_per_hour,
    finished_per_hour,
    trend,
    make_timestamp_ms(empty_ms) AS empty_at,
    make_timestamp_ms(earliest_ms) AS earliest_empty_at,
    make_timestamp_ms(latest_ms) AS latest_empty_at
FROM ends
