"""`millrace history --versions`: shows the whole record of a job in each stored version of the job's object."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.cli import exits
from millrace.cli.output import At, Cell, Word
from millrace.cli.session import CommandSession
from millrace.cli.store_url import OBJECT_SCHEMES, scheme_of
from millrace.cli.text import cut
from millrace.domain.errors import InvalidInput, JobNotFound
from millrace.domain.outcome import Failure
from millrace.store.protocol import Store
from millrace.views.job_view import job_view, when

if TYPE_CHECKING:
    from millrace.store.object.versions import VersionDifference, VersionRecord

LONGEST = 300


async def show_versions(
    session: CommandSession, store: Store, job_id: str, diff: bool, first: str | None, last: str | None
) -> int:
    if scheme_of(store.url) not in OBJECT_SCHEMES:
        session.output.say(
            f"millrace: {scheme_of(store.url)}:// keeps the events of a job, but not its record after each event. "
            f"Remove --versions: millrace history {job_id} --diff"
        )
        return exits.NO
    from millrace.store.object.store import ObjectStore
    from millrace.store.object.versions import Versions

    assert isinstance(store, ObjectStore)
    versions = Versions(store)
    if not versions.kept:
        session.output.say(
            f"millrace: {store.url} keeps no versions, only events. To keep versions from now on, turn versioning on: "
            f"millrace init --url … To see the events: millrace history {job_id} --diff"
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


def _place(records: list[VersionRecord], what: str, text: str | None, default: int) -> int:
    """Return the index of the record with the revision in `text`. If `text` is None, return `default`. If an id was
    deleted and used again, revisions repeat; then the newest record is used. Raises InvalidInput if there is no such
    revision.
    """
    if text is None:
        return default
    for place in range(len(records) - 1, -1, -1):
        if str(records[place].rev) == text.strip():
            return place
    known = f"{records[0].rev} to {records[-1].rev}"
    raise InvalidInput(f"{what} {text}: no such revision is kept; kept are {known}")


def _table(session: CommandSession, records: list[VersionRecord], shown: tuple[int, int], now: int) -> None:
    from millrace.store.object.versions import diff

    start, end = shown
    if session.output.json:
        session.output.document([_version(record, now) for record in records[start : end + 1]])
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


def _notes(record: VersionRecord, changed: list[str]) -> str:
    notes = ["a write is in progress"] if record.undecided else []
    notes += [f"its {name} is no longer kept" for name in record.missing]
    return "; ".join([*notes, ", ".join(changed)] if changed else notes)


def _version(record: VersionRecord, now: int) -> dict[str, Any]:
    return {
        "rev": record.rev,
        "version": record.version,
        "at": when(record.at),
        "deleted": record.deleted,
        "undecided": record.undecided,
        "missing": list(record.missing),
        "job": None if record.job is None else job_view(record.job, now),
    }


def _differences(
    session: CommandSession, records: list[VersionRecord], first: str | None, last: str | None, now: int
) -> None:
    from millrace.store.object.versions import diff

    compared = [(one, other, diff(one, other)) for one, other in _pairs(records, first, last)]
    if session.output.json:
        session.output.document([_difference(*each) for each in compared])
        return
    rows: list[list[Cell]] = [
        [
            other.rev,
            At(other.at, now),
            change.field,
            fact_cell(change.field, change.before, now),
            fact_cell(change.field, change.after, now),
        ]
        for _, other, changes in compared
        for change in changes
    ]
    session.output.table(("rev", "at", "fact", "before", "after"), rows)
    if not rows:
        session.output.hint("There is no difference." if len(records) > 1 else "There is only one version.")


def _pairs(
    records: list[VersionRecord], first: str | None, last: str | None
) -> list[tuple[VersionRecord, VersionRecord]]:
    """Return the records to compare, as pairs: the two named by `first` and `last`, or, if both are None, all
    successive pairs.
    """
    if first is None and last is None:
        return [*pairwise(records)]
    start, end = _place(records, "--from", first, 0), _place(records, "--to", last, len(records) - 1)
    start, end = _ordered(start, end, first, last)
    return [(records[start], records[end])]


def _difference(one: VersionRecord, other: VersionRecord, changes: list[VersionDifference]) -> dict[str, Any]:
    changed = [
        {
            "fact": change.field,
            "before": _display_value(change.field, change.before),
            "after": _display_value(change.field, change.after),
        }
        for change in changes
    ]
    return {"from": one.rev, "to": other.rev, "at": when(other.at), "changes": changed}


def _is_instant(field: str) -> bool:
    return field.endswith(("_at", "_until"))


def _display_value(field: str, value: Any) -> Any:
    return when(value) if _is_instant(field) and isinstance(value, int) else value


def fact_cell(field: str, value: Any, now: int) -> Cell:
    if _is_instant(field) and (value is None or isinstance(value, int)):
        return At(value, now)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Failure):
        return cut(f"{value.type}: {value.message}", LONGEST)
    if value is None or isinstance(value, int | str):
        return Word(value) if field == "state" and isinstance(value, str) else value
    return cut(msgspec.json.encode(value).decode(), LONGEST)
