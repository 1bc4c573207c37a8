"""`AsyncResult`: the result object of a job. `group_result.py` has that of a group, `eager.py` that of a local run."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from millrace.contrib.celery import states
from millrace.contrib.celery.blocking import blocking
from millrace.contrib.celery.exceptions import NotCovered
from millrace.contrib.celery.request import refuse_in_task
from millrace.contrib.celery.values import restored
from millrace.domain.errors import JobCancelled, JobFailed
from millrace.domain.job import Job, State

if TYPE_CHECKING:
    from millrace.app.job_status import JobStatus
    from millrace.contrib.celery.app import Celery
    from millrace.contrib.celery.group_result import GroupResult

FOREVER = timedelta(days=30_000)


class AsyncResult:
    """The job with this id: its state, and its result. `parent` is the result object of the step before it."""

    def __init__(self, id: str, *, app: Celery | None = None, parent: AsyncResult | GroupResult | None = None) -> None:
        if app is None:
            from millrace.contrib.celery.current import current_app

            app = current_app()
        self.id = str(id)
        self.app = app
        self.parent = parent
        self.children: list[AsyncResult | GroupResult] = []

    @property
    def task_id(self) -> str:
        """The id of the job."""
        return self.id

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float | None = None,
        disable_sync_subtasks: bool = True,
        **_: Any,
    ) -> Any:
        """Wait for the job, and return its result. Raises TimeoutError after `timeout` seconds.

        If the job failed or was revoked, raise JobFailed or TaskRevokedError; with propagate=False, return the error.
        """
        if disable_sync_subtasks:
            refuse_in_task()
        wait = FOREVER if timeout is None else max(0.0, timeout)
        try:
            return restored(blocking(lambda: self.app.millrace.sync.jobs.result(self.id, wait=wait)))
        except (JobFailed, JobCancelled) as failed:
            error = _revoked_if_expired(failed)
        if propagate:
            raise error
        return error

    def wait(self, timeout: float | None = None, **options: Any) -> Any:
        """Wait for the job, and return its result, as `get`."""
        return self.get(timeout, **options)

    def _status(self) -> JobStatus | None:
        return blocking(lambda: self.app.millrace.sync.jobs.get(self.id))

    @property
    def state(self) -> str:
        """PENDING (also for an id that does not exist), STARTED, RETRY, SUCCESS, FAILURE or REVOKED.

        While the task runs, this is the state that it has set with `self.update_state`, if it has.
        """
        return state_of(self._status())

    status = state

    @property
    def result(self) -> Any:
        """The result, or the error of a job that failed, or the data of `self.update_state`; None if there is none."""
        job = self._status()
        if job is None:
            return None
        state = state_of(job)
        if state == states.SUCCESS:
            return restored(job.result)
        if state == states.REVOKED:
            return JobCancelled(job.id)
        if state in (states.FAILURE, states.RETRY):
            return JobFailed(job.id, job.reason, job.error)
        if job.record.state is State.RUNNING:
            own = _own_state(job)
            return {"hostname": job.worker} if own is None else restored(own["meta"])
        return None

    info = result

    @property
    def traceback(self) -> str | None:
        """The traceback of the latest failure, as text."""
        job = self._status()
        return None if job is None or job.error is None else job.error.traceback

    def ready(self) -> bool:
        """Return whether the job has finished."""
        return self.state in states.READY_STATES

    def successful(self) -> bool:
        """Return whether the job has completed."""
        return self.state == states.SUCCESS

    def failed(self) -> bool:
        """Return whether the job has failed."""
        return self.state == states.FAILURE

    @property
    def name(self) -> str | None:
        """The name of the task; None if there is no such job."""
        job = self._status()
        return None if job is None else job.task

    @property
    def retries(self) -> int | None:
        """The number of retries so far; None if there is no such job."""
        job = self._status()
        return None if job is None else retries_of(job.record)

    @property
    def date_done(self) -> datetime | None:
        """When the job finished; None if it has not."""
        job = self._status()
        return None if job is None else job.finished_at

    def revoke(self, *_: Any, terminate: bool = False, **__: Any) -> None:
        """Cancel the job if it waits. With `terminate`, also request it to stop if it runs."""
        running: Any = "request" if terminate else "refuse"
        blocking(lambda: self.app.millrace.sync.jobs.cancel(self.id, running=running))

    def forget(self) -> None:
        """Delete the job with its result, if it has finished."""
        blocking(lambda: self.app.millrace.sync.jobs.delete(self.id))

    def __getattr__(self, name: str) -> Any:
        if name in NOT_COVERED:
            raise NotCovered(f"{type(self).__name__}.{name}", NOT_COVERED[name])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __eq__(self, other: object) -> bool:
        return self.id == (other.id if isinstance(other, AsyncResult) else other)

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.id}>"


_READ_CHILDREN = "Keep the result objects that apply_async returned"
NOT_COVERED = {
    "as_tuple": _READ_CHILDREN,
    "build_graph": _READ_CHILDREN,
    "collect": _READ_CHILDREN,
    "get_leaf": _READ_CHILDREN,
    "graph": _READ_CHILDREN,
    "iterdeps": _READ_CHILDREN,
    "join_native": "Write get() or join()",
    "save": "Store the ids of its results: [result.id for result in group.results]",
    "then": "Pass link=…",
}


def state_of(job: JobStatus | None) -> str:
    """Return the state of a job in Celery's words."""
    if job is None:
        return states.PENDING
    if job.state == "running":
        own = _own_state(job)
        return states.STARTED if own is None else own["state"]
    if job.state == "dead" and job.reason == "ttl_expired":
        return states.REVOKED
    return _STATES.get(job.state, states.PENDING)


def retries_of(job: Job) -> int:
    """Return the number of retries: failures without lost leases, and without the one that ended the job."""
    return max(0, job.failures - job.stalls - (job.state is State.DEAD))


_STATES = {
    "retrying": states.RETRY,
    "completed": states.SUCCESS,
    "dead": states.FAILURE,
    "cancelled": states.REVOKED,
}


def _own_state(job: JobStatus) -> Any:
    shown = job.progress
    return shown if isinstance(shown, dict) and shown.keys() == {"state", "meta"} else None


def _revoked_if_expired(error: JobFailed | JobCancelled) -> JobFailed | JobCancelled:
    if isinstance(error, JobFailed) and error.reason == "ttl_expired":
        return JobCancelled(error.job)
    return error
