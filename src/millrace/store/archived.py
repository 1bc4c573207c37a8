"""Records about compacted jobs: the rows of archive files, and the manifest that lists the valid files.

A compacted job is a finished, archived job that was moved from the store into an archive file. See
`object/archive/files.py` for the order of the writes.
"""

from __future__ import annotations

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import Job


class Compactable(msgspec.Struct, frozen=True):
    """An archived job with its remaining history, ready to be compacted."""

    job: Job
    history: tuple[Event, ...]


class NotYet(msgspec.Struct, frozen=True):
    """An archived job that cannot be compacted before the time `until`, in milliseconds.

    Until then, its result is kept or an automatic retry is due later.
    """

    queue: str
    state: str
    until: int


class ArchiveRow(msgspec.Struct, frozen=True):
    """A job in an archive file: its id, its seq, and the number of its events when the row was written."""

    id: str
    seq: int
    events: int


class ArchiveFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One archive file. `first` and `last` are the earliest and the latest finish time of its jobs.

    `parts` names the files that were merged into this file. A file that was not merged has one part: itself.
    """

    key: str
    parts: tuple[str, ...]
    rows: int
    size: int  # in bytes
    first: int
    last: int
    queues: tuple[str, ...]
    open: bool = False  # its jobs are still being deleted from the store, so some are in both
    void: tuple[int, ...] = ()  # seqs of invalid rows: their jobs changed after they were written


class ArchiveRun(msgspec.Struct, frozen=True):
    """The archive run that may currently change the manifest, and the time of its last heartbeat.

    `object/archive/files.py` explains archive runs.
    """

    id: str
    beat: int


class Leaving(msgspec.Struct, frozen=True):
    """A file that was removed from the manifest at `since`. It is deleted later, so that current readers can finish."""

    key: str
    since: int


class ArchiveValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """The manifest: the list of valid archive files. Files that are not listed are ignored."""

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
