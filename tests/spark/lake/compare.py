"""Two lakes say the same when every table and every analysis of one equals that of the other, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from millrace.spark.lake import Lake

TABLES = ("events", "attempts", "jobs", "open_runs", "groups")
ANALYSES = ("throughput", "durations", "slowest", "errors", "errors_over_time", "worker_use", "fairness")


def rows(found: DataFrame) -> list[tuple[Any, ...]]:
    """The rows, in an order that does not depend on Spark. Which take copied an event is left out."""
    return sorted((tuple(_rounded(value) for value in row) for row in found.drop("take").collect()), key=repr)


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def told(lake: Lake, names: Sequence[str] = (*TABLES, *ANALYSES)) -> dict[str, list[tuple[Any, ...]]]:
    return {name: rows(getattr(lake, name)()) for name in names}
