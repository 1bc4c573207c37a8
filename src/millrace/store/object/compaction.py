"""Archived jobs on their way into files: which they are, what is to be written of them, and their removal.

A job is removed as retention removes one, in one step with its event, its counts and what is remembered of it; but only
while it is what was written into the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millrace.domain.event import Event, Kind
from millrace.domain.job import FINISHED, Job
from millrace.domain.ledger import Ledger, without_expired_result
from millrace.store.archived import ArchiveRow, Compactable
from millrace.store.object.engine import Crowded, Engine
from millrace.store.object.keys import STORE, Entry, Layout
from millrace.store.object.run import Item
from millrace.store.object.tables import ObjectTables

REASON = "compacted"
_SAME_JOB = (REASON, "retention")  # reasons for which a job is removed as it stands
AT_ONCE = 100  # jobs removed in one transaction: all of them wait for the object of their queue


class Compaction:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._layout: Layout = engine.layout

    async def candidates(self, before: int, limit: int | None = None) -> list[Entry]:
        """Archived jobs that finished by then, oldest first, as their index keys tell; a few may be leftovers.

        One of each name: a key that a crash has left may tell of an earlier job of the same id, and what is read under
        that name, and written into a file, would be the later one a second time.
        """
        found: dict[str, Entry] = {}
        after: str | None = None
        while True:  # page by page, because what is not archived may be far more
            page = await self._engine.blobs.list("done/", after)
            for item in page.entries:
                entry = Layout.parse(item.key)
                if entry is None or "a" not in entry.flags or entry.at > before:
                    continue
                known = found.get(entry.name)
                if known is None or (known.seq, known.rev) < (entry.seq, entry.rev):
                    found[entry.name] = entry
            if not page.truncated or not page.entries:
                return sorted(found.values(), key=lambda entry: (entry.at, entry.seq))[:limit]
            after = page.entries[-1].key

    async def read(self, names: Sequence[str], before: int) -> list[Compactable]:
        """Those of these jobs that can be compacted, as they stand."""
        keys = [self._layout.job_by_name(name) for name in names]

        def question(ledger: Ledger, now: int) -> list[Compactable]:
            tables = ledger.tables
            assert isinstance(tables, ObjectTables)
            jobs = [tables.record(key).job for key in keys]
            return [
                Compactable(without_expired_result(tables.hand_out(job), now), _history(ledger, job))
                for job in jobs
                if job is not None and is_compactable(job, before, now)
            ]

        view = self._engine.view()
        await view.begin([STORE, *keys], ())
        found, _ = await self._engine.decide(view, question)
        return found

    async def remove(self, rows: Sequence[ArchiveRow]) -> list[int]:
        """Remove jobs that a file holds; the seqs of those that had lived on, and stay. Asking again is safe."""
        void: list[int] = []
        size, start = AT_ONCE, 0
        while start < len(rows):
            some = rows[start : start + size]
            keys = [self._layout.job(row.id) for row in some]
            items = [Item(key, _removing(row)) for key, row in zip(keys, some, strict=True)]
            try:
                run = await self._engine.carry_out(items, expected=[STORE, *keys])
            except Crowded:  # where limits are counted exactly, workers change the queue's object at every step
                if size == 1:
                    raise
                size = max(1, size // 5)
                continue
            void += [row.seq for row, counts in zip(some, run.answers, strict=True) if not counts]
            start += len(some)
        return void


def is_compactable(job: Job, before: int, now: int) -> bool:
    """Not while somebody may still fetch its result, nor while it is to be brought back by itself."""
    if job.state not in FINISHED or not job.archived or job.finished_at is None or job.finished_at > before:
        return False
    return job.next_retry_at is None and (job.result_until is None or job.result_until <= now)


def _history(ledger: Ledger, job: Job) -> tuple[Event, ...]:
    return tuple(event for event in ledger.history(job.id) if event.seq == job.seq)


def _removing(row: ArchiveRow) -> Callable[[Ledger, int], bool]:
    """Does the row count?"""

    def decide(ledger: Ledger, now: int) -> bool:
        job = ledger.tables.by_id(row.id)
        if job is None or job.seq != row.seq:
            return _was_removed_as_written(ledger, row)
        if job.events != row.events:
            return False
        ledger.step(now).remove(job, Kind.PRUNED, REASON)
        return True

    return decide


def _was_removed_as_written(ledger: Ledger, row: ArchiveRow) -> bool:
    """It is gone: did anything befall it between being written into the file and being removed?"""
    since = [event for event in ledger.history(row.id) if event.seq == row.seq and event.n > row.events]
    return all(event.kind is Kind.PRUNED and event.reason in _SAME_JOB for event in since)


def rows_of(jobs: Sequence[Compactable]) -> list[ArchiveRow]:
    return [ArchiveRow(one.job.id, one.job.seq, one.job.events) for one in jobs]
