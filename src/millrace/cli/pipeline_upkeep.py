"""What the commands of upkeep share: stores that need it, and a look at how far Spark has come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.cli.pipeline_lake import require_url
from millrace.cli.place import OBJECT_SCHEMES, scheme_of
from millrace.cli.session import Session
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
LOOK = 0.5  # seconds


def object_url(session: Session, why: str) -> str:
    """The URL of a bucket or a directory; `why` says why others need no such thing."""
    url = require_url(session)
    if scheme_of(url) not in OBJECT_SCHEMES:
        raise InvalidInput(f"this is for stores on s3:// and file://. {scheme_of(url)}:// does not need it: {why}")
    from millrace.spark import require_spark

    require_spark()
    from millrace.spark.bulk import store_options
    from millrace.spark.open import url_from

    return url_from(store_options(url))  # a place that is not there shows before Spark starts


async def watched(session: Session, spark: SparkSession, what: str, work: Callable[[], T]) -> T:
    """Do it in a thread, and on a terminal show how many tasks have come back."""
    going = asyncio.ensure_future(asyncio.to_thread(work))
    with session.output.progress(what) as tell:
        while not going.done():
            await asyncio.wait([going], timeout=LOOK)
            tell(_tasks_done(spark))
    return going.result()


def _tasks_done(spark: Any) -> int:
    """Of the stage that runs; a session elsewhere (sc://) does not say."""
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        return 0
    tracker = spark.sparkContext.statusTracker()
    found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(info.numCompletedTasks for info in found if info is not None)
