"""What can be wrong with a lake, and what to do about it."""

from __future__ import annotations

from pathlib import Path

from millrace.domain.errors import CursorExpired, InvalidInput, QueueError


class NoLake(InvalidInput):
    def __init__(self, path: Path) -> None:
        super().__init__(f"there is no lake at {path}. Make one: millrace pipeline run --url URL --lake {path}")


class NotALake(InvalidInput):
    """Files of a dead run are removed later, so a lake shares its directory with nobody."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} holds other files and is no lake. Name a new or empty directory")


class LakeTooNew(QueueError):
    def __init__(self, path: Path, version: int, known: int) -> None:
        super().__init__(
            f"the lake at {path} was written in format {version}, and this Millrace reads formats up to {known}. "
            "Use a newer Millrace: pip install -U 'millrace[spark]'"
        )


class LakeBroken(QueueError):
    """A manifest cannot be read, or a file that one names is not what it was."""


class LakeBusy(QueueError):
    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"another run is at work on the lake at {path}{holder}. Wait for it to end, and run again")


class LostTheRace(QueueError):
    def __init__(self, path: Path, run: int) -> None:
        super().__init__(
            f"another run published number {run} of the lake at {path} first. Nothing of this one was kept; run again "
            "to take what is left"
        )


class HistoryLost(QueueError):
    """Retention was faster than the pipeline."""

    def __init__(self, expired: CursorExpired) -> None:
        self.lost, self.oldest, self.cursor = expired.lost, expired.oldest, expired.cursor
        super().__init__(
            f"{expired.lost:,} events were trimmed by the store's retention before they were taken. Go on without "
            "them: --accept-gap (the gap is recorded, and shown by audit and report). So that it does not "
            "happen again, run the pipeline more often, or keep events longer (keep_events of the store)"
        )


class OtherStore(InvalidInput):
    def __init__(self, path: Path, known: str, given: str) -> None:
        super().__init__(
            f"the lake at {path} holds the history of {known}, and {given} is another store. Use one lake per store; "
            "if the store has only moved, say so: --moved"
        )
