"""The sweeper: checks the store in rounds, some objects at a time, and repairs what crashes have left incomplete.

jobs → index keys → dependencies → lines and unique keys → settings → commit records → large data → counters

A job's record is authoritative; everything else is derived from it. The position within a round is kept in memory. The
time up to which everything was checked is stored, so the next round, in any process, reads only later changes. Several
sweepers can share a round; one of them then runs the stages that cannot be shared.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec

from millrace.store.object.driver import Listed
from millrace.store.object.engine.engine import Engine
from millrace.store.object.engine.objects import Swap
from millrace.store.object.engine.values import StoreValue, Trimmed, decode, encode, value_of
from millrace.store.object.keys import STORE
from millrace.store.object.sweep import index, shared
from millrace.store.object.sweep.counters import CounterSweep
from millrace.store.object.sweep.index import IndexSweep
from millrace.store.object.sweep.jobs import JobSweep
from millrace.store.object.sweep.round import Part, Round
from millrace.store.object.sweep.shared import SharedSweep
from millrace.store.sweep_report import SweepShare, Swept

AT_ONCE = 200  # jobs read at a time
LISTING = 50  # the cost of a listing, in objects read
Stage = Callable[[], AsyncGenerator[int, None]]
SWEPT = "control/swept.json"
# Objects written shortly before are checked again: clocks differ, some have whole seconds only, and a power
# loss may undo index keys.
SLACK = 60_000


class SweptValue(msgspec.Struct, frozen=True):
    """The stored progress of the sweep: everything written before `until` has been checked."""

    until: int = 0


class SweepStages:
    """The stages of a round. Each stage is a generator that yields the cost of each portion of its work, in objects
    read.
    """

    def __init__(self, engine: Engine, round_: Round, trimmed: Trimmed) -> None:
        self.round = round_
        self._jobs = JobSweep(engine, round_, trimmed)
        self._keys = IndexSweep(engine, round_)
        self._others = SharedSweep(round_)
        self._counters = CounterSweep(engine, round_)

    @property
    def whole(self) -> tuple[Stage, ...]:
        shared_out = (self.jobs, self.index, self.dependencies, self.shared)
        return (*shared_out, self.settings, self.manifests, self.data, self.counters)

    @property
    def of_a_share(self) -> tuple[Stage, ...]:
        return (self.jobs, self.index, self.dependencies, self.shared, self.data)

    @property
    def after_shares(self) -> tuple[Stage, ...]:
        """The stages that cannot be shared. They run once, after all shares are done."""
        return (self.settings, self.manifests, self.counters)

    async def jobs(self) -> AsyncGenerator[int, None]:
        async for page in self.round.pages("tasks/"):
            yield LISTING
            for some in self._wanted(page):
                await self._jobs.check(some)
                yield len(some)
            yield await self._others.check_stubs(page)

    async def index(self) -> AsyncGenerator[int, None]:
        for family in index.FAMILIES:
            async for page in self.round.pages(family):
                yield LISTING + await self._keys.check(page)

    async def dependencies(self) -> AsyncGenerator[int, None]:
        async for page in self.round.pages("deps/"):
            yield LISTING + await self._keys.check_dependencies(page)

    def shared(self) -> AsyncGenerator[int, None]:
        return self._check_shared(shared.FAMILIES)

    def settings(self) -> AsyncGenerator[int, None]:
        return self._check_shared(shared.SETTINGS)

    async def _check_shared(self, families: Sequence[str]) -> AsyncGenerator[int, None]:
        for family in families:
            async for page in self.round.pages(family):
                yield LISTING
                for some in self._wanted(page):
                    await self._others.check(some)
                    yield len(some)
                yield await self._others.check_stubs(page)

    async def manifests(self) -> AsyncGenerator[int, None]:
        async for page in self.round.pages("batches/"):
            yield LISTING
            for entry in page:
                yield await self._others.check_manifest(entry)

    async def data(self) -> AsyncGenerator[int, None]:
        async for page in self.round.pages("data/"):
            yield LISTING + await self._keys.check_data(page)

    async def counters(self) -> AsyncGenerator[int, None]:
        async for page in self.round.pages("control/queues/"):
            busy = [entry.key for entry in page if not self.round.is_old(entry)]
            await self._counters.check_queues([entry.key for entry in page], busy=busy)
            yield LISTING + len(page)
        await self._counters.check_tasks()

    def _wanted(self, page: Sequence[Listed]) -> list[list[str]]:
        keys = [entry.key for entry in page if self.round.is_wanted(entry)]
        return [keys[start : start + AT_ONCE] for start in range(0, len(keys), AT_ONCE)]


class Sweeper:
    def __init__(self, engine: Engine, *, young: int) -> None:
        self._engine = engine
        self._young = young
        self._round: Round | None = None
        self._steps: AsyncGenerator[int, None] | None = None
        self._turn = asyncio.Lock()

    async def sweep(self, limit: int, *, full: bool = False) -> Swept:
        """Continue the current round until about `limit` objects have been read.

        With `full`, do a whole new round that reads all objects.
        """
        async with self._turn:
            if full:
                await self._drop()
            before: Counter[str] = Counter()
            if self._round is None or self._steps is None:
                self._round, self._steps = await self._begin(full)
            else:
                before = Counter(self._round.done)
            more = False
            spent = 0
            try:
                async for cost in self._steps:
                    spent += cost
                    if spent >= limit and not full:
                        more = True
                        break
            except BaseException:
                await self._drop()
                raise
            done = self._round.done - before
            if not more:
                await self._drop()
            return Swept(**done, more=more)

    async def _drop(self) -> None:
        """Discard the current round. The next round reads the changes since the last complete round."""
        steps, self._round, self._steps = self._steps, None, None
        if steps is not None:
            await steps.aclose()

    async def sweep_share(self, share: SweepShare) -> Swept:
        """Check and repair everything in this share, and return the result."""
        stages = await self._stages(True, share)
        for stage in stages.of_a_share:
            async for _ in stage():
                pass
        return Swept(**stages.round.done, more=False)

    async def sweep_rest(self, began: int) -> Swept:
        """Run the stages that cannot be shared, and return the result. Call this after all shares of the round.

        `began` is the time at which the round began.
        """
        stages = await self._stages(True)
        for stage in stages.after_shares:
            async for _ in stage():
                pass
        await self._note(began)
        return Swept(**stages.round.done, more=False)

    async def _begin(self, full: bool) -> tuple[Round, AsyncGenerator[int, None]]:
        stages = await self._stages(full)
        return stages.round, self._go_round(stages)

    async def _stages(self, full: bool, share: SweepShare | None = None) -> SweepStages:
        objects = self._engine.objects
        [swept, store] = await objects.read([SWEPT, STORE])
        since = None if swept.value is None or full else _seen_until(swept.value, await self._engine.blobs.now())
        trimmed = (value_of(store, StoreValue) or StoreValue()).trimmed
        part = None if share is None else Part(self._engine.layout, share)
        round_ = Round(objects, await self._engine.blobs.now(), since, self._young, part)
        return SweepStages(self._engine, round_, trimmed)

    async def _go_round(self, stages: SweepStages) -> AsyncGenerator[int, None]:
        """Run all stages of a round, and yield the cost of each portion of work, in objects read."""
        for stage in stages.whole:
            async for cost in stage():
                yield cost
        await self._note(stages.round.now)

    async def _note(self, began: int) -> None:
        """Store the time up to which everything is checked.

        The stored time does not decrease, because another process may be ahead. It decreases only if it is ahead of the
        clock, because the clock was set back.
        """
        until = began - self._young - SLACK
        [seen] = await self._engine.objects.read([SWEPT])
        known = value_of(seen, SweptValue) or SweptValue()
        if known.until < until or known.until > began:
            await self._engine.objects.commit([Swap(seen, encode(SweptValue(until)))], durable=False)


def _seen_until(noted: bytes, now: int) -> int | None:
    """Return the stored time up to which all objects are checked, or None if that time is in the future.

    A future time means that the clock has been set back since. Objects that were written after that may have dates
    before the stored time without having been checked.
    """
    until = decode(noted, SweptValue).until
    return until if until <= now else None
