"""Checks the counters that limits use, by counting the records again.

Every step of a queue with such counters writes the queue's settings object. So if the tag of that object is the same
after the recount, nothing has changed and the count is exact. The correction is a swap that expects this tag.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from millrace.domain.job import LIVE, Job, State
from millrace.domain.tables import QueueRow
from millrace.store.object.engine.engine import Engine
from millrace.store.object.engine.objects import SeenObject, Swap
from millrace.store.object.engine.tables import count_jobs, newest
from millrace.store.object.engine.values import JobValue, QueueValue, TasksValue, encode, value_of
from millrace.store.object.keys import TASKS, IndexEntry, Layout, word
from millrace.store.object.sweep.round import Round

TRIES = 20  # attempts of a requested recount, while others change the jobs
COUNTED = ("waiting", "running", "completed", "dead", "cancelled", "blocked", "archived", "archived_dead", "live")


class CounterSweep:
    def __init__(self, engine: Engine, round_: Round) -> None:
        self._engine = engine
        self._layout: Layout = engine.layout
        self._round = round_

    async def check_queues(self, keys: Sequence[str], *, exactly: bool = False, busy: Container[str] = ()) -> None:
        """Check the counters of these queues.

        With `exactly`, read the records even if index keys and counters agree, and try again if a queue changes
        meanwhile.

        Queues in `busy` have had a recent step. The index key of a new job may not be written there yet, so only the
        number of running jobs is corrected: lease keys are always written first.
        """
        for _ in range(TRIES if exactly else 1):
            lost: list[str] = []
            for seen in await self._round.read(keys):
                value = value_of(seen, QueueValue)
                if value is not None and value.row is not None:
                    done = await self._check_queue(seen, value, value.row, exactly, seen.key in busy)
                    lost += [] if done else [seen.key]
            if not lost:
                return
            keys = lost

    async def _check_queue(
        self, seen: SeenObject, value: QueueValue, row: QueueRow, exactly: bool, is_busy: bool
    ) -> bool:
        """Check and correct the counters of one queue. Return False if the queue changed meanwhile."""
        spelled = word(value.name)
        entries = await self._entries(self._layout.prefixes_of_queue(spelled))
        entries = [entry for entry in entries if entry.queue == spelled]
        listed = QueueRow(value.name)
        count_jobs(listed, newest(entries))
        if _numbers(listed) == _numbers(row) and not exactly:
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
        committed = await self._round.objects.commit([Swap(seen, encode(msgspec.structs.replace(value, row=new)))])
        self._round.done["counters_corrected"] += not committed.lost
        return not committed.lost

    async def check_tasks(self, *, exactly: bool = False) -> None:
        for _ in range(TRIES if exactly else 1):
            if await self._check_tasks():
                return

    async def _check_tasks(self) -> bool:
        for seen in await self._round.read([TASKS]):
            value = value_of(seen, TasksValue)
            if value is None:
                continue
            wanted = {word(name) for name in value.rows}
            entries = [entry for entry in await self._entries(["leases/"]) if entry.task in wanted]
            jobs = await self._standing(entries)
            wrong = False
            for name, row in value.rows.items():
                running = sum(job.task == name and job.state is State.RUNNING for job in jobs)
                wrong = wrong or running != row.running
                row.running = running
            if wrong:
                committed = await self._round.objects.commit([Swap(seen, encode(value))])
                self._round.done["counters_corrected"] += not committed.lost
                return not committed.lost
        return True

    async def _entries(self, prefixes: Sequence[str]) -> list[IndexEntry]:
        return Layout.entries([key for prefix in prefixes for key in await self._round.blobs.all_keys(prefix)])

    async def _standing(self, entries: Sequence[IndexEntry]) -> list[Job]:
        """Read and return the jobs of these entries. Jobs that no longer exist are left out."""
        keys = [*dict.fromkeys(self._layout.job_by_name(entry.name) for entry in entries)]
        found = await self._round.objects.read(keys)
        values = [value_of(seen, JobValue) for seen in found]
        return [value.job for value in values if value is not None and value.job is not None]


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
