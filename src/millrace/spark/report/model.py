"""The figures of a report as plain values. figures.py computes them, and page.py renders them.

Instants are milliseconds since 1970, and durations are milliseconds. A list over time has one entry for each interval
of the period (see period.py). None means that nothing was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millrace.spark.report.analytics_model import Analytics
from millrace.spark.report.period import Period

Counts = Sequence[int]
Times = Sequence[float | None]


@dataclass(frozen=True)
class Totals:
    """The main figures of a report. `waiting`, `running` and `dead_now` are numbers of jobs after the newest event of
    the lake. The other fields count events in the period.
    """

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
    """Waiting or running times: over time, in all, and by queue."""

    over_time: Sequence[Quantiles | None] = ()
    in_all: Quantiles | None = None
    by_queue: Sequence[tuple[str, Quantiles]] = ()


@dataclass(frozen=True)
class CauseFigures:
    """One cause of failure. `sample` is an original message; `cause` is the message without the parts that vary."""

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
    """Retries, deaths and the most frequent causes. `other_causes` and `other_failures` count the causes that are not
    listed in `causes`, and their failures.
    """

    retries_at: Counts = ()
    deaths_at: Counts = ()
    causes: Sequence[CauseFigures] = ()
    other_causes: int = 0
    other_failures: int = 0


@dataclass(frozen=True)
class WorkerFigures:
    """The figures of one worker. `held_at` has the average number of jobs that it held in each interval."""

    name: str
    runs: int
    failed: int
    busy: int
    share: float
    held_at: Times
    first_at: int
    last_at: int


@dataclass(frozen=True)
class WorkerTable:
    busiest: Sequence[WorkerFigures] = ()
    others: int = 0
    others_busy: int = 0


@dataclass(frozen=True)
class TaskFigures:
    queue: str
    task: str
    total: int
    times: Quantiles


@dataclass(frozen=True)
class Tasks:
    slowest: Sequence[TaskFigures] = ()
    others: int = 0
    others_total: int = 0


@dataclass(frozen=True)
class FigureGroup:
    name: str
    runs: int
    busy: int
    share: float
    mean_wait: float | None
    p95_wait: float | None


@dataclass(frozen=True)
class Fairness:
    """The groups of one queue. `evenness` is Jain's index over all groups of the queue, including groups that are not
    listed.
    """

    queue: str
    evenness: float
    groups: Sequence[FigureGroup]
    others: int = 0
    others_share: float = 0.0


@dataclass(frozen=True)
class Promise:
    name: str
    kept: bool
    figures: str


@dataclass(frozen=True)
class BrokenPromise:
    rule: str
    job: str
    text: str


@dataclass(frozen=True)
class AuditFigures:
    """The result of an audit. `broken` counts all violations; `findings` lists some of them for each rule. `jobs` has
    the ids of the jobs in `findings`.
    """

    promises: Sequence[Promise] = ()
    findings: Sequence[BrokenPromise] = ()
    broken: int = 0

    @property
    def sound(self) -> bool:
        return all(promise.kept for promise in self.promises)

    @property
    def jobs(self) -> list[str]:
        return list(dict.fromkeys(finding.job for finding in self.findings if finding.job))


@dataclass(frozen=True)
class FeedGap:
    take: int
    lost: int


@dataclass(frozen=True)
class Source:
    """Where the figures come from. `behind` is the number of events in the store that were not copied into the lake
    yet; None if the store was not read.
    """

    store: str
    take: int
    written_at: int
    events: int
    newest_at: int | None = None
    behind: int | None = None
    whole: bool = True
    gaps: Sequence[FeedGap] = ()
    dropped: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Report:
    """All figures of a page. `audit` is None if no audit was requested; `groups_known` is False if the lake has no
    groups.
    """

    title: str
    made_at: int
    source: Source
    period: Period | None = None
    totals: Totals = field(default_factory=Totals)
    queues: Sequence[QueueFlow] = ()
    waits: Lengths = field(default_factory=Lengths)
    runs: Lengths = field(default_factory=Lengths)
    failures: Failures = field(default_factory=Failures)
    workers: WorkerTable = field(default_factory=WorkerTable)
    tasks: Tasks = field(default_factory=Tasks)
    fairness: Sequence[Fairness] = ()
    groups_known: bool = True
    analytics: Analytics | None = None
    audit: AuditFigures | None = None
