"""Manifests: what a lake consists of. A file that no manifest names is not there.

Each run of the pipeline publishes one, `_millrace/runs/<number>.json`, as its only visible step. It names every file
that is part of the lake after it, so a reader needs the newest one and nothing else.
"""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec

FORMAT = "millrace-lake"
VERSION = 1  # grows when an older Millrace would misread the lake; new fields and columns do not change it
Kind = Literal["take", "compact", "retain"]


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """`path` is relative to the lake; `day` is that of the rows, where the table is kept by days."""

    path: str
    rows: int
    bytes: int
    run: int
    day: str | None = None


class Gap(msgspec.Struct, frozen=True):
    """Events that the store's retention had removed before they were taken."""

    after: str
    until: str
    lost: int
    run: int


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """`whole`: the first run began at the very first event of the store. `dropped`: per table, the day before which
    everything was dropped by retention. `taken` counts the events of all runs."""

    run: int
    kind: Kind
    at: int
    after: str | None
    cursor: str
    store: str
    files: dict[str, tuple[File, ...]]
    format: str = FORMAT
    version: int = VERSION
    whole: bool = True
    taken: int = 0
    gaps: tuple[Gap, ...] = ()
    dropped: dict[str, str] = {}
    schemas: dict[str, int] = {}

    def of(self, table: str, since: str | None = None, until: str | None = None) -> list[File]:
        """The files of a table; with days given, those that may hold rows of them (both inclusive)."""
        return [
            file
            for file in self.files.get(table, ())
            if file.day is None or ((since is None or file.day >= since) and (until is None or file.day <= until))
        ]

    def following(self, kind: Kind, files: dict[str, tuple[File, ...]], **changes: Any) -> Manifest:
        """The next manifest, of a run that took nothing."""
        new = {"run": self.run + 1, "kind": kind, "at": int(time.time() * 1000), "files": files, **changes}
        return msgspec.structs.replace(self, **new)

    @property
    def paths(self) -> set[str]:
        return {file.path for files in self.files.values() for file in files}


class Head(msgspec.Struct, frozen=True):
    """What every version of a manifest has: enough to refuse the rest."""

    format: str = FORMAT
    version: int = VERSION
