"""Makes the SQL views temporary views of a Spark session."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.domain.errors import InvalidInput
from millrace.spark.analytics.views import SETTINGS, TABLES, VIEWS, Objective, select
from millrace.spark.lake import Lake
from millrace.spark.lake.instants import DAY, HOUR, MINUTE, millis

PAST = 28 * DAY  # what slo_status and failure_trends look back
SLACK = 7 * DAY  # for jobs that were due before that
RATES = 6 * HOUR  # from which backlog_forecast takes its rates


def register_views(
    lake: Lake,
    objectives: Sequence[Objective] = (),
    *,
    until: datetime | None = None,
    length: timedelta = timedelta(days=7),
    prefix: str = "",
) -> None:
    """Register the lake's tables and the analytics views as temporary views of the lake's Spark session, with `prefix`
    before each name. They show the lake as it is now; after `lake.refresh()`, register them again.

    The analysed period ends at `until` (default: after the newest event) and has the given length. It is compared with
    the time before it.
    """
    until_ms = _end(lake) if until is None else _milliseconds(until)
    length_ms = length // timedelta(milliseconds=1)
    if length_ms < HOUR:
        raise InvalidInput(f"length must be an hour or more, not {length}")
    first = datetime.fromtimestamp(max(0, until_ms - length_ms - max(length_ms, PAST) - SLACK) / 1000, UTC)
    frames = {
        "events": lake.events(since=first),
        "attempts": lake.attempts(since=first),
        "jobs": lake.jobs(),
        "groups": lake.groups(),
        "analytics_period": lake.spark.sql(
            "SELECT CAST(:until AS BIGINT) AS until_ms, CAST(:length AS BIGINT) AS length_ms, "
            "CAST(:rate AS BIGINT) AS rate_ms",
            args={"until": until_ms, "length": length_ms, "rate": RATES},
        ),
        "objectives": _objectives(lake, objectives),
    }
    for name in (*TABLES, *SETTINGS):
        frames[name].createOrReplaceTempView(prefix + name)
    for name in VIEWS:
        lake.spark.sql(select(name, "spark", prefix)).createOrReplaceTempView(prefix + name)


def drop_views(lake: Lake, prefix: str) -> None:
    """Drop what `register_views` has registered with this prefix."""
    for name in (*VIEWS, *SETTINGS, *TABLES):
        lake.spark.catalog.dropTempView(prefix + name)


def _objectives(lake: Lake, objectives: Sequence[Objective]) -> DataFrame:
    rows = [(one.task, one.measure, one.within_ms, one.target) for one in objectives]
    return lake.spark.createDataFrame(rows, "task string, measure string, within_ms bigint, target double")


def _end(lake: Lake) -> int:
    """Return the end of the minute of the newest event, in milliseconds; 0 if there are no events."""
    newest = lake.rows("throughput", None, None).agg(F.max(millis("minute"))).collect()[0][0]
    return 0 if newest is None else int(newest) + MINUTE


def _milliseconds(at: datetime) -> int:
    return int((at.replace(tzinfo=UTC) if at.tzinfo is None else at).timestamp() * 1000)
