"""Maintenance of a lake, by Delta's own operations: compaction and retention.

Compaction merges small files into larger ones. The rows do not change.

Each take adds one or more files per day to the tables `events` and `attempts`. If a day has many small files, the run
merges them. `millrace pipeline compact` merges the small files of all tables, and deletes files that no version needs
any more. The other tables have few small files, because a take replaces their files.

Retention drops whole days of a table. A vacuum deletes the files later, so that readers can still use them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from millrace.domain.errors import InvalidInput
from millrace.spark.lake.delta import APP, FIRST_DAY, DataFile, TableSnapshot, snapshot, state_text
from millrace.spark.lake.place import LakePlace, LakeSnapshot
from millrace.spark.lake.tables import BY_DAY, DAY

FULL = 128 << 20  # bytes of a file; larger ones are not merged
SMALL = 16 << 20  # bytes; a run merges smaller files only, so that it rewrites little
MANY = 16  # small files of a day before a run merges them
APPENDED = ("events", "attempts")
OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class Compacted:
    lake: LakeSnapshot
    before: int = 0  # files
    after: int = 0
    deleted: int = 0  # files that no version needs


def merge_crowded(place: LakePlace, on_progress: OnProgress = print, many: int = MANY) -> None:
    """Merge the small files of the days that have many of them."""
    for name, table in (place.tables() or {}).items():
        counts = Counter(file.day for file in table.files if file.bytes < SMALL)
        days = [day for day, count in counts.items() if day is not None and count >= many]
        if name in APPENDED and days:
            _merge(place, table, SMALL, on_progress, days)


def compact(place: LakePlace, on_progress: OnProgress = print) -> Compacted:
    """Merge the small files of all tables, and delete files that no version needs. Raises NoLake if there is none."""
    place.require()
    before = after = deleted = 0
    for table in place.maintained().values():
        removed, added = _merge(place, table, FULL, on_progress)
        before, after = before + removed, after + added
    for table in place.maintained().values():
        deleted += len(table.delta.vacuum(dry_run=False, full=True))
    return Compacted(place.require(), before, after, deleted)


def _merge(
    place: LakePlace, table: TableSnapshot, size: int, on_progress: OnProgress, days: list[str] | None = None
) -> tuple[int, int]:
    """Merge the small files of a table, and return the numbers of files before and after. If a take changes the table
    meanwhile, nothing is merged.
    """
    from deltalake import CommitProperties
    from deltalake.exceptions import CommitFailedError

    began = time.monotonic()
    # A compaction repeats the state, so that it is still in the log when Delta has removed the commit of the take.
    state = {APP: state_text(place.location, table)} if table.name == "events" and table.take else None
    try:
        done = table.delta.optimize.compact(
            partition_filters=None if days is None else [("day", "in", days)],
            target_size=size,
            max_concurrent_tasks=1,
            commit_properties=CommitProperties(custom_metadata=state, max_commit_retries=0),
        )
    except CommitFailedError:
        on_progress(f"{table.name} was changed by another run, so its files were not merged")
        return 0, 0
    before, after = done["numFilesRemoved"], done["numFilesAdded"]
    if before:
        on_progress(f"{before:,} files of {table.name} became {after:,} in {time.monotonic() - began:.1f} s")
    return before, after


# ── retention ─────────────────────────────────────────────────────────────────────────────────


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
    gone: list[DataFile] = []
    for name, table in place.maintained().items():
        if name in keep:
            day = _first_day(now - keep[name])
            old = [file for file in table.files if file.day is not None and file.day < day]
            if old and _drop(place, table, day):
                gone += old
    return Retained(place.require(), len(gone), sum(file.rows for file in gone), len({file.day for file in gone}))


def _drop(place: LakePlace, table: TableSnapshot, day: str) -> bool:
    """Drop the days before `day`. First the table says so, for the audit: a day that is missing was dropped, not
    lost. Return False if another run changes the table meanwhile; the next run drops the days.
    """
    from deltalake import CommitProperties
    from deltalake.exceptions import CommitFailedError

    state = {APP: state_text(place.location, table)} if table.name == "events" else None
    properties = CommitProperties(custom_metadata=state, max_commit_retries=0)
    try:
        table.delta.alter.set_table_properties({FIRST_DAY: day}, raise_if_not_exists=False)
        newest = snapshot(place.location, table.name)
        assert newest is not None
        newest.delta.delete(f"{DAY} < '{day}'", commit_properties=properties)
    except CommitFailedError:
        return False
    return True


def _first_day(at: int) -> str:
    """Return the first day to keep: the day that contains the instant. A part of this day is within the retention
    period.
    """
    return datetime.fromtimestamp(at / 1000, UTC).date().isoformat()
