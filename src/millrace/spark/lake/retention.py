"""Retention: drops whole days of a table. A vacuum deletes the files later, so that readers can still use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from millrace.domain.errors import InvalidInput
from millrace.spark.lake.delta import APP, FIRST_DAY, TableSnapshot, snapshot, state_text
from millrace.spark.lake.place import LakePlace, LakeSnapshot
from millrace.spark.lake.tables import BY_DAY, DAY


@dataclass(frozen=True)
class Retained:
    lake: LakeSnapshot
    files: int = 0
    rows: int = 0
    days: int = 0


def retain(place: LakePlace, keep: Mapping[str, int], now: int) -> Retained | None:
    """Drop the days of each table that ended more than `keep` milliseconds ago. Return None if there is no lake yet.
    Raises InvalidInput for a table that is not divided by days.
    """
    unknown = sorted(set(keep) - set(BY_DAY))
    if unknown:
        raise InvalidInput(f"{unknown[0]} is not kept by days; retention is for {', '.join(BY_DAY)}")
    lake = place.latest()
    if lake is None:
        return None
    gone = []
    for name, table in (place.tables() or {}).items():
        if name in keep:
            day = _first_day(now - keep[name])
            old = [file for file in table.files if file.day is not None and file.day < day]
            if old:
                _drop(place, table, day)
            gone += old
    return Retained(place.require(), len(gone), sum(file.rows for file in gone), len({file.day for file in gone}))


def _drop(place: LakePlace, table: TableSnapshot, day: str) -> None:
    """Drop the days before `day`. First the table says so, for the audit: a day that is missing was dropped, not
    lost.
    """
    from deltalake import CommitProperties

    state = {APP: state_text(place.location, table)} if table.name == "events" else None
    table.delta.alter.set_table_properties({FIRST_DAY: day}, raise_if_not_exists=False)
    newest = snapshot(place.location, table.name)
    assert newest is not None
    properties = CommitProperties(custom_metadata=state, max_commit_retries=0)
    newest.delta.delete(f"{DAY} < '{day}'", commit_properties=properties)


def _first_day(at: int) -> str:
    """Return the first day to keep: the day that contains the instant. A part of this day is within the retention
    period.
    """
    return datetime.fromtimestamp(at / 1000, UTC).date().isoformat()
