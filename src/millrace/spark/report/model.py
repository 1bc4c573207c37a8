"""What a report says, as plain values: made by figures.py from a lake, and put on a page by page.py.

Instants are milliseconds since 1970, lengths are milliseconds. A list of values over time has one entry per step of the
period; None means that nothing was there to measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millrace.spark.report.period import Period

Counts = Sequence[int]
Times = Sequence[float | None]


@dataclass(frozen=True)
class Totals:
    """`accepted` … `reclaimed` count what happened in the period; the others are as of the end of the lake."""

    accepted: int = 0
    completed: int = 0
    died: int = 0
    retries: int = 0
    cancelled: int = 0
    reclaimed: int = 0
    waiting: int = 0
    running: int = 0
    dead_now: int = 0


@dataclass(frozen=True)
class QueueFlow:
    queue: str
    accepted: int
    completed: int
    died: int
    retries: int
    completed_at: Counts


@dataclass(frozen=True)
class Quantiles:
    runs: int
    p50: float
    p95: float
    p99: float
    longest: float


@dataclass(frozen=True)
class Lengths:
    """How long something took: over time, in all, and by queue."""

    over_time: Sequence[Quantiles | None] = ()
    in_all: Quantiles | None = None
    by_queue: Sequence[tuple[str, Quantiles]] = ()


@dataclass(frozen=True)
class Cause:
    """One cause of failure. `sample` is a message as it was written; `cause` is what all of them have in common."""

    fingerprint: str
    task: str
    error_type: str | None
    cause: str
    sample: str | None
    sample_job: str
    retries: int
    deaths: int
    first_at: int
    last_at: int
    failures_at: Counts = ()


@dataclass(frozen=True)
class Failures:
    """`causes` are the most frequent; `others` are how many more causes and failures there were."""

    retries_at: Counts = ()
    deaths_at: Counts = ()
    causes: Sequence[Cause] = ()
    other_causes: int = 0
    other_failures: int = 0


@dataclass(frozen=True)
class Worker:
    """`held_at`: how many jobs it held on average, in each step."""

    name: str
    runs: int
    failed: int
    busy: int
    share: float
    held_at: Times
    first_at: int
    last_at: int


@dataclass(frozen=True)
class Workers:
    busiest: Sequence[Worker] = ()
    others: int = 0
    others_busy: int = 0


@dataclass(frozen=True)
class Task:
    queue: str
    task: str
    total: int
    times: Quantiles


@dataclass(frozen=True)
class Tasks:
    slowest: Sequence[Task] = ()
    others: int = 0
    others_total: int = 0


@dataclass(frozen=True)
class Group:
    name: str
    runs: int
    busy: int
    share: float
    mean_wait: float | None
    p95_wait: float | None


@dataclass(frozen=True)
class Fairness:
    """The groups of one queue. `evenness` is Jain's index over all of them, also those that are not listed."""

    queue: str
    evenness: float
    groups: Sequence[Group]
    others: int = 0
    others_share: float = 0.0


@dataclass(frozen=True)
class Promise:
    name: str
    kept: bool
    figures: str


@dataclass(frozen=True)
class Broken:
    rule: str
    job: str
    text: str


@dataclass(frozen=True)
class Audit:
    """`findings` are some of each rule; `broken` counts all. `jobs` are named in findings."""

    promises: Sequence[Promise] = ()
    findings: Sequence[Broken] = ()
    broken: int = 0

    @property
    def sound(self) -> bool:
        return all(promise.kept for promise in self.promises)

    @property
    def jobs(self) -> list[str]:
        return list(dict.fromkeys(finding.job for finding in self.findings if finding.job))


@dataclass(frozen=True)
class Gap:
    run: int
    lost: int


@dataclass(frozen=True)
class Source:
    """Where the figures come from. `behind`: events that the store has, and the lake has not taken yet."""

    store: str
    run: int
    written_at: int
    events: int
    newest_at: int | None = None
    behind: int | None = None
    whole: bool = True
    gaps: Sequence[Gap] = ()
    dropped: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Report:
    """`audit` is None when it was not asked for; `groups_known` is False when the lake was built without groups."""

    title: str
    made_at: int
    source: Source
    period: Period | None = None
    totals: Totals = field(default_factory=Totals)
    queues: Sequence[QueueFlow] = ()
    waits: Lengths = field(default_factory=Lengths)
    runs: Lengths = field(default_factory=Lengths)
    failures: Failures = field(default_factory=Failures)
    workers: Workers = field(default_factory=Workers)
    tasks: Tasks = field(default_factory=Tasks)
    fairness: Sequence[Fairness] = ()
    groups_known: bool = True
    audit: Audit | None = None
