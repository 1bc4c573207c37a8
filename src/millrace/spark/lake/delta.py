"""One Delta table of a lake: its files at a version, and commits that depend on that version.

delta-rs reads and writes the transaction log, so no JVM and no jar is needed. A commit is never retried by delta-rs
(`max_commit_retries=0`): with retries, release 1.6.6 accepts a commit that removes a file which a concurrent compaction
has rewritten, and the rows of that file are then in the table twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from millrace.spark.lake.errors import LakeBroken, LakeUnreachable, TakeGone
from millrace.spark.lake.tables import DAY, TABLES
from millrace.spark.lake_location import LakeLocation

if TYPE_CHECKING:
    from deltalake import DeltaTable

APP = "millrace"  # the name of the app transaction, and of the metadata in a commit
FIRST_DAY = "millrace.firstDay"  # table property: retention dropped all days before this one


class CommitConflict(Exception):
    """Another process committed to the table after the snapshot was read."""


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of a table. `path` is relative to the table. `seqs` and `takes` are the least and the greatest
    value of these columns; None if they are not known.
    """

    path: str
    bytes: int
    rows: int
    day: str | None = None
    seqs: tuple[int, int] | None = None
    takes: tuple[int, int] | None = None
    stats: str = field(default="{}", compare=False)


@dataclass(frozen=True)
class TableSnapshot:
    """A table at one version. `take` is the number of the newest take that the table includes."""

    name: str
    version: int
    take: int
    files: tuple[DataFile, ...]
    first_day: str | None = None
    delta: DeltaTable = field(repr=False, compare=False, kw_only=True)

    def between(self, since: str | None, until: str | None) -> list[DataFile]:
        """Return the files of these days (inclusive)."""
        return [
            file
            for file in self.files
            if file.day is None or ((since is None or file.day >= since) and (until is None or file.day <= until))
        ]


def create(location: LakeLocation, name: str) -> None:
    """Create an empty table, unless it exists."""
    from deltalake import DeltaTable, Schema
    from deltalake.exceptions import DeltaError

    uri, options = location.table_uri(name), location.storage_options()
    by = [] if TABLES[name].day_by is None else [DAY]
    try:
        DeltaTable.create(
            uri, Schema.from_arrow(TABLES[name].whole_arrow), mode="ignore", partition_by=by, storage_options=options
        )
    except (DeltaError, OSError) as error:
        if snapshot(location, name) is None:  # otherwise another process has just created it
            raise LakeUnreachable(str(location), error) from None


def snapshot(location: LakeLocation, name: str, version: int | None = None) -> TableSnapshot | None:
    """Return the newest version of a table, or the given one; None if the table does not exist."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        delta = DeltaTable(location.table_uri(name), version=version, storage_options=location.storage_options())
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise LakeUnreachable(str(location), error) from None
    first_day = delta.metadata().configuration.get(FIRST_DAY)
    take = delta.transaction_version(APP) or 0
    return TableSnapshot(name, delta.version(), take, tuple(_files(delta)), first_day, delta=delta)


def _files(delta: DeltaTable) -> list[DataFile]:
    import pyarrow as pa

    found = pa.table(delta.get_add_actions(flatten=True))
    wanted = ("path", "size_bytes", "num_records", f"partition.{DAY}", "min.seq", "max.seq", "min.take", "max.take")
    columns = [found[name].to_pylist() if name in found.column_names else [None] * found.num_rows for name in wanted]
    return [
        DataFile(
            unquote(path), size, rows, None if day is None else str(day), _range(*numbers[:2]), _range(*numbers[2:])
        )
        for path, size, rows, day, *numbers in zip(*columns, strict=True)
    ]


def _range(low: int | None, high: int | None) -> tuple[int, int] | None:
    return None if low is None or high is None else (low, high)


def commit(
    location: LakeLocation,
    base: TableSnapshot,
    take: int,
    add: Sequence[DataFile],
    remove: Sequence[DataFile] = (),
    state: str | None = None,
) -> None:
    """Commit a take to the table, on top of the version `base`. Raises CommitConflict if there is a newer version."""
    from deltalake import CommitProperties
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction, RemoveAction, Transaction

    now = int(time.time() * 1000)
    actions = [AddAction(file.path, file.bytes, _partition(file), now, True, file.stats) for file in add]
    removals = [
        RemoveAction(file.path, True, now, size=file.bytes, partition_values=_partition(file)) for file in remove
    ]
    properties = CommitProperties(
        custom_metadata=None if state is None else {APP: state},
        max_commit_retries=0,
        app_transactions=[Transaction(APP, take)],
    )
    try:
        base.delta.create_write_transaction(
            [*actions, *removals],
            "append",
            base.delta.schema(),
            partition_by=base.delta.metadata().partition_columns,
            commit_properties=properties,
        )
    except CommitFailedError as failed:
        raise CommitConflict(f"{base.name}: {failed}") from None
    location.flush(f"{location.root}/{base.name}/{log_entry(base.version + 1)}")


def _partition(file: DataFile) -> dict[str, str | None]:
    return {} if file.day is None else {DAY: file.day}


# ── the log ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class LogEntry:
    """What one commit says. `take` is set if the commit was made by a take; `state` if it carries the lake's state."""

    version: int
    at: int
    take: int | None
    state: str | None


def log_entry(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def entry(location: LakeLocation, name: str, version: int) -> LogEntry:
    """Read one commit. Raises TakeGone if Delta has removed it from the log.

    `DeltaTable.history()` is not used, because it numbers the commits wrongly if a table has changed since it was
    opened.
    """
    path = f"{location.root}/{name}/{log_entry(version)}"
    try:
        with location.file_system().open_input_stream(path) as file:
            lines = [json.loads(line) for line in file.read().splitlines() if line.strip()]
    except FileNotFoundError:
        raise TakeGone(str(location), f"version {version} of the table {name}") from None
    info: dict[str, Any] = next((line["commitInfo"] for line in lines if "commitInfo" in line), {})
    takes = [line["txn"]["version"] for line in lines if line.get("txn", {}).get("appId") == APP]
    return LogEntry(version, int(info.get("timestamp", 0)), takes[0] if takes else None, info.get(APP))


def state_text(location: LakeLocation, table: TableSnapshot) -> str:
    """Return the state that the newest take of `events` has stored. Later commits, such as compactions, repeat it."""
    try:
        for version in range(table.version, -1, -1):
            found = entry(location, table.name, version)
            if found.state is not None and json.loads(found.state)["take"] == table.take:
                return found.state
    except TakeGone:
        pass
    raise LakeBroken(
        f"the log of {location.table_uri(table.name)} does not say up to which event take {table.take} has copied. "
        "Restore its _delta_log, or build a new lake elsewhere"
    )


def version_of(location: LakeLocation, table: TableSnapshot, take: int, before: int | None = None) -> int:
    """Return the newest version of the table that includes no take after `take`, and no commit after the instant
    `before` (milliseconds). Raises TakeGone if it is not in the log any more.
    """
    newest: int | None = None  # a version that fits, if the take before it does
    for version in range(table.version, 0, -1):
        found = entry(location, table.name, version)
        if before is not None and found.at > before:
            newest = None
        elif found.take is None:
            newest = version if newest is None else newest
        elif found.take <= take:
            return version if newest is None else newest
        else:
            newest = None
    return 0 if newest is None else newest


def take_at(location: LakeLocation, table: TableSnapshot, instant: int) -> int:
    """Return the newest take that the table had at the instant (milliseconds); 0 if it had none."""
    for version in range(table.version, 0, -1):
        found = entry(location, table.name, version)
        if found.take is not None and found.at <= instant:
            return found.take
    return 0
