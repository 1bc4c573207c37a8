"""What a drain did, read from the history that the store wrote meanwhile; and which of it a test must hear of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from millrace.domain.errors import InvalidInput
from millrace.domain.event import Event, Kind
from millrace.domain.request import QueueCounts

Failures = Literal["raise", "dead", "keep"]

SHOWN = 5
_LEFT = ("ready", "scheduled", "retrying", "blocked", "running")


def check_failures(failures: object) -> None:
    if failures not in get_args(Failures):
        raise InvalidInput(f"failures is {', '.join(map(repr, get_args(Failures)))}; not {failures!r}")


@dataclass(frozen=True)
class Drained:
    """Numbers of runs by how they ended, `failed` being the events that tell of failures, and what is left."""

    runs: int = 0
    completed: int = 0
    retried: int = 0
    snoozed: int = 0
    died: int = 0
    cancelled: int = 0
    failed: tuple[Event, ...] = ()
    left: dict[str, int] = field(default_factory=dict)  # by state: ready, scheduled, retrying, blocked, running

    @classmethod
    def from_events(cls, events: Sequence[Event], counts: Sequence[QueueCounts]) -> Drained:
        kinds = Counter(event.kind for event in events)
        left = {name: sum(getattr(queue, name) for queue in counts) for name in _LEFT}
        return cls(
            runs=kinds[Kind.CLAIMED],
            completed=kinds[Kind.COMPLETED],
            retried=kinds[Kind.RETRIED],
            snoozed=kinds[Kind.SNOOZED],
            died=kinds[Kind.BURIED],
            cancelled=kinds[Kind.CANCELLED],
            failed=tuple(event for event in events if event.kind in (Kind.RETRIED, Kind.BURIED)),
            left={name: number for name, number in left.items() if number},
        )

    def blamed(self, failures: Failures) -> list[Event]:
        """The failures that are to be raised. A handler that raised `Retry` did as it was written to do."""
        if failures == "keep":
            return []
        dead = [event for event in self.failed if event.kind is Kind.BURIED]
        if failures == "dead":
            return dead
        return [event for event in self.failed if event in dead or event.error is None or event.error.type != "Retry"]

    def __str__(self) -> str:
        done = f"{self.runs} runs: {self.completed} completed, {self.retried} to be retried, {self.died} died"
        left = ", ".join(f"{number} {name}" for name, number in self.left.items())
        return f"{done}; left: {left or 'nothing'}"


class JobsFailed(AssertionError):
    """Handlers failed while a test let them run: `failed` are the events that tell of it."""

    def __init__(self, failed: Sequence[Event], drained: Drained) -> None:
        self.failed = tuple(failed)
        self.drained = drained
        shown = [_told(event) for event in self.failed[:SHOWN]]
        more = [f"… and {len(failed) - SHOWN} more"] if len(failed) > SHOWN else []
        advice = "If the failure is what you test, pass failures='keep' (or 'dead', to hear only of jobs that died)."
        super().__init__("\n\n".join([f"{len(failed)} failed; {drained}", *shown, *more, advice]))


def _told(event: Event) -> str:
    what = f"died ({event.reason})" if event.kind is Kind.BURIED else "failed and will be retried"
    title = f"{event.task} {event.job}, attempt {event.attempt}: {what}"
    error = event.error
    if error is None:
        return title
    text = error.traceback.rstrip() or f"{error.type}: {error.message}"
    return title + "\n" + "\n".join(f"    {line}" for line in text.splitlines())
