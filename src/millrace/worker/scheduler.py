"""The scheduler: enqueues the jobs of the app's schedules when they are due.

Any number of schedulers may run, and there is no leader. Each scheduler reads the stored schedules, decides, and tries
to write; if another scheduler was faster, it reads again. All instants are of the store's clock. The local clock only
measures how long to sleep, at most 30 seconds.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from millrace.domain.rules.cron import instant_text
from millrace.domain.schedule import TAKEOVER, Move, Moved, Plan, Schedule, next_move, overdue
from millrace.store.protocol import Store
from millrace.worker.backoff import Backoff, Chance

log = logging.getLogger("millrace.schedule")

MAX_SLEEP = 30.0  # seconds until a new definition or a changed clock is seen
REFUSED_DELAY = 5.0  # seconds until a job that the store refused is tried again
FAR_AHEAD = 3_600_000


class Scheduler:
    """Runs the schedules of an app until stopped. A worker has a scheduler if its app has schedules."""

    def __init__(
        self,
        plans: Mapping[str, Plan],
        connected: Callable[[], Awaitable[Store]],
        *,
        failed: Callable[[Exception], None] | None = None,
        chance: Chance = random.random,
    ) -> None:
        self._plans = plans
        self._connected = connected
        self._failed = failed or _log_failure
        self._backoff = Backoff(1.0, MAX_SLEEP, chance)
        self._defined: dict[str, float] = {}  # when this scheduler last wrote or found its definition of a schedule
        self._refused_until: dict[str, float] = {}
        self._warned: set[tuple[str, str]] = set()
        self._stopping = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self.run(), name="millrace scheduler")

    async def stop(self, timeout: float = 5.0) -> None:
        """Stop the scheduler. Wait at most `timeout` seconds for a write that is under way.

        It is safe to interrupt a write: it takes effect completely or not at all.
        """
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def run(self) -> None:
        while not self._stopping:
            try:
                wait = await self.look()
                self._backoff.reset()
            except Exception as error:  # the store may be unavailable; due ticks are not lost
                self._failed(error)
                wait = self._backoff.next()
            await self._sleep(wait)

    async def look(self) -> float:
        """Read the schedules and enqueue the jobs of due ticks. Return the seconds to sleep until the next call."""
        store = await self._connected()
        now = await store.now()
        seen = {schedule.name: schedule for schedule in await store.schedules()}
        moves = [move for plan in list(self._plans.values()) if (move := self._move(plan, seen, now)) is not None]
        if not moves:
            return self._until_next(seen, now)
        answers = await store.advance(moves)
        for move, answer in zip(moves, answers, strict=True):
            self._note(move, answer, seen.get(move.name), now)
        return 1.0 if any(answer.status == "early" for answer in answers) else 0.0

    def _move(self, plan: Plan, seen: Mapping[str, Schedule], now: int) -> Move | None:
        name = plan.schedule.name
        stored, clock = seen.get(name), asyncio.get_running_loop().time()
        if self._refused_until.get(name, clock) > clock:
            return None
        decides = name not in self._defined
        if stored is not None and stored.digest != plan.schedule.digest and not decides:
            # Take it over if no scheduler runs it, but not repeatedly: two schedulers must not alternate.
            decides = overdue(plan, stored, now) and clock - self._defined[name] >= TAKEOVER / 1000
            if not decides:
                self._warn(name, stored.digest, "has another definition, from a process that started later and runs it")
        if stored is not None and stored.digest == plan.schedule.digest:
            self._defined.setdefault(name, clock)
            if stored.mark > now + FAR_AHEAD and not stored.paused:
                text = f"has run up to {instant_text(stored.mark)}, which is in the future by the store's clock. "
                self._warn(name, "ahead", text + f"To start again from now: app.schedule({name!r}).forget()")
        return next_move(plan, stored, now, decides)

    def _note(self, move: Move, answer: Moved, before: Schedule | None, now: int) -> None:
        name, plan = move.name, self._plans[move.name]
        if answer.status == "refused":
            self._refused_until[name] = asyncio.get_running_loop().time() + REFUSED_DELAY
            log.warning("schedule %s: its job cannot be enqueued now and will be tried again: %s", name, answer.problem)
        if answer.status != "ok" or answer.schedule is None:
            return
        if before is None or before.digest != plan.schedule.digest:
            self._defined[name] = asyncio.get_running_loop().time()
            log.info("schedule %s: %s (%s)", name, plan.schedule.expression, plan.schedule.tz)
            return
        first = plan.timetable.next(before.mark)
        if first is not None and first < now - plan.schedule.grace:
            text = "schedule %s: ticks from %s to %s were missed; missed=%r enqueues %d jobs"
            span = instant_text(first), instant_text(answer.schedule.mark)
            log.warning(text, name, *span, plan.schedule.missed, len(move.jobs))

    def _until_next(self, seen: Mapping[str, Schedule], now: int) -> float:
        wait = MAX_SLEEP
        for name, plan in list(self._plans.items()):
            stored = seen.get(name)
            if stored is None or stored.digest != plan.schedule.digest:
                continue  # a paused schedule counts: it may be resumed before its next tick
            tick = plan.timetable.next(max(stored.mark, now))
            if tick is not None:
                wait = min(wait, (tick - now) / 1000)
        clock = asyncio.get_running_loop().time()
        return min([wait, *(until - clock for until in self._refused_until.values() if until > clock)])

    async def _sleep(self, seconds: float) -> None:
        if self._stopping:
            return
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._wake.wait()

    def _warn(self, name: str, why: str, text: str) -> None:
        if (name, why) not in self._warned:
            self._warned.add((name, why))
            log.warning("schedule %s %s", name, text)


def _log_failure(error: Exception) -> None:
    log.warning("a call to the store failed and will be repeated: %s: %s", type(error).__name__, error)
