"""`app.schedules`: lists the schedules of all processes, changes them at run time, and pauses and removes them.

A schedule that is stored here has the spec of its jobs, so every worker of the store runs it. Every change is a
conditional write (`Move`): a change that another process has overtaken is decided again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Unpack, overload

import msgspec

from millrace.app.schedules.plan import ScheduleDefinition, TimesKeywords, definition_of, stored_plan
from millrace.app.schedules.timetable import timetable, timetable_or_reason
from millrace.domain.errors import InvalidInput, StoreError
from millrace.domain.job import Spec
from millrace.domain.rules.check import check_name
from millrace.domain.schedule import Move, Plan, Schedule, defining_move, with_pause
from millrace.store.protocol import Store

CHUNK = 500  # schedules that one call of the store changes
_SHOWN = 10  # known names in an error
_TRIES = 50  # a schedule is written once per tick, so losing this often means that something else is wrong

Decide = Callable[[str, Schedule | None, int], Move | None]


class Schedules:
    """The schedules in the store of an app, returned by `app.schedules`.

    Schedules that are declared in code with `app.cron(…)` are listed here, and can be paused and removed. Only those
    that were stored with `put` can be changed.
    """

    def __init__(self, connected: Callable[[], Awaitable[Store]], plans: Mapping[str, Plan]) -> None:
        self._connected = connected
        self._plans = plans

    async def put(self, name: str, spec: Spec, **times: Unpack[TimesKeywords]) -> Schedule:
        """Store a schedule whose ticks enqueue `spec`, or change the schedule with this name. Return it.

        await app.schedules.put("report.acme", report.spec(customer="acme"), cron="0 8 * * *", tz="Europe/Berlin")

        Any worker of the store runs the schedule. Putting the same definition again changes nothing. A changed
        definition keeps a pause. If its times have changed, it continues with the next tick.
        """
        [schedule] = await self.put_many([ScheduleDefinition(name, spec, **times)])
        return schedule

    async def put_many(self, definitions: Iterable[ScheduleDefinition]) -> list[Schedule]:
        """Store many schedules, in chunks of 500 with two calls of the store each. Return them in the same order.

        All definitions are checked before the first one is stored.
        """
        plans: dict[str, Plan] = {}
        for definition in definitions:
            if definition.name in plans:
                raise InvalidInput(f"schedule {definition.name!r} occurs twice in one call; leave one of them out")
            if definition.name in self._plans:
                raise _declared(definition.name)
            plans[definition.name] = stored_plan(definition)

        def decide(name: str, seen: Schedule | None, now: int) -> Move | None:
            if seen is not None and seen.template is None:
                raise _declared(name)
            plan = plans[name]
            same = seen is not None and seen.digest == plan.schedule.digest
            return None if same else defining_move(plan, seen, now)

        return await self._changed(plans, decide)

    async def update(self, name: str, *, spec: Spec | None = None, **times: Unpack[TimesKeywords]) -> Schedule:
        """Change parts of a schedule that was stored with `put`: what is not passed stays. Return the schedule.

        await app.schedules.update("report.acme", cron="0 9 * * *")
        """

        def decide(_: str, seen: Schedule | None, now: int) -> Move | None:
            if seen is None:
                raise InvalidInput(f"there is no schedule {name!r} in the store. Store it with app.schedules.put(…)")
            changes = dict(times) if spec is None else {**times, "spec": spec}
            if "cron" in changes or "every" in changes:
                changes = {"cron": None, "every": None, **changes}
            plan = stored_plan(msgspec.structs.replace(definition_of(seen), **changes))
            return None if plan.schedule.digest == seen.digest else defining_move(plan, seen, now)

        [schedule] = await self._changed([name], decide)
        return schedule

    async def get(self, name: str) -> Schedule | None:
        """Return the schedule with this name and its next tick; None if it is not in the store."""
        check_name("schedule", name)
        store = await self._connected()
        found = await store.due_schedules([name], 0)
        return None if found.named[0] is None else shown(found.named[0], found.now)

    async def page(self, *, after: str = "", limit: int = 100) -> list[Schedule]:
        """Return up to `limit` schedules of all processes, sorted by name, with their next ticks.

        For the next page, pass the last name of this page as `after`.
        """
        if limit < 1:
            raise InvalidInput(f"limit must be at least 1, not {limit!r}")
        store = await self._connected()
        now = await store.now()
        return [shown(schedule, now) for schedule in await store.schedules(after, limit)]

    async def __aiter__(self) -> AsyncIterator[Schedule]:
        """Iterate over the schedules of all processes, sorted by name: `async for schedule in app.schedules`."""
        after = ""
        while page := await self.page(after=after, limit=CHUNK):
            for schedule in page:
                yield schedule
            after = page[-1].name

    @overload
    async def pause(self, names: str) -> Schedule: ...  # type: ignore[overload-overlap]
    @overload
    async def pause(self, names: Iterable[str]) -> list[Schedule]: ...
    async def pause(self, names: str | Iterable[str]) -> Schedule | list[Schedule]:
        """Stop the ticks of one schedule or of many, durably and for all workers. Return the schedules.

        Jobs that are already enqueued still run. Raises InvalidInput if a schedule is not in the store.
        """
        return await self._set_paused(names, True)

    @overload
    async def resume(self, names: str) -> Schedule: ...  # type: ignore[overload-overlap]
    @overload
    async def resume(self, names: Iterable[str]) -> list[Schedule]: ...
    async def resume(self, names: str | Iterable[str]) -> Schedule | list[Schedule]:
        """Continue one schedule or many from now. Return the schedules.

        Ticks during the pause are skipped and do not count as missed.
        """
        return await self._set_paused(names, False)

    async def remove(self, names: str | Iterable[str]) -> int:
        """Remove schedules from the store. Return how many were there. Jobs that are already enqueued still run.

        A running worker whose app still declares a schedule in code stores it again.
        """
        removed = 0

        def decide(name: str, seen: Schedule | None, now: int) -> Move | None:
            return None if seen is None else Move(name, seen.rev, None)

        def count(_: Move) -> None:
            nonlocal removed
            removed += 1

        await self._change([names] if isinstance(names, str) else list(names), decide, count)
        return removed

    async def _set_paused(self, names: str | Iterable[str], paused: bool) -> Schedule | list[Schedule]:
        def decide(name: str, seen: Schedule | None, now: int) -> Move | None:
            if seen is None and name not in self._plans:
                raise _Unknown(name)
            known = msgspec.structs.replace(self._plans[name].schedule, mark=now) if seen is None else seen
            if known.paused == paused and seen is not None:
                return None
            ticks = None if known.template is None or paused else timetable(known.expression, known.tz)
            return Move(name, known.rev, with_pause(known, paused, now, ticks))

        wanted = [names] if isinstance(names, str) else list(names)
        try:
            changed = await self._changed(wanted, decide)
        except _Unknown as error:
            raise InvalidInput(await self._no_schedule(error.name)) from None
        return changed[0] if isinstance(names, str) else changed

    async def _no_schedule(self, name: str) -> str:
        known = [schedule.name for schedule in await (await self._connected()).schedules("", _SHOWN + 1)]
        more = ", …" if len(known) > _SHOWN else ""
        text = ", ".join(known[:_SHOWN]) or "none"
        return f"there is no schedule {name!r} in the store. Known are: {text}{more}."

    async def _changed(self, names: Iterable[str], decide: Decide) -> list[Schedule]:
        names = list(names)
        found = await self._change(names, decide)
        now = await (await self._connected()).now() if names else 0
        return [shown(schedule, now) for name in names if (schedule := found[name]) is not None]

    async def _change(
        self, names: list[str], decide: Decide, written: Callable[[Move], None] = lambda move: None
    ) -> dict[str, Schedule | None]:
        """Write what `decide` returns for each schedule, and return the schedules that are then stored, by name."""
        for name in names:
            check_name("schedule", name)
        store = await self._connected()
        found: dict[str, Schedule | None] = {}
        for first in range(0, len(names), CHUNK):
            left = list(dict.fromkeys(names[first : first + CHUNK]))
            for _ in range(_TRIES):
                left = await self._change_once(store, left, decide, written, found)
                if not left:
                    break
            else:
                raise StoreError(f"schedule {left[0]!r} was changed by others {_TRIES} times in a row; try again")
        return found

    async def _change_once(
        self,
        store: Store,
        names: list[str],
        decide: Decide,
        written: Callable[[Move], None],
        found: dict[str, Schedule | None],
    ) -> list[str]:
        """Decide and write once. Return the names of the schedules that others have changed meanwhile."""
        seen = await store.due_schedules(names, 0)
        moves: list[Move] = []
        for name, schedule in zip(names, seen.named, strict=True):
            move = decide(name, schedule, seen.now)
            if move is None:
                found[name] = schedule
            else:
                moves.append(move)
        overtaken: list[str] = []
        for move, answer in zip(moves, await store.advance(moves) if moves else (), strict=True):
            if answer.status == "ok":
                found[move.name] = answer.schedule
                written(move)
            else:
                overtaken.append(move.name)
        return overtaken

    def __repr__(self) -> str:
        return "<Schedules>"


class _Unknown(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def shown(schedule: Schedule, now: int) -> Schedule:
    """Return a schedule with its next tick after `now`; None while it is paused."""
    if schedule.paused:
        return msgspec.structs.replace(schedule, next_tick=None)
    ticks = timetable_or_reason(schedule.expression, schedule.tz)
    if isinstance(ticks, str):
        return schedule
    return msgspec.structs.replace(schedule, next_tick=ticks.next(max(schedule.mark, now)))


def _declared(name: str) -> InvalidInput:
    return InvalidInput(
        f"schedule {name!r} is declared in code with app.cron(…). Change it there, or give this one another name. To "
        f"move it to the store, remove it from the code, then call app.schedules.remove({name!r})"
    )
