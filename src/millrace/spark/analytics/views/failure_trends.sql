-- failure_trends: the causes of failed runs in the period: which are new, and which are much more frequent than before.
-- The past of a cause is the 28 days before the period (or the length of the period, if that is longer).
--
-- Jobs per day are counted, not runs, because the retries of a job fail for the same cause. Frequency is jobs per run of
-- the task, so more traffic alone is no trend. A cause is new if its task has a past without it. It is rising if it is at
-- least twice as frequent as before, and p_value is at most 0.01: a test of two Poisson rates (the square roots of the
-- counts, which have the same variance at every rate), with the variance multiplied by how much more than a Poisson count
-- the cause varied from day to day in its past. p_value is one-sided and multiplied by the number of causes (Bonferroni).
WITH placed AS (
    SELECT
        r.task,
        r.seq,
        r.job,
        r.error_fingerprint,
        r.error_type,
        r.error_message,
        r.ended_ms,
        CASE WHEN r.ended_ms >= p.until_ms - p.length_ms THEN 1 ELSE 0 END AS is_now,
        FLOOR(CAST(p.until_ms - 1 - r.ended_ms AS DOUBLE) / 86400000) AS day
    FROM run_times r
    CROSS JOIN analytics_period p
    WHERE r.ended_ms < p.until_ms
        AND r.ended_ms >= p.until_ms - p.length_ms - GREATEST(p.length_ms, CAST(2419200000 AS BIGINT))
),
-- One row for each cause and day, and one for the runs without an error.
days AS (
    SELECT
        task,
        error_fingerprint,
        is_now,
        day,
        CAST(COUNT(*) AS DOUBLE) AS runs,
        CAST(COUNT(DISTINCT CASE WHEN error_fingerprint IS NOT NULL THEN seq END) AS DOUBLE) AS jobs,
        MIN(ended_ms) AS first_ms,
        MAX(ended_ms) AS last_ms,
        MIN_BY(error_type, ended_ms) AS error_type,
        MIN_BY(error_message, ended_ms) AS sample_message,
        MIN_BY(job, ended_ms) AS sample_job
    FROM placed
    GROUP BY task, error_fingerprint, is_now, day
),
exposed AS (
    SELECT
        days.*,
        SUM(runs) OVER (PARTITION BY task, is_now, day) AS day_runs,
        SUM(CASE WHEN is_now = 1 THEN runs ELSE 0 END) OVER (PARTITION BY task) AS now_runs,
        SUM(CASE WHEN is_now = 0 THEN runs ELSE 0 END) OVER (PARTITION BY task) AS past_runs,
        CASE WHEN ROW_NUMBER() OVER (PARTITION BY task, is_now, day ORDER BY error_fingerprint) = 1 THEN 1 - is_now
            ELSE 0 END AS is_past_day
    FROM days
),
counted AS (
    SELECT exposed.*, SUM(is_past_day) OVER (PARTITION BY task) AS past_days
    FROM exposed
),
causes AS (
    SELECT
        task,
        error_fingerprint,
        now_runs,
        past_runs,
        past_days,
        now_runs / NULLIF(past_runs, 0) AS ratio,
        SUM(CASE WHEN is_now = 1 THEN jobs ELSE 0 END) AS jobs,
        SUM(CASE WHEN is_now = 0 THEN jobs ELSE 0 END) AS past_jobs,
        SUM(CASE WHEN is_now = 0 THEN jobs * jobs / day_runs ELSE 0 END) AS squares,
        MIN(CASE WHEN is_now = 1 THEN first_ms END) AS first_ms,
        MAX(CASE WHEN is_now = 1 THEN last_ms END) AS last_ms,
        MIN_BY(error_type, first_ms) FILTER (WHERE is_now = 1) AS error_type,
        MIN_BY(sample_message, first_ms) FILTER (WHERE is_now = 1) AS sample_message,
        MIN_BY(sample_job, first_ms) FILTER (WHERE is_now = 1) AS sample_job
    FROM counted
    WHERE error_fingerprint IS NOT NULL
    GROUP BY task, error_fingerprint, now_runs, past_runs, past_days
),
-- spread is the variance of the daily counts, divided by that of Poisson counts; at least 1.
compared AS (
    SELECT
        causes.*,
        CASE
            WHEN past_days > 1 AND past_jobs > 0 AND squares * past_runs / NULLIF(past_jobs, 0) - past_jobs > past_days - 1
                THEN (squares * past_runs / NULLIF(past_jobs, 0) - past_jobs) / (past_days - 1)
            ELSE 1.0E0
        END AS spread
    FROM causes
    WHERE jobs > 0
),
scored AS (
    SELECT
        compared.*,
        COUNT(*) OVER () AS causes,
        2 * (SQRT(jobs + 0.375E0) - SQRT((past_jobs + 0.375E0) * ratio)) / SQRT(spread * (1 + ratio)) AS z
    FROM compared
),
tested AS (
    SELECT
        tails.*,
        CASE
            WHEN z <= 0 THEN 1.0E0
            ELSE EXP(-z * z / 2) * t / 2
                * (2.54829592E-1 + t * (-2.84496736E-1 + t * (1.421413741E0 + t * (-1.453152027E0 + t * 1.061405429E0))))
        END * causes AS p
    FROM (SELECT scored.*, 1 / (1 + 3.275911E-1 * ABS(z) / SQRT(2.0E0)) AS t FROM scored) AS tails
),
judged AS (
    SELECT
        tested.*,
        jobs / NULLIF(past_jobs * ratio, 0) AS times_as_frequent,
        CASE WHEN p < 1 THEN p WHEN past_runs > 0 THEN 1.0E0 END AS p_value
    FROM tested
)
SELECT
    task,
    error_fingerprint AS fingerprint,
    error_type,
    sample_message,
    sample_job,
    make_timestamp_ms(first_ms) AS first_at,
    make_timestamp_ms(last_ms) AS last_at,
    CAST(jobs AS BIGINT) AS jobs,
    CAST(past_jobs AS BIGINT) AS past_jobs,
    past_jobs * ratio AS expected_jobs,
    times_as_frequent,
    CASE WHEN past_jobs > 0 THEN p_value END AS p_value,
    CASE
        WHEN past_runs = 0 THEN NULL
        WHEN past_jobs = 0 THEN 'new'
        WHEN p_value <= 0.01 AND times_as_frequent >= 2 THEN 'rising'
        ELSE 'usual'
    END AS trend
FROM judged
