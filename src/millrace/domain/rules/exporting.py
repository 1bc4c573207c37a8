"""Export: everything that a store keeps, in pages, in an order in which another store can import it.

The pages are: the settings and totals; deleted generations in the order of their deletion; jobs in the order of their
seqs; unique keys whose job is gone. Call this only while the store is closed: pages of a store that changes do not fit
together.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.domain.event import Event
from millrace.domain.export import ExportedHold, ExportedJob, ExportedPast, ExportedStore, ExportPage
from millrace.domain.job import LIVE, Job, lane_line
from millrace.domain.schedule import EVERY_SCHEDULE, Schedule
from millrace.domain.settings import StoreSettings
from millrace.domain.tables import KeyHold, Line, Past, QueueRow, Tables, TaskRow

PAST, JOBS, HOLDS = "past", "jobs", "holds"
FIRST_HOLD = f"{HOLDS}:0:0"  # the cursor after the jobs
FIRST = f"{PAST}:-1:-1"  # the cursor after the settings
FOREVER = 1 << 60  # later than every instant


def export(tables: Tables, cursor: str | None, limit: int) -> ExportPage:
    """Return the page after `cursor`; the first page has the settings and totals."""
    if cursor is None:
        return ExportPage((store_record(tables),), FIRST)
    kind, numbers = parse(cursor)
    if kind == PAST:
        found = tables.past_after(numbers[0], numbers[1], limit)
        events = tables.events_of([past.seq for past in found])
        return ExportPage(
            tuple(ExportedPast(past, tuple(events[past.seq])) for past in found), after_past(found, limit)
        )
    if kind == JOBS:
        jobs = tables.scan(numbers[0], FOREVER, limit)
        events = tables.events_of([job.seq for job in jobs])
        records = [_job_record(tables, job, events[job.seq]) for job in jobs]
        return ExportPage(tuple(records), after_jobs(jobs, limit))
    holds = tables.windows(numbers[0], numbers[1], limit)
    tables.prefetch_seqs([hold.seq for hold in holds])
    gone = [ExportedHold(hold) for hold in holds if _job_is_gone(tables, hold)]
    return ExportPage(tuple(gone), after_holds(holds, numbers, limit))


def parse(cursor: str) -> tuple[str, tuple[int, ...]]:
    kind, *rest = cursor.split(":")
    try:
        numbers = tuple(map(int, rest))
    except ValueError:
        numbers = ()
    if {PAST: 2, JOBS: 1, HOLDS: 2}.get(kind) != len(rest) or len(numbers) < len(rest):
        raise InvalidInput(f"{cursor[:60]!r} is not a cursor of an export. Pass one that the store returned, or None.")
    return kind, numbers


def after_past(found: list[Past], limit: int) -> str:
    return f"{PAST}:{found[-1].gone_at}:{found[-1].seq}" if len(found) >= limit else f"{JOBS}:0"


def after_jobs(found: list[Job], limit: int) -> str:
    return f"{JOBS}:{found[-1].seq}" if len(found) >= limit else FIRST_HOLD


def after_holds(found: Sequence[KeyHold], after: tuple[int, ...], limit: int) -> str | None:
    """Return the cursor after this page: the time of its last key, and how many keys with this time are passed."""
    if len(found) < limit:
        return None
    last = found[-1].until or 0
    passed = sum(hold.until == last for hold in found)
    return f"{HOLDS}:{last}:{passed + (after[1] if after[0] == last else 0)}"


def store_record(tables: Tables) -> ExportedStore:
    """Return the settings of the store as they are after the move, and the totals of queues that no job shows."""
    rows = [tables.queue(name) for name in tables.queues()]
    lanes = [tables.line(row.name, lane_line(lane)) for row in rows for lane in range(row.settings.lanes or 0)]
    known = [line for line in lanes if line is not None]
    return complete(tables.settings(), rows, tables.tasks(), known, tables.schedules("", EVERY_SCHEDULE))


def complete(
    settings: StoreSettings,
    queues: Sequence[QueueRow],
    tasks: Sequence[TaskRow],
    lanes: Sequence[Line],
    schedules: Sequence[Schedule],
) -> ExportedStore:
    """Return the record of a store, without what an import counts again, and without queues that say nothing."""
    closed = settings.closed
    paused = closed.paused if closed is not None and closed.role == "source" else None
    rows = [_totals(row, paused) for row in queues]
    return ExportedStore(
        msgspec.structs.replace(settings, closed=None),
        tuple(row for row in rows if row != QueueRow(row.name)),
        tuple(msgspec.structs.replace(row, running=0) for row in sorted(tasks, key=lambda row: row.name)),
        tuple(
            Line(line.queue, line.name, processed=line.processed, died=line.died)
            for line in lanes
            if line.processed or line.died
        ),
        tuple(schedules),
    )


def _totals(row: QueueRow, paused: tuple[str, ...] | None) -> QueueRow:
    """Return a queue without the counters that an import counts again. `paused` has the queues that were paused."""
    settings = row.settings
    if paused is not None:
        settings = msgspec.structs.replace(settings, paused=row.name in paused)
    return QueueRow(
        row.name,
        settings,
        processed=row.processed,
        died=row.died,
        taken=row.taken if settings.fair_share > 0 else 0,
        next_lane=row.next_lane,
        rearm=row.rearm,
        bucket=None if row.bucket is None else msgspec.structs.replace(row.bucket),
    )


def _job_record(tables: Tables, found: Job, events: list[Event]) -> ExportedJob:
    job = tables.hand_out(found)
    spec, name = job.spec, job.line
    hold = None if spec.key is None else tables.key(spec.queue, spec.key)
    line = None if name is None or job.state not in LIVE else tables.line(spec.queue, name)
    return ExportedJob(
        job,
        tuple(events),
        tuple(tables.parents(job.seq)) if job.blocked else (),
        msgspec.structs.replace(hold) if hold is not None and hold.seq == job.seq else None,
        (0, 0) if line is None else (line.processed, line.died),
    )


def _job_is_gone(tables: Tables, hold: KeyHold) -> bool:
    job = tables.by_seq(hold.seq)
    return job is None or job.id != hold.owner
