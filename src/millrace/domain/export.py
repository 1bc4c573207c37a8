"""The records in which a store's data is exported, and imported into another store (`millrace move`).

They contain everything that a store keeps, except workers and indexes. An import gives the jobs new seqs, in the order
of the old ones.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias, TypeVar

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.domain.schedule import Schedule
from millrace.domain.settings import StoreSettings
from millrace.domain.tables import KeyHold, Line, Past, QueueRow, TaskRow


class ExportedStore(msgspec.Struct, frozen=True, tag="store"):
    """The settings and totals of a store. `lanes` has the lines of pools; the groups are exported with their jobs."""

    settings: StoreSettings
    queues: tuple[QueueRow, ...] = ()
    tasks: tuple[TaskRow, ...] = ()
    lanes: tuple[Line, ...] = ()
    schedules: tuple[Schedule, ...] = ()


class ExportedJob(msgspec.Struct, frozen=True, tag="job"):
    """A job and everything that refers to it by its seq.

    `waits_for` has the parents that have not ended, `hold` the unique key that the job holds, and `ended_in_line` how
    many jobs of its line have completed and have died.
    """

    job: Job
    events: tuple[Event, ...] = ()
    waits_for: tuple[str, ...] = ()
    hold: KeyHold | None = None
    ended_in_line: tuple[int, int] = (0, 0)


class ExportedPast(msgspec.Struct, frozen=True, tag="past"):
    """A generation whose record is deleted, and its events."""

    past: Past
    events: tuple[Event, ...] = ()


class ExportedHold(msgspec.Struct, frozen=True, tag="hold"):
    """A unique key with a window that lasts longer than the record of its job."""

    hold: KeyHold


Exported: TypeAlias = ExportedStore | ExportedJob | ExportedPast | ExportedHold


class ExportPage(msgspec.Struct, frozen=True):
    """A page of an export. `cursor` is where the next page starts; None on the last page."""

    records: tuple[Exported, ...]
    cursor: str | None


def identity(record: Exported) -> tuple[str, ...]:
    """Return what identifies a record in both stores."""
    match record:
        case ExportedJob(job=job):
            return "job", job.id, str(job.generation)
        case ExportedPast(past=past):
            return "past", past.id, str(past.generation)
        case ExportedHold(hold=hold):
            return "key", hold.queue, hold.key
        case _:
            return ("store",)


# ── instants ──────────────────────────────────────────────────────────────────────────────────────

S = TypeVar("S", bound=msgspec.Struct)
_SCHEDULES = "schedules"  # their ticks are instants of the calendar, which is the same for both stores


@cache
def instants_of(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields that are instants of the store's clock. The names say so: `at`, `until`, `…_at`, `…_until`."""
    names = [field.name for field in msgspec.structs.fields(kind)]
    return tuple(name for name in names if name in ("at", "until") or name.endswith(("_at", "_until")))


def shifted(record: S, by: int) -> S:
    """Return a copy of an exported record with `by` milliseconds added to every instant."""
    if by == 0:
        return record
    changes: dict[str, object] = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name in instants_of(type(record)):
            changes[name] = None if value is None else value + by
        elif isinstance(value, msgspec.Struct):
            changes[name] = shifted(value, by)
        elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct) and name != _SCHEDULES:
            changes[name] = tuple(shifted(part, by) for part in value)
    return msgspec.structs.replace(record, **changes)


def comparable(record: Exported) -> Exported:
    """Return the record without what may differ between two stores that contain the same jobs: the seqs."""
    match record:
        case ExportedJob(job=job, events=events, hold=hold):
            plain = msgspec.structs.replace(job, seq=0)
            held = None if hold is None else msgspec.structs.replace(hold, seq=0)
            return msgspec.structs.replace(record, job=plain, events=_without_seqs(events), hold=held)
        case ExportedPast(past=past, events=events):
            return ExportedPast(msgspec.structs.replace(past, seq=0), _without_seqs(events))
        case ExportedHold(hold=hold):
            return ExportedHold(msgspec.structs.replace(hold, seq=0))
        case _:
            return msgspec.structs.replace(record, settings=msgspec.structs.replace(record.settings, closed=None))


def _without_seqs(events: tuple[Event, ...]) -> tuple[Event, ...]:
    return tuple(msgspec.structs.replace(event, seq=0) for event in events)
