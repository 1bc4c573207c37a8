"""The feed of a store as the pipeline reads it: the position to continue from, and the events between two cursors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.app.settings import masked
from millrace.spark import FORMAT
from millrace.spark.lake.tables import DAY, PAYLOADS
from millrace.spark.open import opened, url_from
from millrace.spark.options import read_options
from millrace.spark.reader import Share, TableReader
from millrace.spark.schema import EVENTS, JOBS

EVENTS_PER_TASK = 400_000
FEW_JOBS = 200_000
IDS_AT_ONCE = 1_000


@dataclass(frozen=True)
class Stretch:
    """A part of the feed: the events after the cursor `after`, up to the cursor `until`. `count` may be an estimate.
    `more` says whether further events follow.
    """

    after: str
    until: str
    count: int
    more: bool = False

    @property
    def whole(self) -> bool:
        """Whether the stretch starts at the first event of the store. A cursor begins with the number of events before
        it, so this is the cursor with the number 0.
        """
        return re.match(r"0+(?!\d)", self.after) is not None


class FeedShare(Protocol):
    """A part of a stretch. It is pickled, and read by one task."""

    def batches(self) -> Iterator[pa.RecordBatch]: ...


class EventFeed(Protocol):
    """A source of events. Tests use their own implementation."""

    name: str

    def ahead(self, after: str | None, limit: int | None, since: int | None = None) -> Stretch:
        """Return the stretch to copy next, at most `limit` events. Raises CursorExpired if retention removed some of
        them.
        """
        ...

    def shares(self, stretch: Stretch) -> Sequence[FeedShare]:
        """Return the events of the stretch in parts, which executors read."""
        ...

    def events(self, stretch: Stretch) -> DataFrame: ...

    def groups(self) -> DataFrame:
        """Return the seq, queue and group of the jobs in the store that have a group."""
        ...

    def has_few_jobs(self) -> bool:
        """Return whether the store has so few jobs that reading all their groups costs little."""
        ...


@dataclass(frozen=True)
class StoreShare:
    """A part of a stretch, which a task reads from the store."""

    options: Mapping[str, str]
    share: Share

    def batches(self) -> Iterator[pa.RecordBatch]:
        return _reader(self.options).read(self.share)


@dataclass(frozen=True)
class StoreRecords:
    """Replaces batches of job ids by the records of these jobs, with the columns of the table `payloads` and the day.
    Jobs that the store does not have any more, or that run again, are left out.
    """

    options: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = ["id" if name == "job" else name for name in PAYLOADS]
        reader = TableReader(read_options({**self.options, "table": "jobs"}, "batch"), JOBS.pruned(columns))
        for batch in batches:
            ids = batch["job"].to_pylist()
            for first in range(0, len(ids), IDS_AT_ONCE):
                for found in reader.read(Share(ids=ids[first : first + IDS_AT_ONCE])):
                    rows = found.filter(found["finished_at"].is_valid()).rename_columns([*PAYLOADS])
                    if rows.num_rows:
                        yield rows.append_column(DAY, rows["finished_at"].cast(pa.date32()))


def _reader(options: Mapping[str, str]) -> TableReader:
    return TableReader(read_options(options, "batch"), EVENTS)


def store_url(where: Mapping[str, str]) -> str:
    """Return the URL of the store. One of the options url, urlEnv and urlFile names it."""
    return url_from({"url": None, "urlEnv": None, "urlFile": None, **where})


def store_name(where: Mapping[str, str]) -> str:
    """Return the name under which a lake knows the store: its URL without password and options."""
    return masked(store_url(where)).partition("?")[0]


class StoreFeed:
    """The feed of a store, as Spark reads it. One of the options url, urlEnv and urlFile names the store."""

    def __init__(self, spark: SparkSession, **where: str) -> None:
        self._spark = spark
        self._where = where
        self._url = store_url(where)
        self.name = store_name(where)

    def ahead(self, after: str | None, limit: int | None, since: int | None = None) -> Stretch:
        with opened(self._url, reads=True) as found:
            spans = found.run(found.store.event_spans(since if after is None else after, 1, limit))
            until = spans[-1].until
            rest = found.run(found.store.event_spans(until, 1, 1)) if limit is not None else []
        more = any(span.count for span in rest)
        return Stretch(spans[0].after, until, sum(span.count for span in spans), more)

    def shares(self, stretch: Stretch) -> Sequence[FeedShare]:
        options = {**self._where, "table": "events", **_bounds(stretch)}
        return [StoreShare(options, share) for share in _reader(options).partitions() if isinstance(share, Share)]

    def events(self, stretch: Stretch) -> DataFrame:
        return self._table("events", **_bounds(stretch))

    def groups(self) -> DataFrame:
        return self._table("jobs", columns="seq,queue,group").where(F.col("group").isNotNull())

    def records(self) -> StoreRecords:
        """Return the function with which executors read jobs by their ids."""
        return StoreRecords(self._where)

    def jobs(self) -> DataFrame:
        """Return the current records of the store, for the audit. Compacted jobs are left out, because their events say
        that they were removed.
        """
        columns = "seq,id,generation,state,attempt,failures,events,archived"
        return self._table("jobs", columns=columns, compacted="without")

    def has_few_jobs(self) -> bool:
        with opened(self._url, reads=True) as found:
            counts = found.run(found.store.count())
        records = sum(one.waiting + one.running + one.completed + one.dead + one.cancelled for one in counts)
        return records <= FEW_JOBS

    def _table(self, table: str, **options: str) -> DataFrame:
        return self._spark.read.format(FORMAT).options(**self._where, table=table, **options).load()


def _bounds(stretch: Stretch) -> dict[str, str]:
    tasks = max(2, -(-stretch.count // EVENTS_PER_TASK))
    return {"startingCursor": stretch.after, "endingCursor": stretch.until, "partitions": str(tasks)}
