"""An archive under test: a store, its upkeep without Spark, and the tables as Spark's tasks would read them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from millrace.spark import reader
from millrace.spark.archive import operations as archive
from millrace.spark.options import read_options
from millrace.spark.schema import table_named
from millrace.spark.upkeep_work import Each, UpkeepDone, Work, done
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.testing.clock import VirtualClock

OPTIONS = ObjectOptions(look_every=0, feed_delay=0, lock_patience=1, listing_reuse=0, inline_limit=1_000)
MINUTES = 60
FAR = 1 << 60


def here(store: ObjectStore) -> Each:
    """Pieces of work as executors do them, but in this process; each travels there and back."""

    async def each(works: Sequence[Work]) -> list[UpkeepDone]:
        answers: list[UpkeepDone] = []
        for work in works:
            sent = msgspec.json.decode(msgspec.json.encode(work), type=Work)
            answers.append(msgspec.json.decode(msgspec.json.encode(await done(store, sent)), type=UpkeepDone))
        return answers

    return each


async def compact(store: ObjectStore, **how: Any) -> archive.ArchiveOutcome:
    return await archive.compact(store, here(store), **{"before": FAR, **how})


class _Waiting:
    """A store for code that blocks, in a thread beside the loop of the test."""

    def __init__(self, store: ObjectStore, loop: asyncio.AbstractEventLoop) -> None:
        self.store = store
        self._loop = loop

    def run(self, asked: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()

    def each(self, parts: Any) -> Iterator[Any]:
        while (part := self.run(anext(parts, None))) is not None:
            yield part


class Reading:
    """A read of a table: planned, and then its shares one by one, with whatever happens in between."""

    def __init__(self, store: ObjectStore, table: str, **options: str) -> None:
        read = read_options({"url": "file:///nowhere", "table": table, "partitions": "2", **options}, "batch")
        self._reader = reader.TableReader(read, table_named(table))
        self._store = store
        self.shares: list[Any] = []

    async def plan(self) -> Reading:
        self.shares = await self._aside(self._reader.partitions)
        return self

    async def rows(self, shares: Sequence[Any] | None = None) -> list[dict[str, Any]]:
        """Of all shares, sorted by seq."""

        def read() -> list[dict[str, Any]]:
            chosen = self.shares if shares is None else shares
            batches = [batch for share in chosen for batch in self._reader.read(share)]
            return [row for batch in batches for row in batch.to_pylist()]

        found = await self._aside(read)
        return sorted(found, key=lambda row: (row["seq"], row.get("n", 0)))

    async def _aside(self, work: Any) -> Any:
        loop = asyncio.get_running_loop()

        @contextmanager
        def opened(url: str, *, reads: bool) -> Iterator[_Waiting]:  # reads: with read access, as the tests of Spark do
            yield _Waiting(self._store, loop)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(reader, "opened", opened)
            patched.setattr(reader, "url_from", lambda options: "")
            return await asyncio.to_thread(work)


async def rows(store: ObjectStore, table: str = "jobs", **options: str) -> list[dict[str, Any]]:
    return await (await Reading(store, table, **options).plan()).rows()


def in_memory(clock: VirtualClock, blobs: Any = None, place: str | None = None) -> tuple[ObjectStore, MemoryBlobs]:
    blobs = MemoryBlobs(clock=clock) if blobs is None else blobs
    return ObjectStore(lambda: blobs, clock=clock, options=OPTIONS, place=place), blobs


__all__ = ["FAR", "OPTIONS", "Reading", "compact", "here", "in_memory", "pa", "rows"]
