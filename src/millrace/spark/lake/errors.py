"""Errors of a lake. Each message says what to do."""

from __future__ import annotations

from pathlib import Path

from millrace.domain.errors import CursorExpired, CursorUnknown, InvalidInput, QueueError


class NoLake(InvalidInput):
    def __init__(self, path: Path) -> None:
        super().__init__(f"there is no lake at {path}. Make one: millrace pipeline run --url URL --lake {path}")


class NotALake(InvalidInput):
    """The directory contains other files. A lake needs its own directory, because the pipeline deletes files that a
    crashed pipeline run left there.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} holds other files and is not a lake. Name a new or empty directory")


class LakeTooNew(QueueError):
    def __init__(self, path: Path, version: int, known: int) -> None:
        super().__init__(
            f"the lake at {path} was written in format {version}, and this Millrace reads formats up to {known}. "
            "Use a newer Millrace."
        )


class LakeBroken(QueueError):
    """A manifest cannot be read, or the files of the lake do not have the expected rows."""


class LakeBusy(QueueError):
    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"another run is writing to the lake at {path}{holder}. Wait for it to end, and run again")


class LostTheRace(QueueError):
    def __init__(self, path: Path, run: int) -> None:
        super().__init__(
            f"another run published number {run} of the lake at {path} first. Nothing of this one was kept; run again "
            "to take what is left"
        )


class HistoryLost(QueueError):
    """Retention removed events before the pipeline copied them."""

    def __init__(self, expired: CursorExpired) -> None:
        self.lost, self.oldest, self.cursor = expired.lost, expired.oldest, expired.cursor
        super().__init__(
            f"{expired.lost:,} events were trimmed by the store's retention before they were taken. Go on without "
            "them: --accept-gap (the gap is recorded, and shown by audit and report). So that it does not "
            "happen again, run the pipeline more often, or keep events longer (keep_events of the store)"
        )


class HistoryReplaced(QueueError):
    """The store's feed is not the feed that the lake was copied from. Continuing would mix two histories."""

    def __init__(self, unknown: CursorUnknown) -> None:
        self.cursor = unknown.cursor
        super().__init__(
            f"the last event that the lake has taken (cursor {unknown.cursor!r}) is not in the store's feed. The store "
            "was restored from a backup, lost its latest events in a crash, or is another store; the lake may contain "
            "events that never happened there. Keep this lake, and begin a new one: --lake with a new directory"
        )


class OtherStore(InvalidInput):
    def __init__(self, path: Path, known: str, given: str) -> None:
        super().__init__(
            f"the lake at {path} holds the history of {known}, and {given} is another store. Use one lake per store; "
            "if the store has only moved, say so: --moved"
        )
