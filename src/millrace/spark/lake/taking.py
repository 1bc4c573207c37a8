"""Copies history into the lake, one part of the feed (a stretch) at a time. Each stretch is one take.

Executors read the store and write Parquet files in the same task. Then one commit to the table `events` adds all files
of the take, together with the cursor. This commit decides: it succeeds only on top of the version that the run began
with, so of two runs at once one loses, and each event is copied exactly once. `deriving.py` updates the other tables.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from millrace.domain.errors import CursorExpired, CursorUnknown
from millrace.spark.lake.delta import CommitConflict, DataFile, commit, snapshot
from millrace.spark.lake.deriving import derive
from millrace.spark.lake.errors import HistoryLost, HistoryReplaced, LakeBroken, LostTheRace, OtherStore
from millrace.spark.lake.feed import EventFeed, FeedShare, Stretch
from millrace.spark.lake.maintenance import merge_crowded
from millrace.spark.lake.place import LakeGap, LakePlace, LakeSnapshot, LakeState
from millrace.spark.lake.reading import settings
from millrace.spark.lake.tables import DAY
from millrace.spark.lake.writing import discard, write

STRETCH = 5_000_000  # events of a take
TRIES = 5  # commits of a take; compactions may intervene
OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class TakeRequest:
    """The options of a pipeline run. `since`, in milliseconds, applies only to a new lake. `accept_gap` lets the run
    continue after events that were removed before they were copied. `moved` allows a store with another address.
    `groups` says whether to look up the groups of jobs; None means only if that costs little.
    """

    limit: int | None = None
    since: int | None = None
    accept_gap: bool = False
    moved: bool = False
    groups: bool | None = None


@dataclass
class Taken:
    """The result of a pipeline run. `lake` is the lake after it; None if nothing was ever taken."""

    lake: LakeSnapshot | None = None
    events: int = 0
    takes: int = 0
    gaps: list[LakeGap] = field(default_factory=list)


def take(
    place: LakePlace,
    spark: SparkSession,
    feed: EventFeed,
    request: TakeRequest | None = None,
    on_progress: OnProgress = print,
) -> Taken:
    """Copy all new events, or at most `request.limit`, one stretch of the feed at a time. After an interruption, the
    next call continues after the last take.
    """
    request = request or TakeRequest()
    tables = place.prepare()
    newest = place.state(tables["events"]) if tables["events"].take else None
    if newest is not None and newest.store != feed.name and not request.moved:
        raise OtherStore(str(place.location), newest.store, feed.name)
    groups = _wants_groups(feed, request)
    derive(place, spark, feed, groups, on_progress, tables)
    taken = Taken()
    left = request.limit
    while left is None or left > 0:
        stretch, gap = _ahead(feed, newest, STRETCH if left is None else min(left, STRETCH), request)
        if stretch.until == stretch.after and gap is None:
            break
        before = 0 if newest is None else newest.taken
        newest = Take(place, spark, feed, newest, stretch, gap, on_progress).committed()
        derive(place, spark, feed, groups, on_progress)
        taken.events, taken.takes = taken.events + newest.taken - before, taken.takes + 1
        taken.gaps += [] if gap is None else [gap]
        left = None if left is None else left - max(newest.taken - before, 1)
        if not stretch.more:
            break
    if taken.takes:
        merge_crowded(place, on_progress)
    taken.lake = place.latest()
    return taken


def _wants_groups(feed: EventFeed, request: TakeRequest) -> bool:
    return feed.has_few_jobs() if request.groups is None else request.groups


def _ahead(
    feed: EventFeed, newest: LakeState | None, limit: int, request: TakeRequest
) -> tuple[Stretch, LakeGap | None]:
    after = None if newest is None else newest.cursor
    try:
        return feed.ahead(after, limit, request.since), None
    except CursorExpired as expired:
        if not request.accept_gap:
            raise HistoryLost(expired) from None
        number = 1 if newest is None else newest.take + 1
        gap = LakeGap(expired.cursor, expired.oldest, expired.lost, number)
        return feed.ahead(expired.oldest, limit), gap
    except CursorUnknown as unknown:
        raise HistoryReplaced(unknown) from None


class Take:
    """Copies one stretch of the feed into the table `events`."""

    def __init__(
        self,
        place: LakePlace,
        spark: SparkSession,
        feed: EventFeed,
        newest: LakeState | None,
        stretch: Stretch,
        gap: LakeGap | None,
        on_progress: OnProgress,
    ) -> None:
        self._place, self._spark, self._feed, self._newest = place, spark, feed, newest
        self._stretch, self._gap, self._on_progress = stretch, gap, on_progress
        self._number = 1 if newest is None else newest.take + 1

    def committed(self) -> LakeState:
        """Write the events and commit them, and return the new state. Raises LostTheRace if another run has committed
        this take.
        """
        began = time.monotonic()
        shares = self._feed.shares(self._stretch)
        source = partial(_events_of, shares, self._number)
        with settings(self._spark):
            numbers = self._spark.range(0, len(shares), 1, max(1, len(shares)))
            files = write(numbers, self._place.location, "events", DAY, source)
        state = self._state(sum(file.rows for file in files))
        try:
            self._commit(files, state)
        except BaseException:
            discard(self._place.location, "events", files)
            raise
        seconds = time.monotonic() - began
        self._on_progress(f"take {self._number}: {state.taken - self._before:,} rows of events in {seconds:.1f} s")
        return state

    def _commit(self, files: Sequence[DataFile], state: LakeState) -> None:
        for _ in range(TRIES):
            events = snapshot(self._place.location, "events")
            assert events is not None  # place.prepare() has created it
            if events.take >= self._number:
                raise LostTheRace(str(self._place.location), events.take, self._place.state(events).by)
            try:
                return commit(
                    self._place.location, events, self._number, files, state=msgspec.json.encode(state).decode()
                )
            except CommitConflict:
                continue
        raise LakeBroken(f"the lake at {self._place.location} is changed again and again by another process")

    @property
    def _before(self) -> int:
        return 0 if self._newest is None else self._newest.taken

    def _state(self, rows: int) -> LakeState:
        newest, gap = self._newest, self._gap
        return LakeState(
            self._number,
            int(time.time() * 1000),
            self._feed.name,
            self._stretch.until,
            whole=self._stretch.whole and gap is None if newest is None else newest.whole,
            taken=self._before + rows,
            gaps=(() if newest is None else newest.gaps) + (() if gap is None else (gap,)),
            by=f"process {os.getpid()} on {socket.gethostname()}",
        )


def _events_of(shares: Sequence[FeedShare], number: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the events of the shares whose numbers are in the batches, with the columns `take` and `day`."""
    for batch in batches:
        for index in batch["id"].to_pylist():
            for events in shares[index].batches():
                taken = pa.array([number], pa.int32()).take(pa.array([0] * events.num_rows, pa.int8()))
                columns = [*events.columns, taken, events["at"].cast(pa.date32())]
                yield pa.RecordBatch.from_arrays(columns, [*events.schema.names, "take", DAY])
