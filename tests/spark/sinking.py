"""What the tests of the sink share: sinks without Spark, rows made by hand, and what is in a store afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millrace.domain.job import Job, Spec
from millrace.spark.options import read_options
from millrace.spark.sink.ids import Scope
from millrace.spark.sink.plan import read_plan
from millrace.spark.sink.rows import Made, RowMaker
from millrace.spark.sink.tasks import Targets
from millrace.spark.sink.writer import Sink, writer
from tests.narrowing import checked_cast
from tests.spark.conftest import Place
from tests.spark.filled import all_jobs

WHERE = "s3://bucket/prefix"  # of makers, which open nothing
APP = "tests.spark.sink_app:app"


@lru_cache
def schema(ddl: str) -> StructType:
    """Only Spark reads this notation, so a session must be there."""
    return checked_cast(StructType, StructType.fromDDL(ddl))


def rows(ddl: str, *values: tuple[Any, ...], zone: str = "UTC") -> pa.RecordBatch:
    """As Spark would hand them over."""
    arrow = to_arrow_schema(schema(ddl), timezone=zone)
    columns = list(zip(*values, strict=True)) if values else [()] * len(arrow)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)]
    return pa.record_batch(arrays, schema=arrow)


def maker(ddl: str, write: str = "w", partition: int = 0, **given: Any) -> RowMaker:
    options = read_options({"url": WHERE, "task": "send", **{name: str(one) for name, one in given.items()}}, "write")
    plan = read_plan(options, schema(ddl))
    return RowMaker(options, plan, Scope(write, partition), Targets(options, plan))


def made(ddl: str, *values: tuple[Any, ...], now: int = 0, zone: str = "UTC", **given: Any) -> Made:
    return maker(ddl, **given).make(rows(ddl, *values, zone=zone), now)


def payloads(specs: Iterable[Spec]) -> list[Any]:
    return [msgspec.json.decode(spec.payload) for spec in specs]


def sink(place: Place, ddl: str, **given: Any) -> Sink:
    """As the driver makes it; `Sink.write` is what a task does."""
    options = {"url": place.url, "task": "send", **{name: str(one) for name, one in given.items()}}
    return writer(options, schema(ddl), False).sink


def jobs_in(place: Place) -> list[Job]:
    with place.open() as found:
        return found.run(all_jobs(found.store))


def numbers(jobs: Sequence[Job]) -> list[int]:
    """What the payloads hold under `n`: one for each job."""
    return sorted(one["n"] for one in payloads(job.spec for job in jobs))
