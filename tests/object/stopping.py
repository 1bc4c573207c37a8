"""A client that can be stopped at a chosen request, so that a test says exactly what happens in between.

stop = client.stop("write", "lines/")          # before the request that writes a line
settling = asyncio.create_task(client.store.settle(...))
await stop.reached()
...                                             # what others do meanwhile
stop.go()
await settling
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from millrace.domain.errors import StoreError
from millrace.domain.job import Job
from millrace.store.object.driver import Answer, Blob, Driver, Listing, Read, Unavailable, VersionPage, Want, Write
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.testing.clock import START, VirtualClock
from millrace.testing.invariants import assert_holds, gather

T = TypeVar("T")

PATIENCE = 60.0  # seconds until a test that waits for a request which never comes is told so


class Stop:
    """One place to stand still at: before the request, or after it was carried out and before its answer. A write that
    is `cut` gets none; where that is before it, it was not carried out either."""

    def __init__(self, kind: str, wanted: Callable[[str], bool], skip: int, after: bool, cut: bool) -> None:
        self.kind = kind
        self.wanted = wanted
        self.skip = skip
        self.after = after
        self.cut = cut
        self.spent = False
        self._reached = asyncio.Event()
        self._go = asyncio.Event()

    async def reached(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._reached.wait()

    def go(self) -> None:
        self._go.set()

    def meets(self, kind: str, keys: Sequence[str]) -> bool:
        if self.spent or kind != self.kind or not any(map(self.wanted, keys)):
            return False
        self.skip -= 1
        self.spent = self.skip < 0
        return self.spent

    async def stand(self) -> None:
        self._reached.set()
        await self._go.wait()


@dataclass
class StoppingBlobs:
    """Any driver; requests wait where a `Stop` says so."""

    driver: Driver
    stops: list[Stop] = field(default_factory=list[Stop])
    broken: Callable[[str], bool] | None = None  # keys that cannot be written
    refusal_is_final = True

    @property
    def url(self) -> str:
        return self.driver.url

    @property
    def durability(self) -> str:
        return self.driver.durability

    @property
    def keeps_versions(self) -> bool:
        return self.driver.keeps_versions

    @property
    def requests(self) -> Counter[str]:
        return self.driver.requests

    def stop(
        self, kind: str, prefix: str | Callable[[str], bool], *, skip: int = 0, after: bool = False, cut: bool = False
    ) -> Stop:
        """At the first request of this kind (read, write, delete, list) for such a key; `skip` passes some over."""
        wanted = (lambda key: key.startswith(prefix)) if isinstance(prefix, str) else prefix
        stop = Stop(kind, wanted, skip, after, cut)
        self.stops.append(stop)
        return stop

    async def _pass(self, kind: str, keys: Sequence[str]) -> tuple[list[Stop], bool]:
        """(where to stand afterwards, whether the line was cut before)"""
        met = [stop for stop in self.stops if stop.meets(kind, keys)]
        for stop in met:
            if not stop.after:
                await stop.stand()
        return [stop for stop in met if stop.after], any(stop.cut and not stop.after for stop in met)

    async def connect(self) -> None:
        await self.driver.connect()

    async def close(self) -> None:
        await self.driver.close()

    async def read(self, wants: Sequence[Want]) -> Sequence[Read]:
        late, _ = await self._pass("read", [want.key for want in wants])
        found = await self.driver.read(wants)
        for stop in late:
            await stop.stand()
        return found

    async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
        late, cut = await self._pass("write", [write.key for write in writes])
        if cut:
            return [Unavailable("the line was cut")] * len(writes)
        if self.broken is not None and any(self.broken(write.key) for write in writes):
            raise StoreError("no such bucket")
        answers = await self.driver.write(writes)
        for stop in late:
            await stop.stand()
        return [Unavailable("the line was cut")] * len(writes) if any(stop.cut for stop in late) else answers

    async def delete(self, keys: Sequence[str]) -> None:
        late, _ = await self._pass("delete", keys)
        await self.driver.delete(keys)
        for stop in late:
            await stop.stand()

    async def list(self, prefix: str, after: str | None, limit: int) -> Listing:
        late, _ = await self._pass("list", [prefix])
        listing = await self.driver.list(prefix, after, limit)
        for stop in late:
            await stop.stand()
        return listing

    async def versions(self, key: str, after: str | None, limit: int) -> VersionPage:
        return await self.driver.versions(key, after, limit)

    async def read_version(self, key: str, version: str) -> Blob | None:
        return await self.driver.read_version(key, version)

    async def now(self) -> int:
        return await self.driver.now()

    def mark(self, prefix: str) -> int:
        return self.driver.mark(prefix)

    async def wait_for_change(self, prefix: str, timeout: float, since: int | None = None) -> bool:
        return await self.driver.wait_for_change(prefix, timeout, since)


@dataclass
class Unsteady:
    """A driver that takes every request of a batch for itself, in any order, with others in between."""

    driver: MemoryBlobs
    chance: random.Random

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    async def _wait(self) -> None:
        for _ in range(self.chance.choice((0, 0, 1, 1, 2, 7))):
            await asyncio.sleep(0)

    async def read(self, wants: Sequence[Want]) -> Sequence[Read]:
        found: dict[int, Read] = {}
        for place in self.chance.sample(range(len(wants)), len(wants)):
            await self._wait()
            [found[place]] = await self.driver.read([wants[place]])
        return [found[place] for place in range(len(wants))]

    async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
        found: dict[int, Answer] = {}
        for place in self.chance.sample(range(len(writes)), len(writes)):
            await self._wait()
            [found[place]] = await self.driver.write([writes[place]])
            await self._wait()
        return [found[place] for place in range(len(writes))]

    async def delete(self, keys: Sequence[str]) -> None:
        for key in self.chance.sample(keys, len(keys)):
            await self._wait()
            await self.driver.delete([key])

    async def list(self, prefix: str, after: str | None, limit: int) -> Listing:
        await self._wait()
        return await self.driver.list(prefix, after, limit)


@dataclass
class Client:
    """One process's store, and the driver it can be stopped at."""

    blobs: StoppingBlobs
    store: ObjectStore

    def stop(
        self, kind: str, prefix: str | Callable[[str], bool], *, skip: int = 0, after: bool = False, cut: bool = False
    ) -> Stop:
        return self.blobs.stop(kind, prefix, skip=skip, after=after, cut=cut)

    async def job(self, job_id: str) -> Job:
        [job] = await self.store.get([job_id])
        assert job is not None, f"there is no job {job_id!r}"
        return job


@dataclass
class World:
    """A bucket in memory, and as many clients of it as a test wants; `patience` and `feed_delay`
    in milliseconds."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    patience: int = 20
    feed_delay: int = 0
    bucket: MemoryBlobs = field(init=False)
    clients: list[Client] = field(default_factory=list[Client])

    def __post_init__(self) -> None:
        self.bucket = MemoryBlobs(clock=self.clock)

    async def client(self, *, apart: float | None = None, own_numbers: bool = False) -> Client:
        """One more. `apart`: of another process, whose clock is so many seconds off; its numbers are its own too."""
        blobs = StoppingBlobs(self.bucket)
        options = ObjectOptions(look_every=0, feed_delay=self.feed_delay, lock_patience=self.patience)
        clock = self.clock if apart is None else lambda: self.clock() + round(apart * 1000)
        own = own_numbers or apart is not None
        place = self.bucket.url + (f" client {len(self.clients)}" if own else "")
        store = ObjectStore(lambda: blobs, clock=clock, options=options, place=place)
        await store.connect()
        client = Client(blobs, store)
        self.clients.append(client)
        return client

    async def keys(self, prefix: str) -> list[str]:
        listing = await self.bucket.list(prefix, None, 1_000)
        return [entry.key for entry in listing.entries]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Whatever the two did to each other, the invariants hold in the end."""
    made = World()
    yield made
    judge = await made.client()
    assert_holds(await gather(judge.store, since=START))


async def meanwhile(action: Awaitable[T], stop: Stop, *others: Callable[[], Awaitable[Any]]) -> T:
    """Start an action, let it stand where it is to be stopped, let the others act, and let it go on."""
    task = asyncio.ensure_future(action)
    try:
        await stop.reached()
        for other in others:
            await other()
    finally:
        stop.go()
    return await task


async def crashed(action: Awaitable[Any], stop: Stop) -> None:
    """Start an action, and leave it where it stands for ever."""
    _graves.append(asyncio.ensure_future(action))
    await stop.reached()


_graves: list[asyncio.Future[Any]] = []
