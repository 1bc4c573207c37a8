"""Jobs and queues for programs without an event loop: what `app.jobs` and `app.queue` offer, blocking."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator
from datetime import datetime
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, overload

from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.domain.request import Archived, Cancelled, LaneStatus, Page, Query, QueueCounts, Replayed
from millrace.domain.settings import QueueSettings
from millrace.runtime.duration import Duration
from millrace.runtime.jobs import Jobs, Many, Running
from millrace.runtime.options import OneJob
from millrace.runtime.queue import LimitKeywords, Progress, Queue, QueueKeywords

T = TypeVar("T")


class Runner(Protocol):
    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


class FindKeywords(TypedDict, total=False):
    queue: str | None
    task: str | None
    state: str | None
    group: str | None
    key: str | None
    enqueued_from: datetime | int | None
    enqueued_to: datetime | int | None
    finished_from: datetime | int | None
    finished_to: datetime | int | None
    archived: bool | None
    newest_first: bool
    limit: int | None


class SyncJobs:
    """Made by the app: `app.sync.jobs`."""

    def __init__(self, jobs: Jobs, run: Runner) -> None:
        self._jobs = jobs
        self._run = run

    @overload
    def get(self, jobs: OneJob) -> Job | None: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, jobs: Many) -> list[Job | None]: ...
    def get(self, jobs: Any) -> Any:
        """The record as it is now; None when there is none: never enqueued, or pruned."""
        return self._run(self._jobs.get(jobs))

    @overload
    def cancel(self, jobs: OneJob, *, running: Running = "refuse") -> Cancelled: ...  # type: ignore[overload-overlap]
    @overload
    def cancel(self, jobs: Many, *, running: Running = "refuse") -> list[Cancelled]: ...
    def cancel(self, jobs: Any, *, running: Running = "refuse") -> Any:
        """Cancel what waits. What runs is left alone, or with `running="request"` told to end (R-06)."""
        return self._run(self._jobs.cancel(jobs, running=running))

    @overload
    def replay(self, jobs: OneJob) -> Replayed: ...  # type: ignore[overload-overlap]
    @overload
    def replay(self, jobs: Many) -> list[Replayed]: ...
    def replay(self, jobs: Any) -> Any:
        """Bring finished jobs back to waiting, with a new budget of attempts; their history is kept."""
        return self._run(self._jobs.replay(jobs))

    @overload
    def archive(self, jobs: OneJob) -> Archived: ...  # type: ignore[overload-overlap]
    @overload
    def archive(self, jobs: Many) -> list[Archived]: ...
    def archive(self, jobs: Any) -> Any:
        """Hide finished jobs from searches; `unarchive` shows them again, in the state they had."""
        return self._run(self._jobs.archive(jobs))

    @overload
    def unarchive(self, jobs: OneJob) -> Archived: ...  # type: ignore[overload-overlap]
    @overload
    def unarchive(self, jobs: Many) -> list[Archived]: ...
    def unarchive(self, jobs: Any) -> Any:
        return self._run(self._jobs.unarchive(jobs))

    def history(self, job: OneJob) -> list[Event]:
        """Every transition of the job, oldest first, over all generations that are remembered."""
        return self._run(self._jobs.history(job))

    def position(self, job: OneJob) -> int | None:
        """How many jobs run before it, counted up to 10,000; None when it does not wait."""
        return self._run(self._jobs.position(job))

    def count(self) -> list[QueueCounts]:
        """Jobs by state, for each queue."""
        return self._run(self._jobs.count())

    def result(self, job: OneJob, *, wait: Duration | None = None) -> Any:
        """What the job returned; WaitTimeout when it has not finished within `wait`, by default not at all (R-07)."""
        return self._run(self._jobs.result(job, wait=wait))

    def page(self, query: Query) -> Page:
        """One page of a search, for callers that keep the cursor themselves."""
        return self._run(self._jobs.page(query))

    def find(self, *, page: int = 100, **wanted: Unpack[FindKeywords]) -> Iterator[Job]:
        """Jobs that match all of it, by seq, fetched page by page. `archived=None` takes both kinds."""
        return iterate(self._run, self._jobs.find(page=page, **wanted), page)


async def _some(items: AsyncIterator[T], count: int) -> list[T]:
    found: list[T] = []
    async for item in items:
        found.append(item)
        if len(found) >= count:
            break
    return found


def iterate(run: Runner, items: AsyncIterator[T], at_once: int) -> Iterator[T]:
    """The items one by one, fetched some at a time."""
    while found := run(_some(items, at_once)):
        yield from found
        if len(found) < at_once:
            return


class SyncQueue:
    """Made by `app.sync.queue(name)`."""

    def __init__(self, queue: Queue, run: Runner) -> None:
        self._queue = queue
        self._run = run

    @property
    def name(self) -> str:
        return self._queue.name

    def pause(self, lane: int | None = None) -> QueueSettings:
        """Nothing is claimed once this has returned; what runs goes on, and enqueues are taken."""
        return self._run(self._queue.pause(lane))

    def resume(self, lane: int | None = None) -> QueueSettings:
        return self._run(self._queue.resume(lane))

    def limits(self, **limits: Unpack[LimitKeywords]) -> QueueSettings:
        """Bound the claims of all workers together: jobs at a time, and jobs per second."""
        return self._run(self._queue.limits(**limits))

    def set(self, **settings: Unpack[QueueKeywords]) -> QueueSettings:
        """Change settings, durably and for all workers; answers all of them as they are now."""
        return self._run(self._queue.set(**settings))

    def settings(self) -> QueueSettings:
        return self._run(self._queue.settings())

    def drain(self, progress: Progress | None = None, *, lane: int | None = None) -> int:
        """Cancel every waiting job and answer how many. `progress` is called on the thread in the background."""
        return self._run(self._queue.drain(progress, lane=lane))

    def obliterate(self, *, force: bool = False, progress: Progress | None = None) -> int:
        """Remove every job, running ones too, and answer how many. There is no way back, so it takes `force=True`."""
        return self._run(self._queue.obliterate(force=force, progress=progress))

    def counts(self) -> QueueCounts:
        return self._run(self._queue.counts())

    def lanes(self) -> list[LaneStatus]:
        """Each lane of a pool; empty for a queue without lanes."""
        return self._run(self._queue.lanes())

    def __repr__(self) -> str:
        return f"<SyncQueue {self.name!r}>"
