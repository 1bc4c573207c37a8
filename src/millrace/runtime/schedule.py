"""The scheduler: looks at the schedules of its app, and carries out the ticks that are due.

It leads nobody and knows of no other. It reads the records, decides, and tries to write; when another scheduler was
faster it looks again. All instants are the store's, so clocks of schedulers may disagree; the local one only says how
long to sleep, and never for longer than half a minute.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from millrace.domain.cron import instant_text
from millrace.domain.schedule import TAKEOVER, Move, Moved, Plan, Schedule, next_move, overdue
from millrace.runtime.polling import Backoff, Chance
from millrace.store.protocol import Store

log = logging.getLogger("millrace.schedule")

LOOK = 30.0  # seconds: so soon a pause, a resume, a new definition or a changed clock is seen
HOLD_BACK = 5.0  # until jobs that were refused are tried again
FAR_AHEAD = 3_600_000


class Scheduler:
    """Runs the schedules of an app until stopped. Every worker has one; any number may run at once."""

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
        self._trouble = Backoff(1.0, LOOK, chance)
        self._said: dict[str, float] = {}  # when it last had its say on a definition
        self._held_back: dict[str, float] = {}
        self._warned: set[tuple[str, str]] = set()
        self._stopping = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self.run(), name="millrace scheduler")

    async def stop(self, timeout: float = 5.0) -> None:
        """A step that is under way ends first; cut off, it would be found done or undone by the next scheduler."""
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
                self._trouble.reset()
            except Exception as error:  # the store may be away for a while; the ticks wait for it
                self._failed(error)
                wait = self._trouble.next()
            await self._sleep(wait)

    async def look(self) -> float:
        """One round. Answers how many seconds to sleep until the next."""
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
        if self._held_back.get(name, clock) > clock:
            return None
        decides = name not in self._said
        if stored is not None and stored.digest != plan.schedule.digest and not decides:
            # Nobody else is there for it: but two that can do nothing about it must not take it from each other.
            decides = overdue(plan, stored, now) and clock - self._said[name] >= TAKEOVER / 1000
            if not decides:
                self._warn(name, stored.digest, "is defined otherwise by a process that began later, which runs it")
        if stored is not None and stored.digest == plan.schedule.digest:
            self._said.setdefault(name, clock)
            if stored.mark > now + FAR_AHEAD and not stored.paused:
                text = f"was carried out up to {instant_text(stored.mark)}, which the store's clock has yet to reach. "
                self._warn(name, "ahead", text + f"To begin anew from now: app.schedule({name!r}).forget()")
        return next_move(plan, stored, now, decides)

    def _note(self, move: Move, answer: Moved, before: Schedule | None, now: int) -> None:
        name, plan = move.name, self._plans[move.name]
        if answer.status == "refused":
            self._held_back[name] = asyncio.get_running_loop().time() + HOLD_BACK
            log.warning("schedule %s: its job cannot be put in now and will be tried again: %s", name, answer.problem)
        if answer.status != "ok" or answer.schedule is None:
            return
        if before is None or before.digest != plan.schedule.digest:
            self._said[name] = asyncio.get_running_loop().time()
            log.info("schedule %s: %s (%s)", name, plan.schedule.expression, plan.schedule.tz)
            return
        first = plan.timetable.next(before.mark)
        if first is not None and first < now - plan.schedule.grace:
            text = "schedule %s: ticks from %s to %s were missed; missed=%r puts %d jobs in"
            span = instant_text(first), instant_text(answer.schedule.mark)
            log.warning(text, name, *span, plan.schedule.missed, len(move.jobs))

    def _until_next(self, seen: Mapping[str, Schedule], now: int) -> float:
        wait = LOOK
        for name, plan in list(self._plans.items()):
            stored = seen.get(name)
            if stored is None or stored.paused or stored.digest != plan.schedule.digest:
                continue
            tick = plan.timetable.next(max(stored.mark, now))
            if tick is not None:
                wait = min(wait, (tick - now) / 1000)
        clock = asyncio.get_running_loop().time()
        return min([wait, *(until - clock for until in self._held_back.values() if until > clock)])

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
