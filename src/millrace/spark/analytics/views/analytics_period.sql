-- analytics_period: one row, the settings of the other views. To analyse another time, replace this view.
-- until_ms: the end of the analysed period, in milliseconds since 1970; here the newest event.
-- length_ms: the length of the period, which is compared with the time of equal length before it.
-- rate_ms: the time before until_ms from which backlog_forecast takes its rates.
SELECT
    MAX(epoch_ms("at")) + 1 AS until_ms,
    CAST(604800000 AS BIGINT) AS length_ms,
    CAST(21600000 AS BIGINT) AS rate_ms
FROM events
