"""The scheduler: enqueues the jobs of schedules when they are due: those that its app declares, and the stored ones.

Any number of schedulers may run, and there is no leader. Each scheduler reads the stored schedules, decides, and tries
to write; if another scheduler was faster, it reads again. All instants are of the store's clock. The local clock only
measures how long to sleep, at most ten seconds.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from millrace.app.schedules.timetable import timetable, timetable_or_reason
from millrace.domain.rules.cron import instant_text
from millrace.domain.schedule import (
    TAKEOVER,
    DueSchedules,
    Move,
    Moved,
    Plan,
    Schedule,
    next_move,
    overdue,
    postponing_move,
    ticking_move,
)
from millrace.store.protocol import Store
from millrace.worker.backoff import Backoff, Chance

log = logging.getLogger("millrace.schedule")

MAX_SLEEP = 10.0  # seconds until a new schedule, a new definition or a changed clock is seen
MAX_BACKOFF = 30.0  # seconds between two calls to a store that is away
REFUSED_DELAY = 5.0  # seconds until a job that the store refused is tried again
FAR_AHEAD = 3_600_000
BATCH = 200  # stored schedules that one call advances
LEAST_WAIT = 1.0  # seconds until due schedules that this worker cannot run are read again


class Scheduler:
    """Runs the schedules of an app and those in the store until stopped. Workers have a scheduler."""

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
        self._backoff = Backoff(1.0, MAX_BACKOFF, chance)
        self._chance = chance
        self._defined: dict[str, float] = {}  # when this scheduler last wrote or found its definition of a schedule
        self._refused_until: dict[str, float] = {}
        self._warned: set[tuple[str, str]] = set()
        self._skip = 0  # due schedules that this worker cannot run, of the pages that were read since the last wait
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
        """Read the schedules and enqueue the jobs of due ticks. Return the seconds to sleep until the next call.

        The call reads the schedules that the app declares and those stored schedules that are due, so its cost does not
        grow with the number of the others.
        """
        store = await self._connected()
        seen = await store.due_schedules(list(self._plans), BATCH, self._skip)
        now, known = seen.now, {schedule.name: schedule for schedule in seen.named if schedule is not None}
        moves = [move for plan in list(self._plans.values()) if (move := self._move(plan, known, now)) is not None]
        declared = len(moves)
        moves += [move for schedule in seen.due if (move := self._stored_move(schedule, now)) is not None]
        least_wait = self._turn_page(seen, len(moves) - declared)
        if not moves:
            next_stored = MAX_SLEEP if seen.next_at is None else max(0, seen.next_at - now) / 1000
            return min(self._until_next(known, now), max(least_wait, next_stored))
        answers = await store.advance(moves)
        known |= {schedule.name: schedule for schedule in seen.due}
        for move, answer in zip(moves, answers, strict=True):
            self._note(move, answer, known.get(move.name), now)
        await self._postpone(store, answers[declared:], now)
        if any(answer.status == "early" for answer in answers):
            return 1.0
        is_overtaken = not declared and all(answer.status == "stale" for answer in answers)
        return self._chance() if is_overtaken else 0.0  # another scheduler is running this backlog

    def _turn_page(self, seen: DueSchedules, moves: int) -> float:
        """Choose the page that the next look reads, and return the least number of seconds until then.

        Schedules that this worker cannot run stay due. The next look skips them, so that they do not hold up the ones
        behind them. After the last page, the scheduler waits and begins with the first page again.
        """
        self._skip += len(seen.due) - moves
        least_wait = min(MAX_SLEEP, max(LEAST_WAIT, self._skip / BATCH)) if self._skip else 0.0
        is_last_page = seen.next_at is None or seen.next_at > seen.now
        if is_last_page:
            self._skip = 0
        return least_wait if is_last_page else 0.0

    async def _postpone(self, store: Store, answers: Sequence[Moved], now: int) -> None:
        """Try refused ticks of stored schedules again later, so that the ones behind them are not held up."""
        refused = [moved.schedule for moved in answers if moved.status == "refused" and moved.schedule is not None]
        if refused:
            until = now + round(REFUSED_DELAY * 1000)
            await store.advance([postponing_move(schedule, until) for schedule in refused])

    def _stored_move(self, schedule: Schedule, now: int) -> Move | None:
        if schedule.template is None:
            return None
        times = timetable_or_reason(schedule.expression, schedule.tz)
        if isinstance(times, str):
            self._warn(schedule.name, "times", f"cannot be run by this worker: {times}")
            return None
        return ticking_move(schedule, schedule.template, times, now)

    def _move(self, plan: Plan, seen: Mapping[str, Schedule], now: int) -> Move | None:
        name = plan.schedule.name
        stored, clock = seen.get(name), asyncio.get_running_loop().time()
        if self._refused_until.get(name, clock) > clock:
            return None
        if stored is not None and stored.template is not None:
            self._warn(name, "stored", "is stored in the store and declared in code; rename or remove one of them")
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
                self._warn(name, "ahead", text + f"To start again from now: app.schedules.remove({name!r})")
        return next_move(plan, stored, now, decides)

    def _note(self, move: Move, answer: Moved, before: Schedule | None, now: int) -> None:
        name, plan = move.name, self._plans.get(move.name)
        if answer.status == "refused":
            if plan is not None:
                self._refused_until[name] = asyncio.get_running_loop().time() + REFUSED_DELAY
            log.warning("schedule %s: its job cannot be enqueued now and will be tried again: %s", name, answer.problem)
        if answer.status != "ok" or answer.schedule is None:
            return
        if plan is not None and (before is None or before.digest != plan.schedule.digest):
            self._defined[name] = asyncio.get_running_loop().time()
            log.info("schedule %s: %s (%s)", name, plan.schedule.expression, plan.schedule.tz)
        elif before is not None and before.mark < now - before.grace:
            self._note_missed(before, answer.schedule, len(move.jobs), now)

    def _note_missed(self, before: Schedule, after: Schedule, jobs: int, now: int) -> None:
        first = timetable(before.expression, before.tz).next(before.mark)
        if first is not None and first < now - before.grace:
            text = "schedule %s: ticks from %s to %s were missed; missed=%r enqueues %d jobs"
            log.warning(text, before.name, instant_text(first), instant_text(after.mark), before.missed, jobs)

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
