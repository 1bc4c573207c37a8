"""The feed of a store, as the pipeline takes it: where it goes on, and the events between two cursors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.domain.errors import CursorExpired
from millrace.runtime.settings import masked
from millrace.spark import FORMAT
from millrace.spark.open import opened, url_from

EVENTS_PER_TASK = 400_000
FEW_JOBS = 200_000


@dataclass(frozen=True)
class Stretch:
    """The events after one cursor, up to another; `count` is an estimate where only reading could tell."""

    after: str
    until: str
    count: int
    more: bool = False

    @property
    def whole(self) -> bool:
        """Nothing lies before it: a cursor begins with the number of events before it."""
        return re.match(r"0+(?!\d)", self.after) is not None


class Feed(Protocol):
    """Where events come from; the tests have one of their own."""

    name: str

    def ahead(self, after: str | None, limit: int | None, since: int | None = None) -> Stretch:
        """What there is to take. CursorExpired when retention was faster."""
        ...

    def events(self, stretch: Stretch) -> DataFrame: ...

    def groups(self) -> DataFrame:
        """Of the jobs that the store has now: seq, queue, group."""
        ...

    def has_few_jobs(self) -> bool:
        """Looking up all their groups costs little."""
        ...


class StoreFeed:
    """The feed of a store, by the options that name it: url, or urlEnv, or urlFile."""

    def __init__(self, spark: SparkSession, **where: str) -> None:
        self._spark = spark
        self._where = where
        self._url = url_from({"url": None, "urlEnv": None, "urlFile": None, **where})
        self.name = masked(self._url).partition("?")[0]

    def ahead(self, after: str | None, limit: int | None, since: int | None = None) -> Stretch:
        with opened(self._url) as found:
            if after is None and since is not None:
                after = found.run(found.store.cursor_before(since))
            try:
                spans = found.run(found.store.event_spans(after, 1, limit))
            except CursorExpired:
                if after is None or since is not None:  # trimmed between the two questions: nothing of ours is lost
                    return self.ahead(None, limit)
                raise
            until = spans[-1].until
            rest = found.run(found.store.event_spans(until, 1, 1)) if limit is not None else []
        more = any(span.count for span in rest)
        return Stretch(spans[0].after, until, sum(span.count for span in spans), more)

    def events(self, stretch: Stretch) -> DataFrame:
        tasks = max(2, -(-stretch.count // EVENTS_PER_TASK))
        cursors = {"startingCursor": stretch.after, "endingCursor": stretch.until, "partitions": str(tasks)}
        return self._table("events", **cursors)

    def groups(self) -> DataFrame:
        return self._table("jobs", columns="seq,queue,group").where(F.col("group").isNotNull())

    def jobs(self) -> DataFrame:
        """The records as they stand now, for the audit; what was compacted into files was removed, as events tell."""
        columns = "seq,id,generation,state,attempt,failures,events,archived"
        return self._table("jobs", columns=columns, compacted="without")

    def has_few_jobs(self) -> bool:
        with opened(self._url) as found:
            counts = found.run(found.store.count())
        records = sum(one.waiting + one.running + one.completed + one.dead + one.cancelled for one in counts)
        return records <= FEW_JOBS

    def _table(self, table: str, **options: str) -> DataFrame:
        return self._spark.read.format(FORMAT).options(**self._where, table=table, **options).load()
