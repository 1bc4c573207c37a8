"""What is said of compacted jobs: the files that hold them, and the manifest that says which of these count."""

from __future__ import annotations

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import Job


class Compactable(msgspec.Struct, frozen=True):
    """An archived job as it stands, with the history that is still kept of it."""

    job: Job
    history: tuple[Event, ...]


class ArchiveRow(msgspec.Struct, frozen=True):
    """A job in a file: who it is, and how far its history had come when it was written."""

    id: str
    seq: int
    events: int


class ArchiveFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """`parts` names what it was made of: itself, or the files that were merged into it. `first` and `last` are when
    its jobs finished."""

    key: str
    parts: tuple[str, ...]
    rows: int
    size: int  # in bytes
    first: int
    last: int
    queues: tuple[str, ...]
    open: bool = False  # its jobs are still being removed from the store, so some are in both
    void: tuple[int, ...] = ()  # seqs of rows that do not count: their jobs lived on after they were written


class ArchiveRun(msgspec.Struct, frozen=True):
    """Who may change the manifest, and when it was last heard of."""

    id: str
    beat: int


class Leaving(msgspec.Struct, frozen=True):
    """A file that no longer counts, kept for a while for those who are reading it."""

    key: str
    since: int


class ArchiveValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """The manifest. What it does not name does not count."""

    version: int = 1
    run: ArchiveRun | None = None
    files: tuple[ArchiveFile, ...] = ()
    leaving: tuple[Leaving, ...] = ()

    @property
    def closed(self) -> tuple[ArchiveFile, ...]:
        return tuple(file for file in self.files if not file.open)

    @property
    def open(self) -> tuple[ArchiveFile, ...]:
        return tuple(file for file in self.files if file.open)
