"""`millrace history --versions`: the whole record of a job as each kept version of its object has it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.cli import exits
from millrace.cli.output import At, Cell, Word
from millrace.cli.place import OBJECT_SCHEMES, scheme_of
from millrace.cli.session import Session
from millrace.cli.text import cut
from millrace.domain.errors import InvalidInput, JobNotFound
from millrace.runtime.shape import Plain, job_whole, when
from millrace.store.protocol import Store

if TYPE_CHECKING:
    from millrace.store.object.versions import Difference, Record

LONGEST = 300


async def show_versions(
    session: Session, store: Store, job_id: str, diff: bool, first: str | None, last: str | None
) -> int:
    if scheme_of(store.url) not in OBJECT_SCHEMES:
        session.output.say(
            f"millrace: {scheme_of(store.url)}:// keeps a job's events, not its whole record after each. "
            f"Leave out --versions: millrace history {job_id} --diff"
        )
        return exits.NO
    from millrace.store.object.store import ObjectStore
    from millrace.store.object.versions import Versions

    assert isinstance(store, ObjectStore)
    versions = Versions(store)
    if not versions.kept:
        session.output.say(
            f"millrace: {store.url} keeps no versions, so only the events are there. Turn versioning on for what comes "
            f"(millrace init --url …), and see those: millrace history {job_id} --diff"
        )
        return exits.NO
    records = [record for record in await versions.oldest_first(job_id) if not record.repeats]
    if not any(record.job is not None or record.deleted for record in records):
        raise JobNotFound(job_id)
    now = await store.now()
    if diff:
        _differences(session, records, first, last, now)
        return exits.OK
    start, end = _place(records, "--from", first, 0), _place(records, "--to", last, len(records) - 1)
    _table(session, records, _ordered(start, end, first, last), now)
    return exits.OK


def _ordered(start: int, end: int, first: str | None, last: str | None) -> tuple[int, int]:
    if start > end:
        raise InvalidInput(f"--from {first} comes after --to {last or 'the last one'}; swap them")
    return start, end


def _place(records: list[Record], what: str, text: str | None, default: int) -> int:
    """Where the record of this revision is; of several (an id that was deleted and used again) the newest."""
    if text is None:
        return default
    for place in range(len(records) - 1, -1, -1):
        if str(records[place].rev) == text.strip():
            return place
    known = f"{records[0].rev} to {records[-1].rev}"
    raise InvalidInput(f"{what} {text}: no such revision is kept; kept are {known}")


def _table(session: Session, records: list[Record], shown: tuple[int, int], now: int) -> None:
    from millrace.store.object.versions import diff

    start, end = shown
    if session.output.json:
        session.output.document([_plain(record, now) for record in records[start : end + 1]])
        return
    rows: list[list[Cell]] = []
    for place in range(start, end + 1):
        record = records[place]
        changed = [one.field for one in diff(records[place - 1], record)] if place else []
        state = "deleted" if record.deleted else "gone" if record.job is None else str(record.job.state)
        job = record.job
        rows.append(
            [
                record.rev,
                At(record.at, now),
                Word(state),
                None if job is None else job.attempt,
                None if job is None else job.worker,
                record.version,
                _notes(record, changed),
            ]
        )
    session.output.table(("rev", "at", "state", "attempt", "worker", "version", "details"), rows, spare=("worker",))


def _notes(record: Record, changed: list[str]) -> str:
    notes = ["a write is under way"] if record.undecided else []
    notes += [f"its {name} is no longer kept" for name in record.missing]
    return "; ".join([*notes, ", ".join(changed)] if changed else notes)


def _plain(record: Record, now: int) -> Plain:
    return {
        "rev": record.rev,
        "version": record.version,
        "at": when(record.at),
        "deleted": record.deleted,
        "undecided": record.undecided,
        "missing": list(record.missing),
        "job": None if record.job is None else job_whole(record.job, now),
    }


def _differences(session: Session, records: list[Record], first: str | None, last: str | None, now: int) -> None:
    from millrace.store.object.versions import diff

    compared = [(one, other, diff(one, other)) for one, other in _pairs(records, first, last)]
    if session.output.json:
        session.output.document([_difference_plain(*each) for each in compared])
        return
    rows: list[list[Cell]] = [
        [other.rev, At(other.at, now), change.field, *_cells(change, now)]
        for _, other, changes in compared
        for change in changes
    ]
    session.output.table(("rev", "at", "fact", "before", "after"), rows)
    if not rows:
        session.output.hint("Nothing differs." if len(records) > 1 else "There is one version only.")


def _pairs(records: list[Record], first: str | None, last: str | None) -> list[tuple[Record, Record]]:
    """Two that were named, or each with the one before it."""
    if first is None and last is None:
        return [*pairwise(records)]
    start, end = _place(records, "--from", first, 0), _place(records, "--to", last, len(records) - 1)
    start, end = _ordered(start, end, first, last)
    return [(records[start], records[end])]


def _difference_plain(one: Record, other: Record, changes: list[Difference]) -> Plain:
    told = [
        {
            "fact": change.field,
            "before": _told(change.field, change.before),
            "after": _told(change.field, change.after),
        }
        for change in changes
    ]
    return {"from": one.rev, "to": other.rev, "at": when(other.at), "changes": told}


def _cells(change: Difference, now: int) -> list[Cell]:
    return [_cell(change.field, value, now) for value in (change.before, change.after)]


def _is_instant(field: str) -> bool:
    return field.endswith(("_at", "_until"))


def _told(field: str, value: Any) -> Any:
    return when(value) if _is_instant(field) and isinstance(value, int) else value


def _cell(field: str, value: Any, now: int) -> Cell:
    if _is_instant(field) and (value is None or isinstance(value, int)):
        return At(value, now)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, int | str):
        return Word(value) if field == "state" and isinstance(value, str) else value
    return cut(msgspec.json.encode(value).decode(), LONGEST)
