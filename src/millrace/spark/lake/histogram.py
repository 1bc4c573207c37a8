"""Histograms of durations. The buckets grow by 4 %. The bucket counts of several hours can be added; percentiles
cannot.

A percentile computed from the buckets is within 2 % (or half a millisecond) of the exact one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from millrace.spark.lake.instants import millis

GROWTH = 1.04
PERCENTILES = (50, 90, 95, 99)


def bucket_of(milliseconds: Column) -> Column:
    """Return the number of the bucket for a duration. One millisecond is added, so that 0 ms has a bucket too."""
    return F.floor(F.log(milliseconds + 1) / math.log(GROWTH)).cast("int")


def middle_of(bucket: Column) -> Column:
    return F.round(F.pow(F.lit(GROWTH), bucket + 0.5) - 1).cast("bigint")


def measured(attempts: DataFrame, *of: str) -> DataFrame:
    """Return the waiting and running times of ended runs, as partial rows of a histogram. The columns are ms, those in
    `of`, measure, bucket, runs, total_ms and max_ms.

    `ms` is the time of the claim for a waiting time, and the end of the run for a running time.
    """
    both = [
        attempts.where(F.col(length).isNotNull()).select(
            millis(at).alias("ms"),
            *of,
            F.lit(measure).alias("measure"),
            bucket_of(F.greatest(F.col(length), F.lit(0))).alias("bucket"),
            F.lit(1).cast("bigint").alias("runs"),
            F.greatest(F.col(length), F.lit(0)).alias("total_ms"),
            F.greatest(F.col(length), F.lit(0)).alias("max_ms"),
        )
        for measure, length, at in (("wait", "wait_ms", "claimed_at"), ("run", "run_ms", "ended_at"))
    ]
    return both[0].unionAll(both[1])


def percentiles(counted: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the percentiles for each key. `counted` has one row for each key and bucket, with bucket, runs, total_ms,
    max_ms.
    """
    ordered = Window.partitionBy(*key).orderBy("bucket")
    whole = Window.partitionBy(*key)
    ranked = counted.withColumn("upto", F.sum("runs").over(ordered)).withColumn("of", F.sum("runs").over(whole))
    found = [
        F.least(
            middle_of(F.min(F.when(F.col("upto") >= F.ceil(F.col("of") * F.lit(p) / 100), F.col("bucket")))),
            F.max("max_ms"),
        ).alias(f"p{p}_ms")
        for p in PERCENTILES
    ]
    return ranked.groupBy(*key).agg(
        F.sum("runs").alias("runs"),
        F.sum("total_ms").alias("total_ms"),
        (F.sum("total_ms") / F.sum("runs")).alias("mean_ms"),
        *found,
        F.max("max_ms").alias("max_ms"),
    )
