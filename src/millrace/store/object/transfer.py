"""Exports and imports what an object store keeps.

The store is closed meanwhile. A reader of a queue's object sees that it is closed (`QueueValue.closed`): every change
reads that object anyway. Only for a queue without an object, the object of the store is read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from millrace.domain.event import Event
from millrace.domain.export import Exported, ExportedHold, ExportedJob, ExportedPast, ExportPage
from millrace.domain.job import LIVE, Job
from millrace.domain.ledger import Ledger
from millrace.domain.rules import exporting
from millrace.domain.rules.importing import import_records
from millrace.domain.settings import Closing
from millrace.domain.tables import KeyHold, Past
from millrace.store.object.engine.engine import Engine
from millrace.store.object.engine.job_table import TableOptions
from millrace.store.object.engine.objects import SeenObject, Swap
from millrace.store.object.engine.values import (
    JobValue,
    KeyValue,
    LineValue,
    QueueValue,
    StoreValue,
    encode,
    events_in,
    job_value,
    value_of,
)
from millrace.store.object.keys import STORE
from millrace.store.object.reading import JobReader

_COUNTING = TableOptions(counting=True)
_IMPORTING = TableOptions(imports=True)


class ObjectTransfer:
    """The export and the import of one store.

    Objects are listed by name, but an export is in the order of seqs. So it lists the index of all jobs once.
    """

    def __init__(self, engine: Engine, reader: JobReader) -> None:
        self._engine = engine
        self._layout = engine.layout
        self._reader = reader
        self._jobs: list[tuple[int, str]] | None = None  # (seq, object) of all jobs
        self._gone: list[tuple[int, int, str]] | None = None  # (gone_at, seq, object) of deleted generations
        self._keys: list[str] | None = None  # the objects of unique keys

    async def close(self, old: Closing | None, why: Closing | None) -> None:
        """Write to the objects of all queues why the store is closed, or that it is open.

        If only the cursor of an import changes, they stay as they are. If nothing changes, they are written again,
        because other processes may have added queues meanwhile. End early if another command changes the stage
        meanwhile: then that one writes the objects.
        """
        self._jobs = self._gone = self._keys = None
        if old != why and _answer(old) == _answer(why):
            return
        opens = why is None or why.stage == "opened"
        stage, mark = (old, None) if opens else (why, why)
        for key in await self._engine.blobs.all_keys("control/queues/"):
            while True:
                [seen, store] = await self._engine.objects.read([key, STORE])
                if (value_of(store, StoreValue) or StoreValue()).settings.closed not in (stage, why):
                    return
                value = value_of(seen, QueueValue)
                if seen.lock is not None:
                    await self._engine.objects.unlock(seen)
                    continue
                if value is None or _answer(value.closed) == _answer(mark):
                    break
                body = encode(msgspec.structs.replace(value, closed=mark))
                if not (await self._engine.objects.commit([Swap(seen, body)])).lost:
                    break

    async def import_records(self, records: Sequence[Exported], move: str) -> int:
        jobs = [record.job.id for record in records if isinstance(record, ExportedJob)]
        gone = [record.past.id for record in records if isinstance(record, ExportedPast)]
        run = await self._engine.carry_out(
            [(None, lambda ledger, _: import_records(ledger.tables, records, move))],
            together=True,
            options=_IMPORTING,
            guessed=[SeenObject(self._layout.job(job_id), None, None) for job_id in dict.fromkeys([*jobs, *gone])],
        )
        return run.answers[0]

    # ── export ────────────────────────────────────────────────────────────────────────────────

    async def export(self, cursor: str | None, limit: int) -> ExportPage:
        if cursor is None:
            self._jobs = self._gone = self._keys = None
            record, _ = await self._engine.decide(self._engine.view(), _store_record, _COUNTING)
            return ExportPage((record,), exporting.FIRST)
        kind, numbers = exporting.parse(cursor)
        if kind == exporting.PAST:
            return await self._page_of_past((numbers[0], numbers[1]), limit)
        if kind == exporting.JOBS:
            return await self._page_of_jobs(numbers[0], limit)
        return await self._page_of_holds(numbers[0], limit)

    async def _page_of_jobs(self, after: int, limit: int) -> ExportPage:
        if self._jobs is None:
            self._jobs = await self._reader.all_jobs()
        start = bisect_right(self._jobs, (after, "\uffff"))
        some = self._jobs[start : start + limit]
        read = await self._values([key for _, key in some])
        # The key of a write that a crash broke off names a seq that no job has.
        values = [value for (seq, _), value in zip(some, read, strict=True) if value.job and value.job.seq == seq]
        jobs = [value.job for value in values if value.job is not None]
        holds, ended = await self._held(jobs), await self._ended_in_lines(jobs)
        cut = await self._cut()
        records = [
            ExportedJob(
                job,
                await self._events(value, job.seq, cut),
                value.parents if job.blocked else (),
                holds.get(job.id),
                ended.get((job.queue, job.line), (0, 0)) if job.state in LIVE else (0, 0),
            )
            for value in values
            if (job := value.job) is not None
        ]
        cursor = f"{exporting.JOBS}:{some[-1][0]}" if len(some) >= limit else exporting.FIRST_HOLD
        return ExportPage(tuple(records), cursor)

    async def _page_of_past(self, after: tuple[int, int], limit: int) -> ExportPage:
        if self._gone is None:
            names = [key.split("/")[2].split(".") for key in await self._engine.blobs.all_keys("gone/")]
            found = [(int(at), int(seq), self._layout.job_by_name(name)) for at, seq, name in names]
            self._gone = sorted(dict.fromkeys(found))
        start = bisect_right(self._gone, (*after, "\uffff"))
        some = self._gone[start : start + limit]
        values = await self._values([key for _, _, key in some])
        found_past: list[tuple[Past, JobValue]] = [
            (past, value)
            for (_, seq, _), value in zip(some, values, strict=True)
            for past in value.past
            if past.seq == seq
        ]
        cut = await self._cut()
        records = [ExportedPast(past, await self._events(value, past.seq, cut)) for past, value in found_past]
        cursor = f"{exporting.PAST}:{some[-1][0]}:{some[-1][1]}" if len(some) >= limit else f"{exporting.JOBS}:0"
        return ExportPage(tuple(records), cursor)

    async def _values(self, keys: Sequence[str]) -> list[JobValue]:
        view = self._engine.view()
        await view.load([*dict.fromkeys(keys)])
        return [job_value(view.seen[key].value, view.large) for key in keys]

    async def _events(self, value: JobValue, seq: int, cut: tuple[int, int]) -> tuple[Event, ...]:
        parts = await self._engine.blobs.get_many(value.spilled)
        kept = [*(one for part in parts for one in events_in(part)), *value.events]
        mine = [one.event for one in kept if one.position > cut and one.event.seq == seq]
        return tuple(sorted(mine, key=lambda event: event.n))

    async def _cut(self) -> tuple[int, int]:
        """Return how far the feed has been trimmed."""
        [seen] = await self._engine.objects.read([STORE])
        return (value_of(seen, StoreValue) or StoreValue()).trimmed.position

    async def _held(self, jobs: Sequence[Job]) -> dict[str, KeyHold]:
        """Return the unique keys that these jobs hold, by the id of the job. A key outlasts its scope: see `key` of
        engine/index_table.py.
        """
        named = [(job, self._layout.unique_key(job.queue, job.spec.key)) for job in jobs if job.spec.key is not None]
        seen = await self._engine.objects.read([key for _, key in named])
        held: dict[str, KeyHold] = {}
        for (job, _), one in zip(named, seen, strict=True):
            value = value_of(one, KeyValue)
            if value is not None and value.hold.seq == job.seq and (value.hold.scope != "live" or job.state in LIVE):
                held[job.id] = value.hold
        return held

    async def _ended_in_lines(self, jobs: Sequence[Job]) -> dict[tuple[str, str | None], tuple[int, int]]:
        places = dict.fromkeys((job.queue, job.line) for job in jobs if job.line is not None and job.state in LIVE)
        seen = await self._engine.objects.read([self._layout.line(queue, line or "") for queue, line in places])
        values = [value_of(one, LineValue) for one in seen]
        return {
            place: (value.line.processed, value.line.died)
            for place, value in zip(places, values, strict=True)
            if value is not None
        }

    async def _page_of_holds(self, start: int, limit: int) -> ExportPage:
        """Return the windows of unique keys whose job has no record any more."""
        if self._keys is None:
            self._keys = sorted(await self._engine.blobs.all_keys("keys/"))
        seen = await self._engine.objects.read(self._keys[start : start + limit])
        values = [value for one in seen if (value := value_of(one, KeyValue)) is not None]
        windows = [value for value in values if value.hold.scope == "window"]
        owners = await self._values([value.owner for value in windows])
        found = [
            ExportedHold(value.hold)
            for value, owner in zip(windows, owners, strict=True)
            if owner.job is None or owner.job.seq != value.hold.seq
        ]
        more = start + limit < len(self._keys)
        return ExportPage(tuple(found), f"{exporting.HOLDS}:{start + limit}:0" if more else None)


def _answer(closed: Closing | None) -> tuple[object, ...]:
    """Return what decides how a closed store answers. How far an import is does not."""
    if closed is None or closed.stage == "opened":
        return ()
    return closed.refuses, closed.peer, closed.role == "source" and closed.stage


def _store_record(ledger: Ledger, _now: int) -> Exported:
    return exporting.store_record(ledger.tables)
