"""Functions that the maintenance commands share. They check the kind of the store, and show Spark's progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.cli.pipeline.options import require_url
from millrace.cli.session import CommandSession
from millrace.cli.store_url import OBJECT_SCHEMES, scheme_of
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
POLL_INTERVAL = 0.5  # seconds


def object_url(session: CommandSession, why: str) -> str:
    """Return the URL of the configured bucket or directory. Raises InvalidInput for other stores, with the reason `why`
    they need no such maintenance.
    """
    url = require_url(session)
    if scheme_of(url) not in OBJECT_SCHEMES:
        raise InvalidInput(f"this is for stores on s3:// and file://. {scheme_of(url)}:// does not need it: {why}")
    from millrace.spark import require_spark

    require_spark()
    from millrace.spark.bulk import store_options
    from millrace.spark.open import url_from

    return url_from(store_options(url))  # fail before Spark starts if the store does not exist


async def watched(session: CommandSession, spark: SparkSession, what: str, work: Callable[[], T]) -> T:
    """Run `work` in a thread and return its result. Meanwhile, a terminal shows how many Spark tasks are done."""
    going = asyncio.ensure_future(asyncio.to_thread(work))
    with session.output.progress(what) as show:
        while not going.done():
            await asyncio.wait([going], timeout=POLL_INTERVAL)
            show(_tasks_done(spark))
    return going.result()


def _tasks_done(spark: Any) -> int:
    """Return the number of finished tasks in the running stages. Return 0 for a remote session (sc://), which does not
    report this number.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        return 0
    tracker = spark.sparkContext.statusTracker()
    found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(info.numCompletedTasks for info in found if info is not None)
