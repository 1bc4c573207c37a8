"""Control of schedules by an operator: lists, pauses, resumes and removes schedules declared by any process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from millrace.app.schedules.timetable import timetable
from millrace.domain.errors import InvalidInput, MissingExtra, StoreError
from millrace.domain.rules.check import check_name
from millrace.domain.schedule import Move, Plan, Schedule, with_pause
from millrace.store.protocol import Store

_TRIES = 50  # a schedule is written once per tick, so losing this often means that something else is wrong


async def list_schedules(store: Store) -> list[Schedule]:
    """Return all schedules in the store, sorted by name, each with its next tick (None while it is paused)."""
    now = await store.now()
    return [_fresh(schedule, now) for schedule in await store.schedules()]


def _fresh(schedule: Schedule, now: int) -> Schedule:
    if schedule.paused:
        return msgspec.structs.replace(schedule, next_tick=None)
    try:
        ticks = timetable(schedule.expression, schedule.tz)
    except (MissingExtra, InvalidInput):  # an expression from a newer release
        return schedule
    return msgspec.structs.replace(schedule, next_tick=ticks.next(max(schedule.mark, now)))


class ScheduleControl:
    """A handle for one schedule, returned by `app.schedule(name)`. Creating it does not access the store."""

    def __init__(self, name: str, connected: Callable[[], Awaitable[Store]], plans: Mapping[str, Plan]) -> None:
        check_name("schedule", name)
        self.name = name
        self._connected = connected
        self._plans = plans

    async def status(self) -> Schedule:
        store = await self._connected()
        return _fresh(await self._stored(store), await store.now())

    async def pause(self) -> Schedule:
        """Stop the ticks of the schedule, durably and for all schedulers. Return the schedule.

        Jobs that are already enqueued still run.
        """
        return await self._set_paused(True)

    async def resume(self) -> Schedule:
        """Continue the schedule from now. Return the schedule.

        Ticks during the pause are skipped and do not count as missed.
        """
        return await self._set_paused(False)

    async def forget(self) -> None:
        """Remove the schedule from the store. A running scheduler that still declares the schedule creates it again."""
        store = await self._connected()
        for _ in range(_TRIES):
            stored = await self._stored(store)
            [answer] = await store.advance([Move(self.name, stored.rev, None)])
            if answer.status == "ok":
                return
        raise self._contended()

    async def _set_paused(self, paused: bool) -> Schedule:
        store = await self._connected()
        for _ in range(_TRIES):
            now = await store.now()
            stored = await self._stored(store, now)
            changed = with_pause(stored, paused, now)
            if changed == stored and stored.rev:
                return _fresh(stored, now)
            [answer] = await store.advance([Move(self.name, stored.rev, changed)])
            if answer.status == "ok" and answer.schedule is not None:
                return _fresh(answer.schedule, now)
        raise self._contended()

    async def _stored(self, store: Store, begin: int | None = None) -> Schedule:
        """Return the schedule's record. Raises InvalidInput if no schedule has this name.

        If the app declares the schedule but it is not stored yet, return a new record whose ticks count as done up to
        the instant `begin`. Without `begin`, raise InvalidInput for such a schedule too.
        """
        known = {schedule.name: schedule for schedule in await store.schedules()}
        if self.name in known:
            return known[self.name]
        if self.name in self._plans and begin is not None:
            return msgspec.structs.replace(self._plans[self.name].schedule, mark=begin)
        raise InvalidInput(f"there is no schedule {self.name!r} in the store. Known are: {', '.join(known) or 'none'}.")

    def _contended(self) -> StoreError:
        return StoreError(f"schedule {self.name!r} was changed by others {_TRIES} times in a row; try again")

    def __repr__(self) -> str:
        return f"<Schedule {self.name!r}>"
