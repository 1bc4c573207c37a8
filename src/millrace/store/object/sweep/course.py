"""The course of a round, leg by leg, each yielding what its steps cost.

    jobs → index keys → dependencies → lines and unique keys → settings → manifests → large data → counters

A job's record is the truth; all else follows from it. Some legs can be shared out among sweepers; the others are gone
once, by one of them, after all shares.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence

from millrace.store.object.driver import Entry
from millrace.store.object.engine import Engine
from millrace.store.object.sweep import index, shared
from millrace.store.object.sweep.counters import CounterSweep
from millrace.store.object.sweep.index import IndexSweep
from millrace.store.object.sweep.jobs import JobSweep
from millrace.store.object.sweep.round import Round
from millrace.store.object.sweep.shared import SharedSweep
from millrace.store.object.values import Trimmed

AT_ONCE = 200  # jobs read at a time
LISTING = 50  # what a listing counts for against the limit, in objects read
Leg = Callable[[], AsyncGenerator[int, None]]


class Course:
    def __init__(self, engine: Engine, round_: Round, feed_delay: int, trimmed: Trimmed) -> None:
        self.round = round_
        self._jobs = JobSweep(engine, round_, feed_delay, trimmed)
        self._keys = IndexSweep(engine, round_)
        self._others = SharedSweep(round_)
        self._counters = CounterSweep(engine, round_)

    @property
    def whole(self) -> tuple[Leg, ...]:
        shared_out = (self.jobs, self.index, self.dependencies, self.shared)
        return (*shared_out, self.settings, self.manifests, self.data, self.counters)

    @property
    def of_a_share(self) -> tuple[Leg, ...]:
        return (self.jobs, self.index, self.dependencies, self.shared, self.data)

    @property
    def of_nobody(self) -> tuple[Leg, ...]:
        """What is left when all shares have been gone."""
        return (self.settings, self.manifests, self.counters)

    async def jobs(self) -> AsyncGenerator[int, None]:
        async for page in self.round.pages("tasks/"):
            yield LISTING
            for some in self._wanted(page):
                await self._jobs.look(some)
                yield len(some)
            yield await self._others.look_at_stubs(page)

    async def index(self) -> AsyncGenerator[int, None]:
        for family in index.FAMILIES:
            async for page in self.round.pages(family):
                yield LISTING + await self._keys.look(page)

    async def dependencies(self) -> AsyncGenerator[int, None]:
        async for page in self.round.pages("deps/"):
            yield LISTING + await self._keys.look_at_dependencies(page)

    async def shared(self) -> AsyncGenerator[int, None]:
        async for cost in self._look_at_shared(shared.FAMILIES):
            yield cost

    async def settings(self) -> AsyncGenerator[int, None]:
        async for cost in self._look_at_shared(shared.SETTINGS):
            yield cost

    async def _look_at_shared(self, families: Sequence[str]) -> AsyncGenerator[int, None]:
        for family in families:
            async for page in self.round.pages(family):
                yield LISTING
                for some in self._wanted(page):
                    await self._others.look(some)
                    yield len(some)
                yield await self._others.look_at_stubs(page)

    async def manifests(self) -> AsyncGenerator[int, None]:
        async for page in self.round.pages("batches/"):
            yield LISTING
            for entry in page:
                yield await self._others.look_at_manifest(entry)

    async def data(self) -> AsyncGenerator[int, None]:
        async for page in self.round.pages("data/"):
            yield LISTING + await self._keys.look_at_data(page)

    async def counters(self) -> AsyncGenerator[int, None]:
        async for page in self.round.pages("control/queues/"):
            busy = [entry.key for entry in page if not self.round.is_old(entry)]
            await self._counters.look_at_queues([entry.key for entry in page], busy=busy)
            yield LISTING + len(page)
        await self._counters.look_at_tasks()

    def _wanted(self, page: Sequence[Entry]) -> list[list[str]]:
        keys = [entry.key for entry in page if self.round.is_wanted(entry)]
        return [keys[start : start + AT_ONCE] for start in range(0, len(keys), AT_ONCE)]
