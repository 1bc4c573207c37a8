"""The status of a job, for people: the stored record with its values decoded and its instants as `datetime`s."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from millrace.app.flows.members import ENQUEUED_BY, flow_of
from millrace.app.job_handle import existing
from millrace.app.payloads.inputs import has_inputs
from millrace.app.shadow_mode import is_shadow
from millrace.domain.errors import InvalidInput
from millrace.domain.instant import as_datetime
from millrace.domain.job import Attempt, Job, State, Word, word
from millrace.domain.outcome import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millrace.app.app import App
    from millrace.app.handler.job_log import LogLine
    from millrace.app.task import Task
    from millrace.store.protocol import Store


R = TypeVar("R")


class JobStatus(msgspec.Struct, frozen=True):
    """A job as it was when it was read.

    Instants are aware datetimes in UTC; `args`, `result` and `progress` are decoded when they are read. `record` is the
    record as it is stored: its bytes, its integers in milliseconds of the store's clock, and all options (`spec`).
    """

    record: Job
    state: Word  # the states that users see: ready, scheduled, retrying, blocked, running, completed, …
    _app: App

    # ── what it is ────────────────────────────────────────────────────────────────────────────

    @property
    def id(self) -> str:
        """The job's id."""
        return self.record.spec.id

    @property
    def task(self) -> str:
        """The name of the job's task."""
        return self.record.spec.task

    @property
    def queue(self) -> str:
        """The job's queue."""
        return self.record.spec.queue

    @property
    def priority(self) -> int:
        """0 to 15, higher first."""
        return self.record.spec.priority

    @property
    def group(self) -> str | None:
        """The group whose jobs run one at a time, in order; in a pool, the partition key."""
        return self.record.spec.group

    @property
    def key(self) -> str | None:
        """The key that prevents duplicates."""
        return self.record.spec.key

    @property
    def lane(self) -> int | None:
        """The job's lane in its pool, counted from 0; None if the job is not in a pool."""
        return self.record.lane

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the job was enqueued with."""
        return dict(self.record.spec.headers or {})

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that the job was enqueued with."""
        return self.record.spec.tags

    @property
    def seq(self) -> int:
        """The job's number in the store: a later enqueue has a higher one."""
        return self.record.seq

    @property
    def generation(self) -> int:
        """How often this id was enqueued, including this job: 1 for the first."""
        return self.record.generation

    @property
    def args(self) -> Any:
        """The handler's arguments by name, without those that are results of parents.

        Raises PayloadInvalid if they cannot be decoded, or do not fit the task.
        """
        spec = self.record.spec
        task = self._app.tasks.get(spec.task)
        if task is not None and not has_inputs(spec):
            return task.load(spec.payload, spec.serde)
        return self._app.serdes.decode(spec.payload, spec.payload_serde)

    # ── how far it is ─────────────────────────────────────────────────────────────────────────

    @property
    def progress(self) -> Any:
        """The latest value that the handler passed to `ctx.progress`; None if there is none."""
        return None if self.record.progress is None else msgspec.json.decode(self.record.progress)

    @property
    def log(self) -> list[LogLine]:
        """The lines that the handler wrote with `ctx.log`, oldest first. Empty unless the task has `keep_log`."""
        from millrace.app.handler.job_log import read_log

        return read_log(self.record.log)

    @property
    def result(self) -> Any:
        """The result, converted to the return annotation of its task if the app has it; None if there is none.

        Raises PayloadInvalid if the result cannot be decoded. `Jobs.result` tells why a job has no result.
        """
        return read_result(self._app, self.record, self.record.result)

    def result_as(self, task: Task[..., R]) -> R:
        """Return the result with the type of this task. Raises InvalidInput if the job is of another task."""
        if task.name != self.task:
            raise InvalidInput(f"job {self.id!r} is of task {self.task!r}, not of {task.name!r}")
        return cast("R", self.result)

    @property
    def flow(self) -> str | None:
        """The id of the flow that the job is a part of; None if it was not enqueued by a flow."""
        return flow_of(self.record.spec)

    @property
    def enqueued_by(self) -> str | None:
        """The id of the job whose handler enqueued this job by `ctx.enqueue`; None if no handler did."""
        return self.headers.get(ENQUEUED_BY)

    @property
    def continued_by(self) -> tuple[str, ...]:
        """The ids of the jobs that the handler enqueued by `ctx.enqueue`: the latest 100, the latest last."""
        return self.record.carried or ()

    @property
    def error(self) -> Failure | None:
        """The error of the latest failed attempt."""
        return self.record.error

    @property
    def reason(self) -> str | None:
        """Why a dead job is dead, such as `max_attempts_exceeded`."""
        return self.record.reason

    @property
    def attempt(self) -> int:
        """Number of times the job was claimed."""
        return self.record.attempt

    @property
    def failures(self) -> int:
        """Number of failed attempts that count against `max_attempts`."""
        return self.record.failures

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The failed attempts, at most 50: the first and the latest 49."""
        return self.record.attempts

    @property
    def worker(self) -> str | None:
        """The worker that runs the job; None if it is not running."""
        return self.record.worker

    @property
    def cancel_requested(self) -> bool:
        """Whether a running job was requested to stop."""
        return self.record.cancel_requested

    @property
    def archived(self) -> bool:
        """Whether the job is hidden from lists."""
        return self.record.archived

    # ── when ──────────────────────────────────────────────────────────────────────────────────

    @property
    def enqueued_at(self) -> datetime:
        """When the job was enqueued."""
        return as_datetime(self.record.enqueued_at)

    @property
    def available_at(self) -> datetime:
        """When it is or was due."""
        return as_datetime(self.record.available_at)

    @property
    def started_at(self) -> datetime | None:
        """When its latest attempt was claimed."""
        return _optional(self.record.started_at)

    @property
    def finished_at(self) -> datetime | None:
        """When the job finished; None if it has not."""
        return _optional(self.record.finished_at)

    @property
    def lease_until(self) -> datetime | None:
        """When the lease of the run expires; None if the job is not running."""
        return _optional(self.record.lease_until)

    @property
    def next_retry_at(self) -> datetime | None:
        """When a dead job is retried automatically."""
        return _optional(self.record.next_retry_at)

    def __repr__(self) -> str:
        return f"<JobStatus {self.id!r} of task {self.task!r}: {self.state}>"


PARENTS_AT_ONCE = 500  # per call of the store


def _optional(at: int | None) -> datetime | None:
    return None if at is None else as_datetime(at)


def read_result(app: App, record: Job, data: bytes | None) -> Any:
    """Return a decoded result of the job, converted to the return annotation of its task if the app has the task."""
    task = app.tasks.get(record.task)
    if task is not None:
        return task.load_result(data, record.spec.serde)
    return None if data is None else app.serdes.decode(data, record.spec.result_serde)


async def parents_of(app: App, job: Job) -> list[JobStatus]:
    """Return the status of each job that this one ran after. Raises JobNotFound if the record of one was removed."""
    if is_shadow():
        raise InvalidInput(
            "a shadow replay does not know the jobs that a job ran after, so ctx.parents() fails. Check ctx.is_shadow "
            "before the call, or pass their results as arguments (task.spec(parent.output))"
        )
    store = await app.connected()
    ids, found = job.spec.after, []
    for start in range(0, len(ids), PARENTS_AT_ONCE):
        part = ids[start : start + PARENTS_AT_ONCE]
        found += [existing(job_id, parent) for job_id, parent in zip(part, await store.get(part), strict=True)]
    return await statuses(app, store, found)


async def statuses(app: App, store: Store, records: Sequence[Job]) -> list[JobStatus]:
    """Return the status of each record.

    The store's clock decides whether a waiting job is due, so it is read if there is such a job.
    """
    waits = any(record.state is State.WAITING and not record.blocked for record in records)
    now = await store.now() if waits else 0
    return [JobStatus(record, word(record, now), app) for record in records]
