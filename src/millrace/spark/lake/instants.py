"""Instants as Spark columns, in UTC regardless of the session's time zone.

They are computed from milliseconds since 1970, because Spark's own date functions depend on the setting
`spark.sql.session.timeZone`.
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
    """Return the start of the interval of `step` milliseconds that contains the instant. Intervals are counted from
    1970.
    """
    return milliseconds - F.pmod(milliseconds, F.lit(step))


def day_of(milliseconds: Column) -> Column:
    return F.date_from_unix_date(F.floor(milliseconds / DAY).cast("int"))
