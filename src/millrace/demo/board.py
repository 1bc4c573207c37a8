"""The board: the current state of all queues, computed from the events of the store.

The events are those of all processes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from millrace.domain.event import Event, Kind

STEP = 250  # milliseconds of one bar of the throughput
STEPS = 240
NOTES = 200
_ENDS = {Kind.COMPLETED: "completed", Kind.BURIED: "dead", Kind.CANCELLED: "cancelled"}


@dataclass
class BoardLine:
    """The jobs of one queue, counted by their current state."""

    total: int = 0
    now: Counter[str] = field(default_factory=Counter[str])  # waiting, retrying, running, completed, dead, cancelled

    @property
    def finished(self) -> int:
        return self.now["completed"] + self.now["dead"] + self.now["cancelled"]


@dataclass(frozen=True)
class Note:
    """A line of text about a notable event, such as a retry, a dead job or a recovered job."""

    at: int
    kind: str
    task: str
    text: str


@dataclass(frozen=True)
class Running:
    job: str
    task: str
    worker: str
    since: int


class Board:
    def __init__(self, queues: Iterable[str]) -> None:
        self.queues = {name: BoardLine() for name in queues}
        self.running: dict[int, Running] = {}
        self.done: Counter[int] = Counter()  # finished jobs by step of time
        self.notes: deque[Note] = deque(maxlen=NOTES)
        self.events: list[Event] = []
        self.began: int | None = None
        self._state: dict[int, str] = {}

    def read(self, events: Iterable[Event]) -> None:
        for event in events:
            self._one(event)

    @property
    def total(self) -> int:
        return sum(line.total for line in self.queues.values())

    @property
    def finished(self) -> int:
        return sum(line.finished for line in self.queues.values())

    def held_by(self, worker: str) -> list[Running]:
        return [one for one in self.running.values() if one.worker == worker]

    def say(self, at: int, kind: str, text: str) -> None:
        """Add a note about an action of the demo itself."""
        self.notes.append(Note(at, kind, "", text))

    def throughput(self, now: int, width: int) -> list[int]:
        """Return the number of jobs finished in each of the last `width` intervals, oldest first.

        An interval has STEP milliseconds.
        """
        last = now // STEP
        return [self.done[step] for step in range(last - width, last)]

    def _one(self, event: Event) -> None:
        self.events.append(event)
        if self.began is None:
            self.began = event.at
        line = self.queues.setdefault(event.queue, BoardLine())
        before = self._state.get(event.seq)
        if before is None:
            line.total += 1
        else:
            line.now[before] -= 1
        after = "retrying" if event.kind is Kind.RETRIED else event.state
        line.now[after] += 1
        self._state[event.seq] = after
        self._follow_run(event)
        if event.kind in _ENDS:
            self.done[event.at // STEP] += 1
        self._note(event)

    def _follow_run(self, event: Event) -> None:
        if event.kind is Kind.CLAIMED:
            self.running[event.seq] = Running(event.job, event.task, event.worker or "", event.at)
        elif event.state != "running":
            self.running.pop(event.seq, None)

    def _note(self, event: Event) -> None:
        error = "" if event.error is None else f"{event.error.type}: {event.error.message}"
        match event.kind:
            case Kind.RETRIED if event.error is None or event.error.type not in ("WorkerLost", "LeaseLost"):
                text = f"in {(event.delay or 0) / 1000:.1f} s · {error}"
                self.notes.append(Note(event.at, "retry", event.task, text))
            case Kind.BURIED:
                text = f"{error.removeprefix('Bury: ')} ({event.reason})"
                self.notes.append(Note(event.at, "dead", event.task, text))
            case Kind.RECLAIMED:
                self.notes.append(Note(event.at, "recovered", event.task, f"its lease ran out; {event.worker} took it"))
            case Kind.CANCELLED:
                self.notes.append(Note(event.at, "cancelled", event.task, "before it ran"))
            case _:
                pass
