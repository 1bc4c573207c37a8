"""Deletes index keys that are stale or never became valid, and data that no record names.

No name is used twice, so deleting a key never affects a valid one. A young key is kept, because it may still become
valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from millrace.domain.job import FINISHED, State
from millrace.store.object.driver import Listed
from millrace.store.object.engine.commit import EngineRun
from millrace.store.object.engine.engine import Engine
from millrace.store.object.engine.values import JobValue, value_of
from millrace.store.object.keys import name_of
from millrace.store.object.sweep.round import Round, name_in_key

FAMILIES = ("ready/", "held/", "leases/", "done/", "gone/")
ORPHANED_AFTER = 60 * 60 * 1000  # milliseconds before unnamed data is deleted: a write may be slow


class IndexSweep:
    def __init__(self, engine: Engine, round_: Round) -> None:
        self._engine = engine
        self._layout = engine.layout
        self._round = round_

    async def check(self, entries: Sequence[Listed]) -> int:
        """Check index keys, and delete the stale ones. Return the number of keys that were compared with a record."""
        doubtful = {entry.key: name for entry in entries if (name := self._doubtful(entry)) is not None}
        values = await self._values(doubtful.values())
        stale = [key for key, name in doubtful.items() if name in values and key not in self._valid_keys(values[name])]
        await self._delete(stale, "index_removed")
        return len(doubtful)

    def _doubtful(self, entry: Listed) -> str | None:
        """Return the name of the key's job if the key must be compared with the job's record; otherwise None."""
        name = name_in_key(entry.key)
        if name is None or not self._round.is_old(entry) or self._round.index_keys.get(name) == entry.key:
            return None
        return name if self._round.is_wanted(entry) or self._round.is_job_changed(name) else None

    def _valid_keys(self, value: JobValue) -> set[str]:
        return {value.index_key, *(self._layout.gone(past.gone_at, past.seq, past.id) for past in value.past)}

    async def _values(self, names: Iterable[str]) -> dict[str, JobValue]:
        """Return the records by name. A missing job has an empty record. Jobs that are being changed are left out."""
        keys = {self._layout.job_by_name(name): name for name in names}
        found = await self._round.read([*keys])
        return {keys[seen.key]: value_of(seen, JobValue) or JobValue() for seen in found}

    async def _delete(self, keys: Sequence[str], what: str) -> None:
        if keys:
            await self._round.blobs.delete(keys)
            self._round.done[what] += len(keys)

    # dependencies

    async def check_dependencies(self, entries: Sequence[Listed]) -> int:
        """Delete stale dependency keys, and update jobs whose parent has ended. Return the number of keys that were
        checked.
        """
        doubtful: list[tuple[str, str, int, str]] = []
        for entry in entries:
            _, parent, leaf = entry.key.split("/")
            number, _, child = leaf.partition(".")
            changed = self._round.is_job_changed(parent) or self._round.is_job_changed(child)
            if self._round.is_old(entry) and (changed or self._round.is_wanted(entry)):
                doubtful.append((entry.key, parent, int(number), child))
        values = await self._values(name for _, parent, _, child in doubtful for name in (parent, child))
        stale: list[str] = []
        unresolved: dict[str, None] = {}
        recalled: dict[str, None] = {}
        for key, parent, seq, child in doubtful:
            if child not in values:
                continue
            named = _runs_after(values[child], seq, parent)
            if named is None:
                stale.append(key)
            elif parent in values and _waits_for(values[child], named) and _has_ended(values[parent]):
                unresolved[named] = None
            elif parent in values and _is_to_return(values[child], named, values[parent]):
                recalled[named] = None
        await self._delete(stale, "index_removed")
        dependents = self._engine.dependents
        for job_id in unresolved:
            await self._update(await dependents.update_children([job_id]))
        for job_id in recalled:
            await self._update(await dependents.replay_children(job_id))
        return len(doubtful)

    async def _update(self, runs: Iterable[EngineRun[Any]]) -> None:
        for run in runs:
            self._round.done["dependents_updated"] += len(run.records)
            await self._engine.dependents.update(run)

    # large payloads and results

    async def check_data(self, entries: Sequence[Listed]) -> int:
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


def _data_of(value: JobValue) -> set[str]:
    return {*(value.data or {}).values(), *value.spilled}


def _runs_after(child: JobValue, seq: int, parent: str) -> str | None:
    """Return the id of the parent with this name, if the child depends on it; otherwise None."""
    job = child.job
    if job is None or job.seq != seq:
        return None
    return next((job_id for job_id in job.spec.after if name_of(job_id) == parent), None)


def _waits_for(child: JobValue, parent: str) -> bool:
    return child.job is not None and child.job.state is State.WAITING and parent in child.parents


def _is_to_return(child: JobValue, named: str, parent: JobValue) -> bool:
    """Return whether the child must be replayed.

    That is the case if it died because of this parent, and the parent has been replayed since.
    """
    died_of_it = child.job is not None and child.job.failed_parent == named
    back = parent.job is not None and parent.job.state not in (State.DEAD, State.CANCELLED)
    return died_of_it and back and parent.recalls


def _has_ended(parent: JobValue) -> bool:
    return parent.job.state in FINISHED if parent.job is not None else bool(parent.past)
