"""Histories for the tests of the lake: what a store really writes when many are at work, and events made by hand."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millrace.domain.change import Change
from millrace.domain.errors import CursorExpired
from millrace.domain.event import Event, Kind
from millrace.domain.job import Job
from millrace.spark.lake.feed import FeedShare, Stretch
from millrace.store.memory import MemoryStore
from millrace.testing.builders import a_burial, a_claim, a_reclaim, a_retry_change, a_spec, settings_in_seconds
from millrace.testing.clock import VirtualClock

BEGIN = 1_700_000_000_000  # 2023-11-14T22:13:20Z, so that a history of hours reaches into the next day
QUEUES = ("mail", "images")
_TEXT, _LONG, _INT = pa.string(), pa.int64(), pa.int32()
_TYPES: dict[str, Any] = {
    "job": _TEXT,
    "seq": _LONG,
    "generation": _INT,
    "n": _INT,
    "kind": _TEXT,
    "at": pa.timestamp("us", "UTC"),
    "queue": _TEXT,
    "task": _TEXT,
    "state": _TEXT,
    "attempt": _INT,
    "failures": _INT,
    "worker": _TEXT,
    "lease": _TEXT,
    "delay_ms": _LONG,
    "reason": _TEXT,
    "error_type": _TEXT,
    "error_message": _TEXT,
    "error_traceback": _TEXT,
    "duration_ms": _LONG,
}


def an_event(n: int, kind: Kind, **facts: Any) -> Event:
    """Event `n` of job 1, a minute after the one before; a test adds what it is about."""
    state = {
        Kind.CLAIMED: "running",
        Kind.RECLAIMED: "running",
        Kind.COMPLETED: "completed",
        Kind.BURIED: "dead",
        Kind.CANCELLED: "cancelled",
    }.get(kind, "waiting")
    seq = facts.pop("seq", 1)
    told = {"generation": 1, "at": BEGIN + n * 60_000, "queue": "mail", "task": "send", "state": state}
    return Event(f"job-{seq}", seq, n=n, kind=kind, **{**told, **facts})


def two_jobs() -> list[Event]:
    """One that completes, one that still runs."""
    held = {"attempt": 1, "lease": "a", "worker": "w"}
    return [
        an_event(1, Kind.ENQUEUED),
        an_event(2, Kind.CLAIMED, **held),
        an_event(1, Kind.ENQUEUED, seq=2),
        an_event(3, Kind.COMPLETED, duration=7, **held),
        an_event(2, Kind.CLAIMED, seq=2, attempt=1, lease="b", worker="w"),
    ]


def frame(spark: SparkSession, events: Iterable[Event]) -> DataFrame:
    """Events as the source gives them."""
    return spark.createDataFrame(table(events))


def table(events: Iterable[Event]) -> pa.Table:
    rows = [_row(event) for event in events]
    columns = [pa.array([row[name] for row in rows], kind) for name, kind in _TYPES.items()]
    return pa.table(columns, names=list(_TYPES))


@dataclass(frozen=True)
class TableShare:
    """Events that are pickled with the task."""

    events: pa.Table

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self.events.to_batches()


def _row(event: Event) -> dict[str, Any]:
    error = event.error
    return {
        **{name: getattr(event, name) for name in _TYPES if hasattr(event, name)},
        "kind": event.kind.value,
        "at": event.at * 1_000,
        "delay_ms": event.delay,
        "duration_ms": event.duration,
        "error_type": None if error is None else error.type,
        "error_message": None if error is None else error.message,
        "error_traceback": None if error is None else error.traceback,
    }


class ListFeed:
    """A feed whose cursors are numbers of events. What was `trimmed` is gone, as by a store's retention."""

    name = "list"

    def __init__(self, spark: SparkSession, events: Sequence[Event], trimmed: int = 0) -> None:
        self._spark = spark
        self.all = events
        self.end = len(events)
        self.trimmed = trimmed
        self.read = 0

    def ahead(self, after: str | None, limit: int | None, since: int | None = None) -> Stretch:
        first = self.trimmed if after is None else int(after)
        if after is None and since is not None:
            first = next(at for at, event in enumerate(self.all) if event.at >= since)
        if first < self.trimmed:
            raise CursorExpired(str(first), self.trimmed - first, str(self.trimmed))
        last = self.end if limit is None else min(self.end, first + limit)
        return Stretch(str(first), str(last), last - first, last < self.end)

    def shares(self, stretch: Stretch) -> Sequence[FeedShare]:
        """Two parts, so that two tasks write."""
        self.read += 1
        first, until = int(stretch.after), int(stretch.until)
        middle = (first + until + 1) // 2
        return [TableShare(table(self.all[first:middle])), TableShare(table(self.all[middle:until]))]

    def events(self, stretch: Stretch) -> DataFrame:
        return frame(self._spark, self.all[int(stretch.after) : int(stretch.until)])

    def groups(self) -> DataFrame:
        seqs = sorted({event.seq for event in self.all if event.seq % 3})
        rows = [(seq, "mail", f"customer-{seq % 3}") for seq in seqs]
        return self._spark.createDataFrame(rows, "seq bigint, queue string, `group` string")

    def has_few_jobs(self) -> bool:
        return False


async def busy_history(seed: int, steps: int = 400) -> tuple[list[Event], list[Job]]:
    """What a store wrote while jobs were put in, run, failed, lost, cancelled, replayed, hidden and pruned."""
    chance = random.Random(seed)
    clock = VirtualClock(BEGIN + 8 * 60_000)  # it reaches midnight before it is set back
    store = MemoryStore(clock=clock, salt="lake")
    await store.control("store", "", {"keep_events": None})
    for queue in QUEUES:
        await store.control("queue", queue, settings_in_seconds({"keep_completed": 2_000}))
    held: list[Job] = []
    ids: list[str] = []
    for number in range(steps):
        clock.advance(chance.choice((0.003, 0.25, 1.5, 20, 90)))
        if number == steps * 3 // 4:
            clock.advance(-8_000)  # somebody set the clock back: what happens next belongs to the day before
        held = await _one_step(store, chance, held, ids, number)
        if chance.random() < 0.05:
            await store.maintain()
    events = (await store.events(None, 1_000_000)).events
    jobs = [job for part in await store.partitions(1) async for found in store.scan(part) for job in found]
    return list(events), jobs


async def _one_step(
    store: MemoryStore, chance: random.Random, held: list[Job], ids: list[str], number: int
) -> list[Job]:
    some = chance.sample(ids, min(2, len(ids)))
    match chance.randrange(12):
        case 0 | 1 | 2:
            await _put(store, chance, ids, number)
        case 3 | 4 | 5:
            claim = a_claim(3, queues=QUEUES, worker=f"worker-{chance.randrange(3)}", lease=30)
            return held + await store.claim(claim)
        case 6 | 7 | 8:
            chance.shuffle(held)
            await store.settle([(job.lease, _end(chance)) for job in held[:2]])
            return held[2:]
        case 9:
            return held + await store.reclaim(a_reclaim(5))
        case 10:
            await store.cancel(some, running=chance.choice(("refuse", "request")))
        case _ if chance.random() < 0.05:
            await store.obliterate(chance.choice(QUEUES), 3)
        case _:
            await store.replay(some)
            await store.archive(chance.sample(ids, len(ids) // 4), chance.random() < 0.5)
    return held


async def _put(store: MemoryStore, chance: random.Random, ids: list[str], number: int) -> None:
    parents = tuple(chance.sample(ids[-9:], 1)) if ids and chance.random() < 0.4 else ()
    specs = [
        a_spec(
            id=f"j{number}-{part}" if chance.random() < 0.9 or not ids else chance.choice(ids),
            queue=chance.choice(QUEUES),
            task=chance.choice(("send", "resize")),
            delay=chance.choice((0, 0, 40)),
            expires=chance.choice((None, None, 300)),
            after=parents,
            allow_missing=True,
        )
        for part in range(3)
    ]
    ids += [spec.id for spec in specs if spec.id not in ids]
    for spec in specs:
        if spec.id not in spec.after:
            await store.enqueue([spec])


def _end(chance: random.Random) -> Change:
    match chance.randrange(6):
        case 0:
            return a_retry_change(chance.choice((0, 60)), f"no answer from 10.0.0.{chance.randrange(250)}")
        case 1:
            return a_burial(message=f"order {chance.randrange(9999)} is 'odd'")
        case 2:
            return Change.snooze(chance.choice((0, 5_000)))
        case 3:
            return Change.release()
        case _:
            return Change.completed(b"1", duration=chance.randrange(1_000))
