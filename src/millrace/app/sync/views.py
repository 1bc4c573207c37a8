"""The blocking versions of `app.jobs` and `app.queue`, for programs without an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, Unpack, overload

from millrace.app.duration import Duration
from millrace.app.job_handle import BaseHandle, SyncJobHandle
from millrace.app.job_status import JobStatus
from millrace.app.jobs import Jobs, Many, Matching, OneJob, Running
from millrace.app.queue import LimitKeywords, Progress, Queue, QueueKeywords
from millrace.domain.event import Event
from millrace.domain.request import Archived, Cancelled, Deleted, LaneStatus, QueueCounts, Replayed
from millrace.domain.settings import QueueSettings

if TYPE_CHECKING:
    from millrace.app.task import Task
    from millrace.app.why import Reason

R = TypeVar("R")
T = TypeVar("T")


class Runner(Protocol):
    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


class FindKeywords(Matching, total=False):
    newest_first: bool
    by_change: bool
    limit: int | None


class SyncJobs:
    """The methods of `app.sync.jobs`, the blocking version of `app.jobs`."""

    def __init__(self, jobs: Jobs, run: Runner) -> None:
        self._jobs = jobs
        self._run = run

    @overload
    def handle(self, job_id: str, task: None = None) -> SyncJobHandle[Any]: ...
    @overload
    def handle(self, job_id: str, task: Task[..., R]) -> SyncJobHandle[R]: ...
    def handle(self, job_id: str, task: Any = None) -> SyncJobHandle[Any]:
        """Return a handle of the job with this id, for example an id from a request. This does not read the store.

        With `task`, its result has the type of that task.
        """
        return self._jobs.handle(job_id, task).sync

    @overload
    def get(self, jobs: OneJob) -> JobStatus | None: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, jobs: Many) -> list[JobStatus | None]: ...
    def get(self, jobs: Any) -> Any:
        """Return the present status of a job, or None if the job was never enqueued or its record was pruned.

        For many jobs, return a list in the same order.
        """
        return self._run(self._jobs.get(jobs))

    @overload
    def cancel(self, jobs: OneJob, *, running: Running = "refuse") -> Cancelled: ...  # type: ignore[overload-overlap]
    @overload
    def cancel(self, jobs: Many, *, running: Running = "refuse") -> list[Cancelled]: ...
    def cancel(self, jobs: Any, *, running: Running = "refuse") -> Any:
        """Cancel waiting jobs and return what happened to each job.

        Running jobs are not cancelled; with `running="request"`, they are requested to stop.
        """
        return self._run(self._jobs.cancel(jobs, running=running))

    @overload
    def replay(self, jobs: OneJob, *, children: bool = True) -> Replayed: ...  # type: ignore[overload-overlap]
    @overload
    def replay(self, jobs: Many, *, children: bool = True) -> list[Replayed]: ...
    def replay(self, jobs: Any, *, children: bool = True) -> Any:
        """Move finished jobs back to waiting, with their failures reset to 0. Return what happened to each job.

        Their history is kept. With `children`, children that were buried because one of these jobs died or was
        cancelled (`dependency_failed`) are replayed too.
        """
        return self._run(self._jobs.replay(jobs, children=children))

    @overload
    def archive(self, jobs: OneJob) -> Archived: ...  # type: ignore[overload-overlap]
    @overload
    def archive(self, jobs: Many) -> list[Archived]: ...
    def archive(self, jobs: Any) -> Any:
        """Hide finished jobs from searches, without changing their state. Return what happened to each job.

        `unarchive` shows them again.
        """
        return self._run(self._jobs.archive(jobs))

    @overload
    def unarchive(self, jobs: OneJob) -> Archived: ...  # type: ignore[overload-overlap]
    @overload
    def unarchive(self, jobs: Many) -> list[Archived]: ...
    def unarchive(self, jobs: Any) -> Any:
        return self._run(self._jobs.unarchive(jobs))

    @overload
    def delete(self, jobs: OneJob) -> Deleted: ...  # type: ignore[overload-overlap]
    @overload
    def delete(self, jobs: Many) -> list[Deleted]: ...
    def delete(self, jobs: Any) -> Any:
        """Delete finished jobs now, before their retention is over. Return what happened to each job.

        Jobs that have not finished are not deleted.
        """
        return self._run(self._jobs.delete(jobs))

    def purge(self, *, dry_run: bool = False, **matching: Unpack[Matching]) -> int:
        """Delete all finished jobs that match the filters, and return how many. With `dry_run`, only count them."""
        return self._run(self._jobs.purge(dry_run=dry_run, **matching))

    def history(self, job: OneJob) -> list[Event]:
        """Return all events of the job that are kept, oldest first, including those of earlier generations."""
        return self._run(self._jobs.history(job))

    def why(self, job: OneJob) -> list[Reason]:
        """Return the reasons why the job waits, the most important first; an empty list if it does not wait.

        Raises JobNotFound.
        """
        return self._run(self._jobs.why(job))

    def expires_at(self, job: OneJob) -> datetime | None:
        """Return when a waiting job expires, or when the record of a finished job is pruned.

        None means never, or that there is no such job.
        """
        return self._run(self._jobs.expires_at(job))

    def position(self, job: OneJob) -> int | None:
        """Return how many jobs run before this one, counted up to 10,000; None if this job is not waiting."""
        return self._run(self._jobs.position(job))

    def count(self) -> list[QueueCounts]:
        """Return the number of jobs in each state, one entry per queue."""
        return self._run(self._jobs.count())

    @overload
    def result(self, job: BaseHandle[R], *, wait: Duration | None = None, follow: Literal[False] = False) -> R: ...
    @overload
    def result(self, job: OneJob, *, wait: Duration | None = None, follow: bool = False) -> Any: ...
    def result(self, job: OneJob, *, wait: Duration | None = None, follow: bool = False) -> Any:
        """Return the job's result, or raise the same exceptions as `Jobs.result`. By default this does not wait.

        Raises WaitTimeout if the job has not finished within `wait`.
        """
        return self._run(self._jobs.result(job, wait=wait, follow=follow))

    def find(self, *, page: int = 100, **wanted: Unpack[FindKeywords]) -> Iterator[JobStatus]:
        """Iterate over the jobs that match all filters, in order of seq. `archived=None` includes archived jobs.

        Takes the same filters as `Jobs.find`. `page` is how many jobs are fetched at a time.
        """
        return iterate(self._run, self._jobs.find(page=page, **wanted), page)


async def _some(items: AsyncIterator[T], count: int) -> list[T]:
    found: list[T] = []
    async for item in items:
        found.append(item)
        if len(found) >= count:
            break
    return found


def iterate(run: Runner, items: AsyncIterator[T], at_once: int) -> Iterator[T]:
    """Yield the items of an async iterator. Each call of `run` fetches up to `at_once` items."""
    while found := run(_some(items, at_once)):
        yield from found
        if len(found) < at_once:
            return


class SyncQueue:
    """A blocking handle for one queue, returned by `app.sync.queue(name)`."""

    def __init__(self, queue: Queue, run: Runner) -> None:
        self._queue = queue
        self._run = run

    @property
    def name(self) -> str:
        return self._queue.name

    def pause(self, lane: int | None = None) -> QueueSettings:
        """Stop claims from the queue, or from one lane, and return the new settings.

        Running jobs continue, and jobs can still be enqueued.
        """
        return self._run(self._queue.pause(lane))

    def resume(self, lane: int | None = None) -> QueueSettings:
        return self._run(self._queue.resume(lane))

    def limits(self, **limits: Unpack[LimitKeywords]) -> QueueSettings:
        """Limit running jobs, or jobs per second, over all workers. Return the settings now in effect."""
        return self._run(self._queue.limits(**limits))

    def set(self, **settings: Unpack[QueueKeywords]) -> QueueSettings:
        """Change settings, durably and for all workers. Return all settings that are now in effect."""
        return self._run(self._queue.set(**settings))

    def settings(self) -> QueueSettings:
        return self._run(self._queue.settings())

    def drain(self, progress: Progress | None = None, *, lane: int | None = None) -> int:
        """Cancel every waiting job and return how many. `progress` is called on the background thread."""
        return self._run(self._queue.drain(progress, lane=lane))

    def obliterate(self, *, force: bool = False, progress: Progress | None = None) -> int:
        """Delete every job of the queue, even running jobs, and return how many. This cannot be undone.

        Raises InvalidInput unless `force` is True.
        """
        return self._run(self._queue.obliterate(force=force, progress=progress))

    def counts(self) -> QueueCounts:
        return self._run(self._queue.counts())

    def lanes(self) -> list[LaneStatus]:
        """Return the status of each lane of a pool; an empty list for a queue without lanes."""
        return self._run(self._queue.lanes())

    def __repr__(self) -> str:
        return f"<SyncQueue {self.name!r}>"
