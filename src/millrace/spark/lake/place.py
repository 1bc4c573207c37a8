"""A lake as a whole: its tables at one take, and the creation of a new lake."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from pyarrow import fs

from millrace.spark.lake.delta import (
    DataFile,
    TableSnapshot,
    create,
    snapshot,
    state_text,
    take_at,
    version_of,
)
from millrace.spark.lake.errors import LakeBroken, LakeTooNew, NoLake, NoSuchTake, NotALake, OldLake, TakeGone
from millrace.spark.lake.tables import BY_DAY, DERIVED, OPTIONAL, REQUIRED, TABLES
from millrace.spark.lake_location import LakeLocation

AsOf = int | datetime
VERSION = 2  # incremented when an older Millrace would misread the lake; not for new fields and columns


class LakeGap(msgspec.Struct, frozen=True):
    """Events that retention removed before they were copied."""

    after: str
    until: str
    lost: int
    take: int


class LakeState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a lake after a take, as the commit of the take's events contains it.

    `cursor` is the position up to which events were copied. `whole` says whether the first take started at the store's
    first event. `taken` is the total number of copied events. `by` names the process that made the take.
    """

    take: int
    at: int
    store: str
    cursor: str
    whole: bool = True
    taken: int = 0
    gaps: tuple[LakeGap, ...] = ()
    by: str = ""
    version: int = VERSION


class StateVersion(msgspec.Struct, frozen=True):
    """The field that the states of every version have. A reader checks it first, and refuses a newer format."""

    take: int
    version: int = VERSION


@dataclass(frozen=True)
class LakeSnapshot:
    """All tables of a lake at one take, so that they agree."""

    state: LakeState
    tables: Mapping[str, TableSnapshot]

    def of(self, table: str) -> Sequence[DataFile]:
        return self.tables[table].files

    @property
    def files(self) -> int:
        return sum(len(table.files) for table in self.tables.values())

    @property
    def bytes(self) -> int:
        return sum(file.bytes for table in self.tables.values() for file in table.files)

    @property
    def dropped(self) -> dict[str, str]:
        """The first remaining day of each table of which retention has dropped days."""
        days = {name: self.tables[name].first_day for name in BY_DAY if name in self.tables}
        return {name: day for name, day in days.items() if day is not None}


class LakePlace:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.location = LakeLocation.parse(path)

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def latest(self) -> LakeSnapshot | None:
        """Return the newest take that all tables include; None if there is no lake yet, or no take was completed."""
        tables = self.tables()
        if tables is None:
            return None
        take = min(table.take for table in tables.values())
        return self._at(tables, take) if take else None

    def require(self, as_of: AsOf | None = None) -> LakeSnapshot:
        """Return the newest complete take; with `as_of`, the take with this number, or the newest one that was complete
        at this time. Raises NoLake, NoSuchTake, or TakeGone if its files were removed.
        """
        found = self.latest()
        if found is None:
            raise NoLake(str(self.location))
        if as_of is None:
            return found
        tables = self.tables() or {}
        if isinstance(as_of, int):
            take, before = as_of, None
        else:
            before = round((as_of.replace(tzinfo=UTC) if as_of.tzinfo is None else as_of).timestamp() * 1000)
            take = min(take_at(self.location, table, before) for table in tables.values())
        if not 1 <= take <= found.state.take:
            raise NoSuchTake(str(self.location), as_of, found.state.take)
        past = self._at(tables, take, before)
        for table in past.tables.values():
            there = self.sizes(table.name)
            if any(file.path not in there for file in table.files):
                raise TakeGone(str(self.location), f"take {take}")
        return past

    def tables(self) -> dict[str, TableSnapshot] | None:
        """Return the newest version of each table; None if there is no lake. Raises OldLake or LakeBroken if this
        Millrace cannot read it.
        """
        with ThreadPoolExecutor(len(REQUIRED)) as pool:
            found = dict(zip(REQUIRED, pool.map(lambda name: snapshot(self.location, name), REQUIRED), strict=True))
        if found["events"] is None:  # it is created last
            self._refuse_old()
            return None
        missing = [name for name, table in found.items() if table is None]
        if missing:
            raise LakeBroken(f"the table {missing[0]} of the lake at {self.location} is missing. Restore it")
        return {name: table for name, table in found.items() if table is not None}

    def maintained(self) -> dict[str, TableSnapshot]:
        """Return the newest version of each table, including those that only some lakes have."""
        more = {name: snapshot(self.location, name) for name in OPTIONAL}
        return {**(self.tables() or {}), **{name: table for name, table in more.items() if table is not None}}

    def _at(self, tables: Mapping[str, TableSnapshot], take: int, before: int | None = None) -> LakeSnapshot:
        pinned = {name: self._pinned(table, take, before) for name, table in tables.items()}
        return LakeSnapshot(self.state(pinned["events"]), pinned)

    def _pinned(self, table: TableSnapshot, take: int, before: int | None) -> TableSnapshot:
        if table.take <= take and before is None:
            return table
        found = snapshot(self.location, table.name, version_of(self.location, table, take, before))
        assert found is not None
        return found

    def state(self, events: TableSnapshot) -> LakeState:
        """Return the state of the newest take of the table `events`."""
        raw = state_text(self.location, events)
        version = msgspec.json.decode(raw, type=StateVersion).version
        if version > VERSION:
            raise LakeTooNew(str(self.location), version, VERSION)
        return msgspec.json.decode(raw, type=LakeState)

    def sizes(self, table: str) -> dict[str, int]:
        """Return the length of each file of a table that exists, by its path relative to the table."""
        root = f"{self.location.root}/{table}"
        found = self.location.file_system().get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
        return {file.path.removeprefix(f"{root}/"): file.size for file in found if file.is_file}

    # ── creation ──────────────────────────────────────────────────────────────────────────────

    def prepare(self) -> dict[str, TableSnapshot]:
        """Create the tables that do not exist yet, add the columns that this release has added, and return the tables.
        Raises NotALake if the place holds other files.
        """
        found = self.tables()
        if found is None:
            self._refuse_others()
            for name in (*DERIVED, "events"):
                create(self.location, name)
            found = self.tables()
            assert found is not None
        grown = [name for name, table in found.items() if _grow(table)]
        if grown:
            found |= self.tables() or {}
        return found

    def _refuse_old(self) -> None:
        old = self.location.file_system().get_file_info(f"{self.location.root}/_millrace/runs")
        if old.type is fs.FileType.Directory:
            raise OldLake(str(self.location))

    def _refuse_others(self) -> None:
        selector = fs.FileSelector(self.location.root, allow_not_found=True)
        names = {file.base_name for file in self.location.file_system().get_file_info(selector)}
        if names - set(TABLES):
            raise NotALake(str(self.location))


def _grow(table: TableSnapshot) -> bool:
    """Add the columns that the table lacks to its schema. In older files their value is null."""
    from deltalake import Schema

    there = {field.name for field in table.delta.schema().fields}
    wanted = Schema.from_arrow(TABLES[table.name].whole_arrow).fields
    new = [field for field in wanted if field.name not in there]
    if new:
        table.delta.alter.add_columns(new)
    return bool(new)
