"""Import: adds exported records to a store, with the state that they had.

A record that the store has already is left alone, so an import can be repeated. The jobs get new seqs, in the order in
which they are passed. Their events keep their numbers and times, and are added to the feed once.
redis/scripts/import_records.lua repeats these rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from millrace.domain.errors import InvalidInput, StoreError
from millrace.domain.event import Event
from millrace.domain.export import Exported, ExportedHold, ExportedJob, ExportedPast, ExportedStore
from millrace.domain.job import Job, State
from millrace.domain.tables import KeyHold, Line, QueueRow, Tables


def import_records(tables: Tables, records: Sequence[Exported], move: str) -> int:
    """Import these records in one step. Return how many of them are new.

    Raise InvalidInput if a job runs, and StoreError if the store is not the target of this move any more: jobs that ran
    in the opened store and were deleted would be added again.
    """
    closed = tables.settings().closed
    if closed is None or closed.move != move or closed.stage not in ("empty", "importing"):
        raise not_the_target()
    jobs = [record for record in records if isinstance(record, ExportedJob)]
    for each in jobs:
        if each.job.state is State.RUNNING:
            raise InvalidInput(f"job {each.job.id!r} runs, so it cannot be imported. Wait until it has ended.")
    tables.prefetch_ids([record.job.id for record in jobs])
    tables.prefetch_ids([parent for record in jobs for parent in record.waits_for])
    new = [record for record in records if not _is_known(tables, record)]
    numbered = numbered_first(new)
    seqs = dict(zip(map(id, numbered), tables.next_seqs(len(numbered)), strict=True))
    added: list[tuple[ExportedJob, Job]] = []
    for record in numbered:
        if isinstance(record, ExportedJob):
            job = msgspec.structs.replace(record.job, seq=seqs[id(record)], lost_worker=None)
            tables.insert(job)
            added.append((record, job))
    for event in in_order((record, seqs[id(record)]) for record in numbered):
        tables.append(event)
    for exported, job in added:
        _add_job(tables, exported, job)
    for other in new:
        match other:
            case ExportedPast(past=past):
                tables.add_past(msgspec.structs.replace(past, seq=seqs[id(other)]))
            case ExportedHold(hold=hold):
                tables.put_key(msgspec.structs.replace(hold, seq=0))
            case ExportedStore():
                _set_up(tables, other)
    return len(new)


def not_the_target() -> StoreError:
    return StoreError(
        "this store is not the target of this move any more: another `millrace move` has opened it, or uses it. These "
        "records were not imported. Run the command again, to see what the stores contain now."
    )


def _is_known(tables: Tables, record: Exported) -> bool:
    match record:
        case ExportedJob(job=job):
            known = tables.by_id(job.id)
            return known is not None and known.generation == job.generation
        case ExportedPast(past=past):
            return any(known.generation == past.generation for known in tables.past(past.id))
        case ExportedHold(hold=hold):
            return tables.key(hold.queue, hold.key) is not None
        case _:
            closed = tables.settings().closed
            return closed is not None and closed.stage == "importing"


def numbered_first(records: Sequence[Exported]) -> list[ExportedPast | ExportedJob]:
    """Return the records that get a seq, in the order of their new seqs: deleted generations, then jobs."""
    gone = [record for record in records if isinstance(record, ExportedPast)]
    jobs = [record for record in records if isinstance(record, ExportedJob)]
    return [*sorted(gone, key=lambda record: record.past.seq), *jobs]


def in_order(numbered: Iterable[tuple[ExportedPast | ExportedJob, int]]) -> list[Event]:
    """Return the events of these records as they enter the feed, each with the new seq of its job.

    The events of deleted generations come first, and then those of jobs, both by time. The events of one job stay in
    their order, even if the clock was set back between them.
    """
    found: list[tuple[bool, int, Event]] = []
    for record, seq in numbered:
        latest = 0
        for event in record.events:
            latest = max(latest, event.at)
            found.append((isinstance(record, ExportedJob), latest, msgspec.structs.replace(event, seq=seq)))
    return [event for _, _, event in sorted(found, key=lambda found: found[:2])]


def _set_up(tables: Tables, record: ExportedStore) -> None:
    """Set the settings and totals. The store notes this in the same step, because it must not be repeated."""
    closed = tables.settings().closed
    noted = None if closed is None else msgspec.structs.replace(closed, stage="importing")
    tables.put_settings(msgspec.structs.replace(record.settings, closed=noted))
    for row in record.queues:
        mine = tables.queue(row.name)
        for name in ("settings", "processed", "died", "taken", "next_lane", "rearm", "bucket"):
            setattr(mine, name, getattr(row, name))
        tables.put_queue(mine)
    for task in record.tasks:
        tables.put_task(task)
    for lane in record.lanes:
        tables.put_line(lane)
    for schedule in record.schedules:
        tables.put_schedule(schedule)


def _add_job(tables: Tables, record: ExportedJob, job: Job) -> None:
    """Add a job to the counters of its queue and line, to the children of its parents, and to its unique key.

    Its fields say which indexes have it.
    """
    tables.update(job)
    row = tables.queue(job.spec.queue)
    _count(row, job)
    tables.put_queue(row)
    if job.state is State.WAITING and job.line is not None:
        line = tables.line(job.spec.queue, job.line) or Line(job.spec.queue, job.line)
        line.waiting += 1
        line.live += 1
        line.processed, line.died = record.ended_in_line
        line.holder = job.seq if job.holds else line.holder
        line.open = job.seq if job.open else line.open
        tables.put_line(line)
    for parent in record.waits_for:
        tables.add_dependency(parent, job.seq)
    if record.hold is not None:
        hold = record.hold
        tables.put_key(KeyHold(hold.queue, hold.key, hold.owner, job.seq, hold.scope, hold.until))


def _count(row: QueueRow, job: Job) -> None:
    if job.state is State.WAITING:
        row.waiting += 1
        row.blocked += job.blocked > 0
        row.live += not job.spec.hook
    elif job.state is State.COMPLETED:
        row.completed += 1
    elif job.state is State.DEAD:
        row.dead += 1
        row.archived_dead += job.archived
    else:
        row.cancelled += 1
    row.archived += job.archived
