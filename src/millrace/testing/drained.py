"""The result of running jobs in a test: the number of runs by outcome, and the failures that make the test fail."""

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
    """The result of `Harness.drain`: the number of runs by outcome, the events of failed runs, and the number of jobs
    left.
    """

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
        """Return what these events say of the jobs that ran."""
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
        """Return the events of the failures for which the test must fail, according to `failures`.

        With "raise", a run that ended with `Retry` does not count, because the handler requested the retry.
        """
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
    """Raised when handlers failed while a test ran their jobs. `failed` holds the events of the failures."""

    def __init__(self, failed: Sequence[Event], drained: Drained) -> None:
        self.failed = tuple(failed)
        self.drained = drained
        shown = [_described(event) for event in self.failed[:SHOWN]]
        more = [f"… and {len(failed) - SHOWN} more"] if len(failed) > SHOWN else []
        advice = "If the failure is what you test, pass failures='keep' (or 'dead', to raise only for jobs that died)."
        super().__init__("\n\n".join([f"{len(failed)} failed; {drained}", *shown, *more, advice]))


def _described(event: Event) -> str:
    what = f"died ({event.reason})" if event.kind is Kind.BURIED else "failed and will be retried"
    title = f"{event.task} {event.job}, attempt {event.attempt}: {what}"
    error = event.error
    if error is None:
        return title
    text = error.traceback.rstrip() or f"{error.type}: {error.message}"
    return title + "\n" + "\n".join(f"    {line}" for line in text.splitlines())
