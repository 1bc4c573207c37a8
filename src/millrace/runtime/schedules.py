"""Schedules, as an operator sees them: all that are in the store, whichever process declared them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from millrace.domain.check import check_name
from millrace.domain.errors import InvalidInput, MissingExtra, StoreError
from millrace.domain.schedule import Move, Plan, Schedule, with_pause
from millrace.runtime.timetable import timetable
from millrace.store.protocol import Store

_TRIES = 50  # a schedule is written once a tick: to lose this often, something else is wrong


async def list_schedules(store: Store) -> list[Schedule]:
    """Every schedule, by name, with the tick that comes next by the store's clock."""
    now = await store.now()
    return [_fresh(schedule, now) for schedule in await store.schedules()]


def _fresh(schedule: Schedule, now: int) -> Schedule:
    if schedule.paused:
        return msgspec.structs.replace(schedule, next_tick=None)
    try:
        ticks = timetable(schedule.expression, schedule.tz)
    except (MissingExtra, InvalidInput):  # of a release that knows more than this one
        return schedule
    return msgspec.structs.replace(schedule, next_tick=ticks.next(max(schedule.mark, now)))


class ScheduleControl:
    """Made by `app.schedule(name)`; holds nothing but the name."""

    def __init__(self, name: str, connected: Callable[[], Awaitable[Store]], plans: Mapping[str, Plan]) -> None:
        check_name("schedule", name)
        self.name = name
        self._connected = connected
        self._plans = plans

    async def status(self) -> Schedule:
        store = await self._connected()
        return _fresh(await self._stored(store), await store.now())

    async def pause(self) -> Schedule:
        """No tick puts a job in once this has returned; jobs that are in already run. Durable, for all schedulers."""
        return await self._set_paused(True)

    async def resume(self) -> Schedule:
        """Go on from now: ticks that passed during the pause were not missed, they were not wanted."""
        return await self._set_paused(False)

    async def forget(self) -> None:
        """Remove it from the store. A running scheduler whose app still declares it makes it anew, from then on."""
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
        """The record; of a schedule that no scheduler has seen yet, the one it is to begin with."""
        known = {schedule.name: schedule for schedule in await store.schedules()}
        if self.name in known:
            return known[self.name]
        if self.name in self._plans and begin is not None:
            return msgspec.structs.replace(self._plans[self.name].schedule, mark=begin)
        raise InvalidInput(f"there is no schedule {self.name!r} in the store. Known are: {', '.join(known) or 'none'}.")

    def _contended(self) -> StoreError:
        return StoreError(f"schedule {self.name!r} was written by others {_TRIES} times in a row; ask again")

    def __repr__(self) -> str:
        return f"<Schedule {self.name!r}>"
