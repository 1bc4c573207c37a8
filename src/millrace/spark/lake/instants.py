"""Instants as columns, by UTC whatever the session's time zone is.

Spark's own date functions follow `spark.sql.session.timeZone`, which is the user's. Milliseconds since 1970 do not.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def millis(instant: Column | str) -> Column:
    return F.unix_millis(F.col(instant) if isinstance(instant, str) else instant)


def instant(milliseconds: Column | str) -> Column:
    return F.timestamp_millis(F.col(milliseconds) if isinstance(milliseconds, str) else milliseconds)


def begin_of(milliseconds: Column, step: int) -> Column:
    """The beginning of the minute, hour or day that an instant in milliseconds lies in, in milliseconds."""
    return milliseconds - F.pmod(milliseconds, F.lit(step))


def day_of(milliseconds: Column) -> Column:
    return F.date_from_unix_date(F.floor(milliseconds / DAY).cast("int"))
