"""The public types of Spark drains. A Spark drain runs the waiting jobs with workers on Spark's executors.

The implementation is in `millrace.spark`, which an app without Spark never imports.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypedDict, cast

import msgspec

from millrace.app.duration import Duration
from millrace.domain.errors import InvalidInput, QueueError, did_you_mean

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.app.task import Task

Until = Literal["empty", "stopped"]
Ended = Literal["empty", "stopped", "max_jobs", "orphaned", "refused"]


class DrainFailed(QueueError):
    """Raised if Spark aborted a Spark drain. No job is lost: other workers reclaim its jobs when the leases expire."""


class DrainKeywords(TypedDict, total=False):
    """The keywords of `app.on_spark`, which docs/spark-drain.md explains."""

    address: str
    queues: Sequence[str] | str | None
    tasks: Iterable[str | Task[..., Any]] | None
    partitions: int | None
    slots: int
    processes: int
    max_jobs: int | None
    duration: Duration | None
    until: Until
    patience: Duration
    lease: Duration | None
    grace: Duration
    url: str | None
    url_env: str | None
    url_file: str | None


class DrainWorker(msgspec.Struct, frozen=True):
    """What one worker of a Spark drain did, as one row of Spark's result."""

    partition: int
    attempt: int  # of Spark's task; above 0 if an earlier one was lost
    worker: str
    host: str
    pid: int
    claimed: int
    completed: int
    retried: int
    dead: int
    snoozed: int
    released: int
    cancelled: int
    lost: int
    reaped: int
    seconds: float
    ended: Ended
    refused: str | None = None

    @property
    def failed(self) -> int:
        """Number of failed runs: of jobs that are retried, and of jobs that are dead."""
        return self.retried + self.dead


class DrainOutcome(msgspec.Struct, frozen=True):
    """The workers that finished, sorted by partition. A lost worker is not included, but its replacement is."""

    workers: tuple[DrainWorker, ...]
    seconds: float

    def total(self, what: str) -> int:
        """Return the sum of a field over all workers."""
        return sum(getattr(worker, what) for worker in self.workers)

    @property
    def completed(self) -> int:
        """Number of completed jobs."""
        return self.total("completed")

    @property
    def refusals(self) -> tuple[str, ...]:
        """The distinct reasons why executors did not take part in the drain."""
        return tuple(dict.fromkeys(worker.refused for worker in self.workers if worker.refused is not None))


class DrainProgress(msgspec.Struct, frozen=True):
    """The current counts of the queues of a Spark drain.

    `completed` and `dead` count all jobs since the drain began, including those of workers outside the drain.
    """

    ready: int
    running: int
    later: int  # scheduled, retrying or blocked
    completed: int
    dead: int
    workers: int  # live workers of this drain


class Drain(Protocol):
    """A running Spark drain. Leaving its `with` block stops it and waits for its end."""

    id: str

    @property
    def done(self) -> bool:
        """Whether the drain has ended."""
        ...

    def progress(self) -> DrainProgress:
        """Return the current counts of its queues."""
        ...

    def wait(self, timeout: float | None = None) -> DrainOutcome:
        """Block until the drain has ended, and return its outcome.

        Raises DrainFailed if Spark aborted the drain, and InvalidInput if no executor could take part. Raises
        TimeoutError after `timeout` seconds; the drain continues in that case.
        """
        ...

    def stop(self, grace: Duration | None = None) -> None:
        """Request the drain to stop, and return at once. Jobs that still run when `grace` has passed are released."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def begin(app: App, spark: Any, options: DrainKeywords) -> Drain:
    for name in options:
        if name not in DrainKeywords.__annotations__:
            raise InvalidInput(f"a drain has no option {name!r}. {did_you_mean(name, DrainKeywords.__annotations__)}")
    made: Any = import_module("millrace.spark.drain.driver").begin(app, spark, options)
    return cast("Drain", made)
