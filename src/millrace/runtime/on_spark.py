"""Drains as their users see them: a backlog run by workers on Spark's executors. What carries them out is in
`millrace.spark`, which an app without Spark never loads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypedDict, cast

import msgspec

from millrace.domain.errors import InvalidInput, QueueError
from millrace.domain.hints import meant
from millrace.runtime.duration import Duration

if TYPE_CHECKING:
    from millrace.runtime.app import App
    from millrace.runtime.task import Task

Until = Literal["empty", "stopped"]
Ended = Literal["empty", "stopped", "max_jobs", "orphaned", "refused"]


class DrainFailed(QueueError):
    """Spark gave the drain up. No job is lost: what its workers held is taken over when their leases run out."""


class DrainKeywords(TypedDict, total=False):
    """What `app.on_spark` takes; docs/spark-drain.md says what each is for."""

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
    """What one worker of a drain did: one row of what Spark brings back."""

    partition: int
    attempt: int  # of Spark's task; above 0, an earlier one was lost
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
        return self.retried + self.dead


class DrainOutcome(msgspec.Struct, frozen=True):
    """The workers that came back, by partition. One that was lost is not among them, but its successor is."""

    workers: tuple[DrainWorker, ...]
    seconds: float

    def total(self, what: str) -> int:
        return sum(getattr(worker, what) for worker in self.workers)

    @property
    def completed(self) -> int:
        return self.total("completed")

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why executors did not take part, if any did not."""
        return tuple(dict.fromkeys(worker.refused for worker in self.workers if worker.refused is not None))


class DrainProgress(msgspec.Struct, frozen=True):
    """Its queues now, by the store's counts; `completed` and `dead` are since it began, whoever ran them."""

    ready: int
    running: int
    later: int  # scheduled, waiting for a retry or for others
    completed: int
    dead: int
    workers: int  # of this drain, and alive


class Drain(Protocol):
    """A drain that has begun. Leaving its `with` block stops it."""

    id: str

    @property
    def done(self) -> bool: ...

    def progress(self) -> DrainProgress: ...

    def wait(self, timeout: float | None = None) -> DrainOutcome:
        """Block until it has ended. DrainFailed if Spark gave up; TimeoutError after so many seconds; it goes on."""
        ...

    def stop(self, grace: Duration | None = None) -> None:
        """Let its workers end what they run within `grace`, and give back the rest. Does not wait for that."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def begin(app: App, spark: Any, options: DrainKeywords) -> Drain:
    for name in options:
        if name not in DrainKeywords.__annotations__:
            raise InvalidInput(f"a drain has no option {name!r}. {meant(name, DrainKeywords.__annotations__)}")
    made: Any = import_module("millrace.spark.drain").begin(app, spark, options)
    return cast("Drain", made)
