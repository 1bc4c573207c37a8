"""The sweeper: goes round the store, a bounded piece at a time, and puts right what crashes have left.

Which way it takes says `course.py`. Where the round is, this process remembers; up to when all was looked at is noted
in the store, so that whoever begins a round next reads what has changed since. A round can also be gone by several at
once, each a share of it, and one of them what is in no share.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator

import msgspec

from millrace.store.object.engine import Engine
from millrace.store.object.keys import STORE
from millrace.store.object.objects import Change
from millrace.store.object.sweep.course import Course
from millrace.store.object.sweep.round import Round
from millrace.store.object.sweep.share import Part
from millrace.store.object.values import StoreValue, Trimmed, decode, encode
from millrace.store.swept import SweepShare, Swept

SWEPT = "control/swept.json"
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

    async def sweep_share(self, share: SweepShare) -> Swept:
        """All that is in a share, whatever has been looked at before."""
        course = await self._course(True, share)
        for leg in course.of_a_share:
            async for _ in leg():
                pass
        return Swept(**course.round.done, more=False)

    async def sweep_rest(self, began: int) -> Swept:
        """What is in no share, after all shares of a round that began then."""
        course = await self._course(True)
        for leg in course.of_nobody:
            async for _ in leg():
                pass
        await self._note(began)
        return Swept(**course.round.done, more=False)

    async def _begin(self, full: bool) -> tuple[Round, AsyncGenerator[int, None]]:
        course = await self._course(full)
        return course.round, self._go_round(course)

    async def _course(self, full: bool, share: SweepShare | None = None) -> Course:
        objects = self._engine.objects
        [swept, store] = await objects.read([SWEPT, STORE])
        since = None if swept.value is None or full else decode(swept.value, SweptValue).until
        trimmed = Trimmed() if store.value is None else decode(store.value, StoreValue).trimmed
        part = None if share is None else Part(self._engine.layout, share)
        round_ = Round(objects, await self._engine.blobs.now(), since, self._young, part)
        return Course(self._engine, round_, self._feed_delay, trimmed)

    async def _go_round(self, course: Course) -> AsyncGenerator[int, None]:
        """Yields what each step has cost."""
        for leg in course.whole:
            async for cost in leg():
                yield cost
        await self._note(course.round.now)

    async def _note(self, began: int) -> None:
        """Only ever later: another process may have come further meanwhile, and then it has its say."""
        until = began - self._young - SLACK
        [seen] = await self._engine.objects.read([SWEPT])
        known = SweptValue() if seen.value is None else decode(seen.value, SweptValue)
        if known.until < until:
            await self._engine.objects.commit([Change(seen, encode(SweptValue(until)))], durable=False)
