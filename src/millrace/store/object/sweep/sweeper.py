"""The sweeper: goes round the store, a bounded piece at a time, and puts right what crashes have left.

    jobs → index keys → dependencies → lines, unique keys, settings → manifests → large data → counters

A job's record is the truth; all else follows from it. Where the round is, this process remembers; up to when all was
looked at is noted in the store, so that whoever begins a round next reads what has changed since.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence

import msgspec

from millrace.store.object.driver import Entry
from millrace.store.object.engine import Engine
from millrace.store.object.keys import STORE
from millrace.store.object.objects import Change
from millrace.store.object.sweep import index, shared
from millrace.store.object.sweep.counters import CounterSweep
from millrace.store.object.sweep.index import IndexSweep
from millrace.store.object.sweep.jobs import JobSweep
from millrace.store.object.sweep.round import Round
from millrace.store.object.sweep.shared import SharedSweep
from millrace.store.object.values import StoreValue, Trimmed, decode, encode
from millrace.store.swept import Swept

SWEPT = "control/swept.json"
AT_ONCE = 200  # jobs read at a time
LISTING = 50  # what a listing counts for against the limit, in objects read
# What was written so shortly before is looked at once more: clocks differ, some tell whole seconds only, and a power
# loss may take back index keys that had been there.
SLACK = 60_000


class SweptValue(msgspec.Struct, frozen=True):
    """Whatever was written before `until` has been looked at."""

    until: int = 0


class Sweeper:
    def __init__(self, engine: Engine, *, young: int, feed_delay: int) -> None:
        self._engine = engine
        self._young = young
        self._feed_delay = feed_delay
        self._round: Round | None = None
        self._steps: AsyncGenerator[int, None] | None = None
        self._turn = asyncio.Lock()

    async def sweep(self, limit: int, *, full: bool = False) -> Swept:
        """Go on with the round until about `limit` objects have been read; `full`: all of one, whatever has changed."""
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
        """Forget the round; the next one begins with what has changed since the last that came to its end."""
        steps, self._round, self._steps = self._steps, None, None
        if steps is not None:
            await steps.aclose()

    async def _begin(self, full: bool) -> tuple[Round, AsyncGenerator[int, None]]:
        objects = self._engine.objects
        [swept, store] = await objects.read([SWEPT, STORE])
        since = None if swept.value is None or full else decode(swept.value, SweptValue).until
        trimmed = Trimmed() if store.value is None else decode(store.value, StoreValue).trimmed
        round_ = Round(objects, await self._engine.blobs.now(), since, self._young)
        return round_, self._go_round(round_, trimmed)

    async def _go_round(self, round_: Round, trimmed: Trimmed) -> AsyncGenerator[int, None]:
        """Yields what each step has cost."""
        jobs = JobSweep(self._engine, round_, self._feed_delay, trimmed)
        keys = IndexSweep(self._engine, round_)
        others = SharedSweep(round_)
        counters = CounterSweep(self._engine, round_)
        async for page in round_.pages("tasks/"):
            yield LISTING
            for some in _wanted(round_, page):
                await jobs.look(some)
                yield len(some)
            yield await others.look_at_stubs(page)
        for family in index.FAMILIES:
            async for page in round_.pages(family):
                yield LISTING + await keys.look(page)
        async for page in round_.pages("deps/"):
            yield LISTING + await keys.look_at_dependencies(page)
        for family in shared.FAMILIES:
            async for page in round_.pages(family):
                yield LISTING
                for some in _wanted(round_, page):
                    await others.look(some)
                    yield len(some)
                yield await others.look_at_stubs(page)
        async for page in round_.pages("batches/"):
            yield LISTING
            for entry in page:
                yield await others.look_at_manifest(entry)
        async for page in round_.pages("data/"):
            yield LISTING + await keys.look_at_data(page)
        async for page in round_.pages("control/queues/"):
            busy = [entry.key for entry in page if not round_.is_old(entry)]
            await counters.look_at_queues([entry.key for entry in page], busy=busy)
            yield LISTING + len(page)
        await counters.look_at_tasks()
        await self._note(round_.now - round_.young - SLACK)

    async def _note(self, until: int) -> None:
        """Only ever later: another process may have come further meanwhile, and then it has its say."""
        [seen] = await self._engine.objects.read([SWEPT])
        known = SweptValue() if seen.value is None else decode(seen.value, SweptValue)
        if known.until < until:
            await self._engine.objects.commit([Change(seen, encode(SweptValue(until)))], durable=False)


def _wanted(round_: Round, page: Sequence[Entry]) -> list[list[str]]:
    keys = [entry.key for entry in page if round_.is_wanted(entry)]
    return [keys[start : start + AT_ONCE] for start in range(0, len(keys), AT_ONCE)]
