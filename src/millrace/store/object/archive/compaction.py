"""Moves archived jobs into files: selects the jobs, reads their data, and removes them from the store.

A job is removed like a pruned job, in one step with its event and its counts. It is removed only if it has not changed
since it was written to the file.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.domain.event import Event, Kind
from millrace.domain.job import FINISHED, Job
from millrace.domain.ledger import Ledger, without_expired_result
from millrace.store.archived import ArchiveRow, Compactable, NotYet
from millrace.store.object.engine.engine import Crowded, Engine, Question
from millrace.store.object.engine.tables import ObjectTables
from millrace.store.object.keys import STORE, IndexEntry, Layout

REASON = "compacted"
_SAME_JOB = (REASON, "retention")  # reasons to remove a job without changing it first
AT_ONCE = 100  # jobs removed in one transaction; all of them write their queue's object


class Compaction:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._layout: Layout = engine.layout

    async def candidates(self, before: int, limit: int | None = None) -> list[IndexEntry]:
        """Return index entries of the archived jobs that finished up to `before`, oldest first. Some entries may be
        stale.

        There is only one entry per name. A stale key may name an earlier job with the same id; with two entries, the
        current job would be written to a file twice.
        """
        found: dict[str, IndexEntry] = {}
        async for page in self._engine.blobs.pages("done/"):  # there may be many more jobs that are not archived
            for item in page.entries:
                entry = Layout.parse(item.key)
                if entry is None or "a" not in entry.flags or entry.at > before:
                    continue
                known = found.get(entry.name)
                if known is None or (known.seq, known.rev) < (entry.seq, entry.rev):
                    found[entry.name] = entry
        return sorted(found.values(), key=lambda entry: (entry.at, entry.seq))[:limit]

    async def read(self, names: Sequence[str], before: int) -> tuple[list[Compactable], list[NotYet]]:
        """Read these jobs. Return two lists: jobs that can be compacted now, and jobs that can be compacted later."""
        keys = [self._layout.job_by_name(name) for name in names]

        def question(ledger: Ledger, now: int) -> tuple[list[Compactable], list[NotYet]]:
            tables = ledger.tables
            assert isinstance(tables, ObjectTables)
            jobs = [job for key in keys if (job := tables.record(key).job) is not None and is_candidate(job, before)]
            ready = [
                Compactable(without_expired_result(tables.hand_out(job), now), _history(ledger, job))
                for job in jobs
                if is_free(job, now)
            ]
            return ready, [_not_yet(job) for job in jobs if not is_free(job, now)]

        view = self._engine.view()
        await view.begin([STORE, *keys], ())
        found, _ = await self._engine.decide(view, question)
        return found

    async def remove(self, rows: Sequence[ArchiveRow]) -> list[int]:
        """Remove the jobs of these rows from the store. This can be repeated safely.

        Jobs that have changed since their row was written stay in the store. Return their seqs.
        """
        void: list[int] = []
        size, start = AT_ONCE, 0
        while start < len(rows):
            some = rows[start : start + size]
            keys = [self._layout.job(row.id) for row in some]
            items = [(key, _removing(row)) for key, row in zip(keys, some, strict=True)]
            try:
                run = await self._engine.carry_out(items, expected=[STORE, *keys])
            except Crowded:  # with exact limits, workers change the queue's object at every step
                if size == 1:
                    raise
                size = max(1, size // 5)
                continue
            void += [row.seq for row, counts in zip(some, run.answers, strict=True) if not counts]
            start += len(some)
        return void


def is_candidate(job: Job, before: int) -> bool:
    return job.state in FINISHED and job.archived and job.finished_at is not None and job.finished_at <= before


def is_free(job: Job, now: int) -> bool:
    """Return whether the job can be compacted: its result is no longer kept, and no automatic retry is planned."""
    return job.next_retry_at is None and (job.result_until is None or job.result_until <= now)


def _not_yet(job: Job) -> NotYet:
    return NotYet(job.spec.queue, job.state.value, max(job.result_until or 0, job.next_retry_at or 0))


def _history(ledger: Ledger, job: Job) -> tuple[Event, ...]:
    return tuple(event for event in ledger.history(job.id) if event.seq == job.seq)


def _removing(row: ArchiveRow) -> Question[bool]:
    """Return a function that removes the job of this archive row from the store.

    The function returns False if the job has changed since the row was written. The row of such a job is invalid.
    """

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
    """Return whether a job that is already removed was unchanged since it was written to the file."""
    since = [event for event in ledger.history(row.id) if event.seq == row.seq and event.n > row.events]
    return all(event.kind is Kind.PRUNED and event.reason in _SAME_JOB for event in since)


def rows_of(jobs: Sequence[Compactable]) -> list[ArchiveRow]:
    return [ArchiveRow(one.job.id, one.job.seq, one.job.events) for one in jobs]
