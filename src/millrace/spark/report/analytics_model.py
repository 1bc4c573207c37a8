"""The rows of the analytics views that a report shows, as plain values. Instants and durations are milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.spark.report.period import Period


@dataclass(frozen=True)
class ObjectiveFigures:
    """One objective: `target` of the jobs of `task` start, or finish, `within` milliseconds. `kept` and `budget_left`
    are shares, `burn` has the burn rates of an hour, six hours and three days. `missed_by_day` covers 28 days.
    """

    task: str
    measure: str
    within: int
    target: float
    jobs: int
    missed: int
    kept: float
    budget_left: float
    burn: Sequence[float | None]
    alert: str | None
    missed_by_day: Sequence[int] = ()


@dataclass(frozen=True)
class TaskTrend:
    task: str
    trend: str
    p50: float
    previous_p50: float
    p95: float
    previous_p95: float
    slower_share: float


@dataclass(frozen=True)
class Cost:
    """How long handlers were busy for a task or a group. `failed` is the part spent on runs that failed."""

    name: str
    queue: str | None
    runs: int
    busy: int
    failed: int
    share: float


@dataclass(frozen=True)
class Forecast:
    """The open jobs of a queue. `empty_at` and its bounds are None unless `trend` is `draining`."""

    queue: str
    open_jobs: int
    arrived_per_hour: float
    finished_per_hour: float
    trend: str
    empty_at: int | None = None
    earliest_at: int | None = None
    latest_at: int | None = None


@dataclass(frozen=True)
class CauseTrend:
    """A cause of failure that is `new` or `rising`. `expected` is how many jobs its past lets expect."""

    fingerprint: str
    task: str
    error_type: str | None
    sample: str | None
    sample_job: str
    trend: str
    jobs: int
    expected: float
    first_at: int
    last_at: int


@dataclass(frozen=True)
class Analytics:
    """The rows of the analytics views (`spark/analytics`) for `length` milliseconds up to the end of the report.
    `open_at` has the number of open jobs of each queue at the end of each interval of `period`. `compared` is the
    number of tasks whose running time was compared.
    """

    length: int
    period: Period
    open_at: Sequence[tuple[str, Sequence[int]]] = ()
    forecasts: Sequence[Forecast] = ()
    objectives: Sequence[ObjectiveFigures] = ()
    trends: Sequence[TaskTrend] = ()
    compared: int = 0
    task_costs: Sequence[Cost] = ()
    group_costs: Sequence[Cost] = ()
    causes: Sequence[CauseTrend] = ()
