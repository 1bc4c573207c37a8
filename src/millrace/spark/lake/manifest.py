"""Manifests: lists of the files of a lake. Readers ignore files that are not in the manifest.

Each pipeline run publishes a new manifest, `_millrace/runs/<number>.json`. Readers see the changes of the run only from
then on. A manifest lists every file of the lake, so a reader needs only the newest one.
"""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec

FORMAT = "millrace-lake"
VERSION = 1  # incremented when an older Millrace would misread the lake; not for new fields and columns
Kind = Literal["take", "compact", "retain"]


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """A data file. `path` is relative to the lake; `day` is set if the table is divided by days."""

    path: str
    rows: int
    bytes: int
    run: int
    day: str | None = None


class LakeGap(msgspec.Struct, frozen=True):
    """Events that retention removed before they were copied."""

    after: str
    until: str
    lost: int
    run: int


class LakeManifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version of a lake: its files, and the cursor up to which events were copied.

    `whole` says whether the first pipeline run started at the store's first event. `taken` is the total number of
    copied events. `dropped` maps a table to its first remaining day; retention dropped all days before it.
    """

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
    gaps: tuple[LakeGap, ...] = ()
    dropped: dict[str, str] = {}
    schemas: dict[str, int] = {}

    def of(self, table: str, since: str | None = None, until: str | None = None) -> list[File]:
        """Return the files of a table. With `since` and `until`, return only files that may have rows of these days
        (inclusive).
        """
        return [
            file
            for file in self.files.get(table, ())
            if file.day is None or ((since is None or file.day >= since) and (until is None or file.day <= until))
        ]

    def following(self, kind: Kind, files: dict[str, tuple[File, ...]], **changes: Any) -> LakeManifest:
        """Return the next manifest, for a change that copies no events."""
        new = {"run": self.run + 1, "kind": kind, "at": int(time.time() * 1000), "files": files, **changes}
        return msgspec.structs.replace(self, **new)

    @property
    def paths(self) -> set[str]:
        return {file.path for files in self.files.values() for file in files}


class Head(msgspec.Struct, frozen=True):
    """The fields that manifests of every version have. A reader checks them first, and refuses a newer format."""

    format: str = FORMAT
    version: int = VERSION
