"""Counters that a limit goes by, compared with a recount of the records.

Every step of such a queue writes its settings object, so as long as that has the same tag, nothing has happened: what
was counted meanwhile is exact, and the correction is a swap from that very tag.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from millrace.domain.job import LIVE, Job, State
from millrace.domain.tables import QueueRow
from millrace.store.object.engine import Engine
from millrace.store.object.keys import TASKS, Entry, Layout, word
from millrace.store.object.objects import Change, Seen
from millrace.store.object.sweep.round import Round
from millrace.store.object.tables import count_jobs, newest
from millrace.store.object.values import JobValue, QueueValue, TasksValue, decode, encode
from millrace.store.object.view import all_keys

TRIES = 20  # of a count that is asked for, while others change what is counted
COUNTED = ("waiting", "running", "completed", "dead", "cancelled", "blocked", "archived", "archived_dead", "live")


class CounterSweep:
    def __init__(self, engine: Engine, round_: Round) -> None:
        self._engine = engine
        self._layout: Layout = engine.layout
        self._round = round_

    async def look_at_queues(self, keys: Sequence[str], *, surely: bool = False, busy: Container[str] = ()) -> None:
        """`surely`: look at the records also where the keys agree with the counters, and do not give way to others.

        `busy` are those where a step has just been taken. The ready key of a new job may be yet to come, while a lease
        key is always there before: so of these, only the number of those that run is corrected.
        """
        for _ in range(TRIES if surely else 1):
            lost: list[str] = []
            for seen in await self._round.read(keys):
                value = None if seen.value is None else decode(seen.value, QueueValue)
                if value is not None and value.row is not None:
                    done = await self._look_at(seen, value, value.row, surely, seen.key in busy)
                    lost += [] if done else [seen.key]
            if not lost:
                return
            keys = lost

    async def _look_at(self, seen: Seen, value: QueueValue, row: QueueRow, surely: bool, is_busy: bool) -> bool:
        """False when somebody else was faster."""
        spelled = word(value.name)
        prefixes = [f"ready/{shard}/{spelled}/" for shard in self._layout.shards]
        entries = await self._entries([*prefixes, f"held/{spelled}/", "leases/", f"done/{spelled}/"])
        entries = [entry for entry in entries if entry.queue == spelled]
        told = QueueRow(value.name)
        count_jobs(told, newest(entries))
        if _numbers(told) == _numbers(row) and not surely:
            return True
        recount = _recount(value.name, [job for job in await self._standing(entries) if job.queue == value.name])
        if is_busy:
            recount = msgspec.structs.replace(row, running=recount.running)
        if _numbers(recount) == _numbers(row):
            return True
        new = msgspec.structs.replace(
            row,
            **dict(zip(COUNTED, _numbers(recount), strict=True)),
            processed=row.processed + recount.completed - row.completed,
            died=row.died + recount.dead - row.dead,
        )
        committed = await self._round.objects.commit([Change(seen, encode(msgspec.structs.replace(value, row=new)))])
        self._round.done["counters_corrected"] += not committed.lost
        return not committed.lost

    async def look_at_tasks(self, *, surely: bool = False) -> None:
        for _ in range(TRIES if surely else 1):
            if await self._look_at_tasks():
                return

    async def _look_at_tasks(self) -> bool:
        for seen in await self._round.read([TASKS]):
            if seen.value is None:
                continue
            value = decode(seen.value, TasksValue)
            wanted = {word(name) for name in value.rows}
            entries = [entry for entry in await self._entries(["leases/"]) if entry.task in wanted]
            jobs = await self._standing(entries)
            wrong = False
            for name, row in value.rows.items():
                running = sum(job.task == name and job.state is State.RUNNING for job in jobs)
                wrong = wrong or running != row.running
                row.running = running
            if wrong:
                committed = await self._round.objects.commit([Change(seen, encode(value))])
                self._round.done["counters_corrected"] += not committed.lost
                return not committed.lost
        return True

    async def _entries(self, prefixes: Sequence[str]) -> list[Entry]:
        keys = [key for prefix in prefixes for key in await all_keys(self._round.objects, prefix)]
        return [entry for key in keys if (entry := Layout.parse(key)) is not None]

    async def _standing(self, entries: Sequence[Entry]) -> list[Job]:
        """The jobs themselves, as their records say, whatever the keys say of them."""
        keys = [*dict.fromkeys(self._layout.job_by_name(entry.name) for entry in entries)]
        found = await self._round.objects.read(keys)
        values = [decode(seen.value, JobValue) for seen in found if seen.value is not None]
        return [value.job for value in values if value.job is not None]


def _numbers(row: QueueRow) -> tuple[int, ...]:
    return tuple(getattr(row, name) for name in COUNTED)


def _recount(queue: str, jobs: Sequence[Job]) -> QueueRow:
    row = QueueRow(queue)
    for job in jobs:
        setattr(row, job.state.value, getattr(row, job.state.value) + 1)
        row.blocked += job.state is State.WAITING and job.blocked > 0
        row.archived += job.archived
        row.archived_dead += job.archived and job.state is State.DEAD
        row.live += job.state in LIVE and not job.spec.hook
    return row
