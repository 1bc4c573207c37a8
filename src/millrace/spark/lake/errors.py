"""Errors of a lake. Each message says what to do."""

from __future__ import annotations

from datetime import datetime

from millrace.domain.errors import CursorExpired, CursorUnknown, InvalidInput, QueueError


class NoLake(InvalidInput):
    """There is no lake at this address."""

    def __init__(self, lake: str) -> None:
        super().__init__(f"there is no lake at {lake}. Make one: millrace pipeline run --url URL --lake {lake}")


class NotALake(InvalidInput):
    """The directory or the prefix contains other files. A lake needs its own, because compaction deletes files that no
    table uses.
    """

    def __init__(self, lake: str) -> None:
        super().__init__(f"{lake} holds other files and is not a lake. Name a new or empty directory or prefix")


class OldLake(InvalidInput):
    """The lake was written in the format of a Millrace from before the first release."""

    def __init__(self, lake: str) -> None:
        super().__init__(
            f"the lake at {lake} was written by an older Millrace, in a format of its own. This Millrace writes Delta "
            "tables and cannot read it. Begin a new lake in another directory: it copies all events that the store "
            "still has. To report on the old lake, use the Millrace that wrote it"
        )


class LakeTooNew(QueueError):
    """The lake was written in the format of a newer Millrace."""

    def __init__(self, lake: str, version: int, known: int) -> None:
        super().__init__(
            f"the lake at {lake} was written in format {version}, and this Millrace reads formats up to {known}. "
            "Use a newer Millrace."
        )


class LakeUnreachable(QueueError):
    """The directory or the bucket of the lake could not be read or written."""

    def __init__(self, lake: str, error: Exception) -> None:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        super().__init__(
            f"the lake at {lake} cannot be opened: {first}. Check the address, and that you may read and write there; "
            "for a bucket also the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )


class LakeBroken(QueueError):
    """The log of a table cannot be read, or the files of the lake do not have the expected rows."""


class NoSuchTake(InvalidInput):
    """The lake has no take with this number, or none at this time."""

    def __init__(self, lake: str, as_of: int | datetime, newest: int) -> None:
        asked = f"take {as_of}" if isinstance(as_of, int) else f"take that was complete at {as_of.isoformat()}"
        super().__init__(f"the lake at {lake} has no {asked}; its takes are 1 to {newest}")


class TakeGone(QueueError):
    """The files of an old take were removed by a vacuum."""

    def __init__(self, lake: str, what: str) -> None:
        super().__init__(
            f"{what} of the lake at {lake} cannot be read any more: its files were replaced, and then removed by a "
            "vacuum. Ask for a later one, or make Delta keep replaced files longer (delta.deletedFileRetentionDuration)"
        )


class LostTheRace(QueueError):
    """Another run has committed this take first."""

    def __init__(self, lake: str, take: int, winner: str) -> None:
        super().__init__(
            f"another run ({winner or 'unknown'}) has committed take {take} of the lake at {lake} first. Nothing of "
            "this one was kept; run again to take what is left"
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
    """The lake has the history of another store."""

    def __init__(self, lake: str, known: str, given: str) -> None:
        super().__init__(
            f"the lake at {lake} holds the history of {known}, and {given} is another store. Use one lake per store; "
            "if the store has only moved, say so: --moved, or moved=True in a program"
        )
