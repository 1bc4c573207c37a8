-- task_trends: which tasks became slower or faster: completed runs of the period, compared with the period before it.
--
-- slower_share is the Mann-Whitney statistic: the probability that a run of this period takes longer than a run of the
-- previous one; 0.5 if nothing changed. It uses ranks only, so a few very long runs do not sway it. The runs of one day
-- resemble each other, so they do not count as independent: the period is divided into seven blocks (for a week, days),
-- each block is paired with the same block of the previous period, and the variance of slower_share is estimated from
-- the differences between these pairs (t test, six degrees of freedom). It is never below the variance for
-- independent runs. p_value is two-sided and multiplied by the number of tasks that are compared (Bonferroni).
-- A task is slower or faster if p_value is at most 0.05, and the median or the 95th percentile differs by 10 %.
--
-- Ranks and percentiles come from buckets that grow by 4 %. A task is compared if both periods have at least 20 runs
-- in at least five blocks. The t value is converted to a normal one by Wallace's formula, and the normal tail is formula
-- 7.1.26 of Abramowitz and Stegun.
WITH runs AS (
    SELECT
        r.task,
        CASE WHEN r.ended_ms >= p.until_ms - p.length_ms THEN 1 ELSE 0 END AS is_now,
        FLOOR(
            CAST((p.until_ms - 1 - r.ended_ms) % p.length_ms AS DOUBLE)
            / GREATEST(CAST(3600000 AS BIGINT), CAST(FLOOR(CAST(p.length_ms AS DOUBLE) / 25200000) * 3600000 AS BIGINT))
        ) AS block,
        FLOOR(LN(r.busy_ms + 1) / LN(1.04E0)) AS bucket
    FROM run_times r
    CROSS JOIN analytics_period p
    WHERE r.outcome = 'completed'
        AND r.ended_ms >= p.until_ms - 2 * p.length_ms
        AND r.ended_ms < p.until_ms
),
counted AS (
    SELECT task, block, bucket, SUM(is_now) AS now_runs, SUM(1 - is_now) AS before_runs
    FROM runs
    GROUP BY task, block, bucket
),
-- RANGE: a row counts with the rows of the other blocks that have the same bucket.
ranked AS (
    SELECT
        task,
        block,
        bucket,
        now_runs,
        before_runs,
        CAST(SUM(now_runs) OVER (PARTITION BY task, bucket) AS DOUBLE) AS now_equal,
        CAST(SUM(before_runs) OVER (PARTITION BY task, bucket) AS DOUBLE) AS before_equal,
        CAST(
            SUM(now_runs) OVER (
                PARTITION BY task ORDER BY bucket RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) AS DOUBLE
        ) AS now_upto,
        CAST(
            SUM(before_runs) OVER (
                PARTITION BY task ORDER BY bucket RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) AS DOUBLE
        ) AS before_upto,
        CAST(SUM(now_runs) OVER (PARTITION BY task) AS DOUBLE) AS now_all,
        CAST(SUM(before_runs) OVER (PARTITION BY task) AS DOUBLE) AS before_all
    FROM counted
),
-- now_place: for a run of this period, the share of previous runs that are shorter. before_place: for a previous run, the
-- share of runs of this period that are longer. Runs in the same bucket count half.
placed AS (
    SELECT
        task,
        block,
        bucket,
        now_runs,
        before_runs,
        now_upto,
        before_upto,
        now_all,
        before_all,
        (before_upto - before_equal / 2) / before_all AS now_place,
        1 - (now_upto - now_equal / 2) / now_all AS before_place
    FROM ranked
    WHERE now_all >= 20 AND before_all >= 20
),
summed AS (
    SELECT
        task,
        block,
        bucket,
        now_runs,
        before_runs,
        now_upto,
        before_upto,
        now_all,
        before_all,
        now_place,
        before_place,
        SUM(now_runs * now_place) OVER (PARTITION BY task) / now_all AS slower_share
    FROM placed
),
blocks AS (
    SELECT
        task,
        block,
        now_all,
        before_all,
        slower_share,
        SUM(now_runs) AS now_runs,
        SUM(before_runs) AS before_runs,
        SUM(now_runs * (now_place - slower_share)) / now_all
        + SUM(before_runs * (before_place - slower_share)) / before_all AS deviation,
        MIN(CASE WHEN now_upto >= 0.5E0 * now_all THEN bucket END) AS p50_now,
        MIN(CASE WHEN before_upto >= 0.5E0 * before_all THEN bucket END) AS p50_before,
        MIN(CASE WHEN now_upto >= 0.95E0 * now_all THEN bucket END) AS p95_now,
        MIN(CASE WHEN before_upto >= 0.95E0 * before_all THEN bucket END) AS p95_before
    FROM summed
    GROUP BY task, block, now_all, before_all, slower_share
),
varied AS (
    SELECT
        task,
        now_all,
        before_all,
        slower_share,
        COUNT(*) - 1 AS freedom,
        GREATEST(
            SUM(deviation * deviation) * COUNT(*) / NULLIF(COUNT(*) - 1, 0),
            (now_all + before_all + 1) / (12 * now_all * before_all)
        ) AS variance,
        MIN(p50_now) AS p50_now,
        MIN(p50_before) AS p50_before,
        MIN(p95_now) AS p95_now,
        MIN(p95_before) AS p95_before
    FROM blocks
    GROUP BY task, now_all, before_all, slower_share
    HAVING SUM(CASE WHEN now_runs > 0 THEN 1 ELSE 0 END) >= 5
        AND SUM(CASE WHEN before_runs > 0 THEN 1 ELSE 0 END) >= 5
),
scored AS (
    SELECT
        varied.*,
        COUNT(*) OVER () AS tasks,
        SQRT(freedom * LN(1 + (slower_share - 0.5E0) * (slower_share - 0.5E0) / (variance * freedom)))
        * (8 * freedom + 1) / (8 * freedom + 3) AS z
    FROM varied
),
tested AS (
    SELECT
        tails.*,
        EXP(-z * z / 2) * t
        * (2.54829592E-1 + t * (-2.84496736E-1 + t * (1.421413741E0 + t * (-1.453152027E0 + t * 1.061405429E0))))
        * tasks AS p
    FROM (SELECT scored.*, 1 / (1 + 3.275911E-1 * z / SQRT(2.0E0)) AS t FROM scored) AS tails
),
compared AS (
    SELECT
        task,
        CAST(now_all AS BIGINT) AS runs,
        CAST(before_all AS BIGINT) AS previous_runs,
        POWER(1.04E0, p50_now + 0.5E0) - 1 AS p50_ms,
        POWER(1.04E0, p50_before + 0.5E0) - 1 AS previous_p50_ms,
        POWER(1.04E0, p95_now + 0.5E0) - 1 AS p95_ms,
        POWER(1.04E0, p95_before + 0.5E0) - 1 AS previous_p95_ms,
        slower_share,
        CASE WHEN p < 1 THEN p ELSE 1.0E0 END AS p_value
    FROM tested
)
SELECT
    task,
    runs,
    previous_runs,
    p50_ms,
    previous_p50_ms,
    p95_ms,
    previous_p95_ms,
    slower_share,
    p_value,
    CASE
        WHEN p_value > 0.05 THEN 'steady'
        WHEN slower_share > 0.5 AND (p50_ms >= 1.1 * previous_p50_ms OR p95_ms >= 1.1 * previous_p95_ms) THEN 'slower'
        WHEN slower_share < 0.5 AND (p50_ms * 1.1 <= previous_p50_ms OR p95_ms * 1.1 <= previous_p95_ms) THEN 'faster'
        ELSE 'steady'
    END AS trend
FROM compared
