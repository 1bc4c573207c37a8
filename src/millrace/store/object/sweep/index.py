"""Index keys that say what is no longer so, or never was: their jobs stand elsewhere, and their data is not named.

Deleting one is always exact, since no name is ever used twice. What a young key says may yet become true, so it stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millrace.domain.job import FINISHED, State
from millrace.store.object.driver import Entry
from millrace.store.object.engine import Engine
from millrace.store.object.keys import name_of
from millrace.store.object.objects import Seen
from millrace.store.object.sweep.round import Round
from millrace.store.object.sweep.share import name_in_key
from millrace.store.object.values import JobValue, decode

FAMILIES = ("ready/", "held/", "leases/", "done/", "gone/")
ORPHANED_AFTER = 60 * 60 * 1000  # of large data: a write may be slow, and nobody is in a hurry


class IndexSweep:
    def __init__(self, engine: Engine, round_: Round) -> None:
        self._engine = engine
        self._layout = engine.layout
        self._round = round_

    async def look(self, entries: Sequence[Entry]) -> int:
        """Keys of the families above; answers how many had to be looked into."""
        doubtful = {entry.key: name for entry in entries if (name := self._doubtful(entry)) is not None}
        values = await self._values(doubtful.values())
        stale = [key for key, name in doubtful.items() if name in values and key not in self._said_by(values[name])]
        await self._delete(stale, "index_removed")
        return len(doubtful)

    def _doubtful(self, entry: Entry) -> str | None:
        """The name of the job, if what the key says of it has to be checked."""
        name = name_in_key(entry.key)
        if name is None or not self._round.is_old(entry) or self._round.filed.get(name) == entry.key:
            return None
        return name if self._round.is_wanted(entry) or self._round.is_job_changed(name) else None

    def _said_by(self, value: JobValue) -> set[str]:
        return {value.filed, *(self._layout.gone(past.gone_at, past.seq, past.id) for past in value.past)}

    async def _values(self, names: Iterable[str]) -> dict[str, JobValue]:
        """Records by name; empty ones for what is not there, none for what somebody is about to change."""
        keys = {self._layout.job_by_name(name): name for name in names}
        found = await self._round.read([*keys])
        return {keys[seen.key]: _value(seen) for seen in found}

    async def _delete(self, keys: Sequence[str], what: str) -> None:
        if keys:
            await self._round.blobs.delete(keys)
            self._round.done[what] += len(keys)

    # dependencies

    async def look_at_dependencies(self, entries: Sequence[Entry]) -> int:
        """Keys that say nothing any more go; who waits for what has ended is told."""
        doubtful: list[tuple[str, str, int, str]] = []
        for entry in entries:
            _, parent, leaf = entry.key.split("/")
            number, _, child = leaf.partition(".")
            changed = self._round.is_job_changed(parent) or self._round.is_job_changed(child)
            if self._round.is_old(entry) and (changed or self._round.is_wanted(entry)):
                doubtful.append((entry.key, parent, int(number), child))
        values = await self._values(name for _, parent, _, child in doubtful for name in (parent, child))
        stale: list[str] = []
        untold: dict[str, None] = {}
        for key, parent, seq, child in doubtful:
            if child not in values:
                continue
            waited_for = _waits_for(values[child], seq, parent)
            if waited_for is None:
                stale.append(key)
            elif parent in values and _has_ended(values[parent]):
                untold[waited_for] = None
        await self._delete(stale, "index_removed")
        for job_id in untold:
            await self._tell(job_id)
        return len(doubtful)

    async def _tell(self, parent: str) -> None:
        for run in await self._engine.dependents.of(parent):
            self._round.done["dependents_told"] += len(run.records)
            await self._engine.dependents.tell(run)

    # large payloads and results

    async def look_at_data(self, entries: Sequence[Entry]) -> int:
        doubtful: dict[str, str] = {}
        for entry in entries:
            name = entry.key.split("/")[2]
            recent = self._round.since is None or entry.modified > self._round.since - 2 * ORPHANED_AFTER
            if entry.modified <= self._round.now - ORPHANED_AFTER and (
                recent or self._round.is_job_changed(name) or self._round.is_wanted(entry)
            ):
                doubtful[entry.key] = name
        values = await self._values(doubtful.values())
        orphaned = [key for key, name in doubtful.items() if name in values and key not in _data_of(values[name])]
        await self._delete(orphaned, "data_removed")
        return len(doubtful)


def _value(seen: Seen) -> JobValue:
    return JobValue() if seen.value is None else decode(seen.value, JobValue)


def _data_of(value: JobValue) -> set[str]:
    return {*(value.data or {}).values(), *value.spilled}


def _waits_for(child: JobValue, seq: int, parent: str) -> str | None:
    """The id of the parent of that name, if the child waits for it."""
    job = child.job
    if job is None or job.seq != seq or job.state is not State.WAITING:
        return None
    return next((job_id for job_id in child.parents if name_of(job_id) == parent), None)


def _has_ended(parent: JobValue) -> bool:
    return parent.job.state in FINISHED if parent.job is not None else bool(parent.past)
