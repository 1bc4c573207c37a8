"""Job handles: what an enqueue returns, with methods to follow and to change the job.

A handle has the type of its task's result, so that type checkers know what `await job.result()` returns. It reads and
changes nothing by itself: each method is one call of `app.jobs` with the job's id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

import msgspec

from millrace.app.duration import Duration
from millrace.domain.errors import InvalidInput, JobNotFound
from millrace.domain.event import Event
from millrace.domain.request import Cancelled, Enqueued, Replayed
from millrace.domain.rules.lanes import instance_id

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.app.handler.job_log import LogLine
    from millrace.app.job_status import JobStatus
    from millrace.app.jobs import Running
    from millrace.app.task import Task
    from millrace.app.why import Reason

R_co = TypeVar("R_co", covariant=True)


# gc=False: an enqueue of many jobs makes many handles. An app refers to no handle, so a handle is in no cycle.
class BaseHandle(msgspec.Struct, Generic[R_co], frozen=True, gc=False, eq=False):
    """The facts of a handle: what the store answered to the enqueue. They do not change when the job changes."""

    _app: App
    id: str
    _answer: Enqueued | None = None
    _task: Task[Any, Any] | None = None

    @property
    def enqueued(self) -> Enqueued:
        """The store's answer to the enqueue. Raises InvalidInput for a handle that was made from an id."""
        if self._answer is None:
            raise InvalidInput(
                f"the handle of job {self.id!r} was made from its id, so it has no answer of an enqueue. "
                "Read the job instead: await job.status()"
            )
        return self._answer

    @property
    def output(self) -> R_co:
        """The job's future result, as an argument of a job that runs after it: `await album.enqueue(photo.output)`.

        This is the handle itself. The worker replaces it by the result before it runs the other job.
        """
        return cast("R_co", self)

    @property
    def is_duplicate(self) -> bool:
        """Whether the enqueue created no job, because the id or the key belonged to the job of this handle."""
        return self.enqueued.status != "queued"

    @property
    def payload_differs(self) -> bool:
        """Whether the job is a duplicate whose payload differs from that of the enqueue."""
        return self.enqueued.payload_differs

    @property
    def seq(self) -> int:
        return self.enqueued.seq

    @property
    def generation(self) -> int:
        """The number of the job among all jobs that have used its id: 1, 2, 3 …"""
        return self.enqueued.generation

    @property
    def lane(self) -> int | None:
        """The job's lane in its pool, counted from 0; None if the job is not in a pool."""
        return self.enqueued.lane

    @property
    def position(self) -> int | None:
        """How many jobs were before it in its lane at the enqueue; None for a duplicate, or if it is not in a pool."""
        return self.enqueued.position

    @property
    def depth(self) -> int | None:
        """How many jobs waited in its lane after the enqueue, or in a queue that has `max_depth`; otherwise None."""
        return self.enqueued.depth

    @property
    def instance(self) -> str | None:
        """The pool and the lane in one name, such as `workerPool:orders:3`.

        None if the job is not in a pool, or was enqueued by `app.enqueue`.
        """
        lane = self.enqueued.lane
        return None if lane is None or self._task is None else instance_id(self._task.options.queue, lane)

    def __repr__(self) -> str:
        how = "" if self._answer is None else f", {self._answer.status}"
        return f"<{type(self).__name__} {self.id!r}{how}>"


class JobHandle(BaseHandle[R_co], frozen=True, gc=False, eq=False):
    """A handle of one job: what an enqueue returns. `job.id`, `job.is_duplicate`; `await job.result(wait="10s")`.

    R_co is the type of the job's result. `job.sync` is the same handle for programs without an event loop.
    """

    @overload
    async def result(self, *, wait: Duration | None = None, follow: Literal[False] = False) -> R_co: ...
    @overload
    async def result(self, *, wait: Duration | None = None, follow: bool) -> Any: ...
    async def result(self, *, wait: Duration | None = None, follow: bool = False) -> Any:
        """Return the job's result. By default this does not wait.

        With `follow`, return the result of the job that continues this one (`ctx.enqueue`): see `Jobs.result`.

        Raises WaitTimeout if the job has not finished within `wait`. Raises JobNotFound, JobFailed, JobCancelled or
        ResultExpired if there is no result.
        """
        return await self._app.jobs.result(self, wait=wait, follow=follow)

    async def status(self) -> JobStatus:
        """Return the job as it is now: its state, progress, attempts, error, … Raises JobNotFound.

        If its id was reused, this is the newer job.
        """
        return existing(self.id, await self._app.jobs.get(self))

    async def log(self) -> list[LogLine]:
        """Return the lines that the handler wrote with `ctx.log`, oldest first. Empty unless the task has `keep_log`.

        Lines of a running job are stored about once a second. Raises JobNotFound.
        """
        return (await self.status()).log

    async def history(self) -> list[Event]:
        """Return all events of the job that are kept, oldest first, including those of earlier generations."""
        return await self._app.jobs.history(self)

    async def why(self) -> list[Reason]:
        """Return the reasons why the job waits, the most important first; an empty list if it does not wait.

        Raises JobNotFound.
        """
        return await self._app.jobs.why(self)

    async def cancel(self, *, running: Running = "refuse") -> Cancelled:
        """Cancel the job if it waits. With `running="request"`, request it to stop if it runs."""
        return await self._app.jobs.cancel(self, running=running)

    async def replay(self, *, children: bool = True) -> Replayed:
        """Move the finished job back to waiting, with its failures reset to 0. `children` is as in `Jobs.replay`."""
        return await self._app.jobs.replay(self, children=children)

    @property
    def sync(self) -> SyncJobHandle[R_co]:
        """The same handle with blocking methods, for programs without an event loop."""
        return SyncJobHandle(self._app, self.id, self._answer, self._task)


class SyncJobHandle(BaseHandle[R_co], frozen=True, gc=False, eq=False):
    """A handle of one job with blocking methods: what an enqueue of the blocking API returns."""

    @overload
    def result(self, *, wait: Duration | None = None, follow: Literal[False] = False) -> R_co: ...
    @overload
    def result(self, *, wait: Duration | None = None, follow: bool) -> Any: ...
    def result(self, *, wait: Duration | None = None, follow: bool = False) -> Any:
        """Return the job's result, or raise the same exceptions as `JobHandle.result`. By default this does not wait.

        Raises WaitTimeout if the job has not finished within `wait`.
        """
        return self._app.sync.jobs.result(self, wait=wait, follow=follow)

    def status(self) -> JobStatus:
        """Return the job as it is now: its state, progress, attempts, error, … Raises JobNotFound.

        If its id was reused, this is the newer job.
        """
        return existing(self.id, self._app.sync.jobs.get(self))

    def log(self) -> list[LogLine]:
        """Return the lines that the handler wrote with `ctx.log`, oldest first. Empty unless the task has `keep_log`.

        Lines of a running job are stored about once a second. Raises JobNotFound.
        """
        return self.status().log

    def history(self) -> list[Event]:
        """Return all events of the job that are kept, oldest first, including those of earlier generations."""
        return self._app.sync.jobs.history(self)

    def why(self) -> list[Reason]:
        """Return the reasons why the job waits, the most important first; an empty list if it does not wait."""
        return self._app.sync.jobs.why(self)

    def cancel(self, *, running: Running = "refuse") -> Cancelled:
        """Cancel the job if it waits. With `running="request"`, request it to stop if it runs."""
        return self._app.sync.jobs.cancel(self, running=running)

    def replay(self, *, children: bool = True) -> Replayed:
        """Move the finished job back to waiting, with its failures reset to 0. `children` is as in `Jobs.replay`."""
        return self._app.sync.jobs.replay(self, children=children)


S = TypeVar("S")


def existing(job_id: str, job: S | None) -> S:
    if job is None:
        raise JobNotFound(job_id)
    return job
