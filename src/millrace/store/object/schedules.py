"""Reads schedules from objects: by name, and the due ones by their index keys under `ticks/`.

A key is written before the schedule that it belongs to, and deleted after the schedule has changed, so every schedule
with a `due_at` has its key. After a crash or a lost race, keys without a schedule are left. They are
deleted when their time has come and a scheduler reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.domain.job import MINUTE
from millrace.domain.schedule import DueSchedules, Schedule
from millrace.store.object.engine.objects import Objects
from millrace.store.object.engine.values import value_of
from millrace.store.object.keys import Layout, unspelled

PAGE = 200  # objects that are read together
_PREFIX = "schedules/"


async def list_schedules(objects: Objects, after: str, limit: int) -> list[Schedule]:
    """Return up to `limit` schedules whose name is greater than `after`, sorted by name."""
    names: dict[str, str] = {}
    for key in await objects.blobs.all_keys(_PREFIX):
        name = unspelled(key.removeprefix(_PREFIX).removesuffix(".json"))
        if name is None:  # the key has only a hash of the name
            [schedule] = await _read(objects, [key])
            name = "" if schedule is None else schedule.name
        if name > after:
            names[name] = key
    found: list[Schedule] = []
    keys = [names[name] for name in sorted(names)]
    while keys and len(found) < limit:
        size = min(PAGE, limit - len(found))
        found += [schedule for schedule in await _read(objects, keys[:size]) if schedule is not None]
        keys = keys[size:]
    return found


async def due_schedules(
    objects: Objects, layout: Layout, names: Sequence[str], limit: int, skip: int, now: int, *, repairs: bool
) -> DueSchedules:
    """Return what a scheduler looks at. With `repairs`, delete keys that no schedule has any more."""
    keys = await objects.blobs.all_keys("ticks/", skip + limit + 1) if limit else ()
    ticks = [_Tick(key) for key in keys]
    waiting = [tick for tick in ticks if tick.at <= now]
    passed = waiting[skip : skip + limit]
    read = await _read(
        objects, [layout.schedule(name) for name in names] + [f"{_PREFIX}{tick.word}.json" for tick in passed]
    )
    due: list[Schedule] = []
    stale: list[str] = []
    for tick, schedule in zip(passed, read[len(names) :], strict=True):
        if schedule is not None and layout.tick(schedule) == tick.key:
            due.append(schedule)
        elif tick.is_stale(schedule, now):
            stale.append(tick.key)
    if stale and repairs:
        await objects.blobs.delete(stale)
    more = now if limit and len(due) + len(stale) == limit else None
    rest = [tick.at for tick in waiting[skip + limit :] + ticks[len(waiting) :]]
    return DueSchedules(now, read[: len(names)], due, more or next(iter(rest), None))


async def _read(objects: Objects, keys: Sequence[str]) -> list[Schedule | None]:
    return [value_of(seen, Schedule) for seen in await objects.read(keys)]


class _Tick:
    """An index key: the time, the revision that it belongs to, and the name as spelled in keys."""

    def __init__(self, key: str) -> None:
        self.key = key
        at, rev, self.word = key.rsplit("/", 1)[1].split(".", 2)
        self.at, self.rev = int(at), int(rev)

    def is_stale(self, schedule: Schedule | None, now: int) -> bool:
        """Return whether no write can need this key. `schedule` is the record, which has another key.

        A key of a later revision may belong to a write under way. A new schedule is written long before its first tick
        is a minute old.
        """
        return self.at < now - MINUTE if schedule is None else self.rev <= schedule.rev
