"""The context of a run, `ctx`: what a handler can read about its run and do in it.

A context is created only for handlers that take one. A handler in a thread checks `ctx.cancelled` or calls
`ctx.check()`. A handler on the event loop is cancelled; tasks that it starts can wait for `ctx.aborted`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from millrace.app.flows.members import enqueued_by
from millrace.app.handler.job_log import LEAST_LEVEL, Keep, safe_text
from millrace.app.handler.verdict import Abort, Aborted
from millrace.app.shadow_mode import is_shadow
from millrace.domain.errors import InvalidInput, PayloadInvalid
from millrace.domain.job import Job, Spec
from millrace.domain.rules.check import check_spec
from millrace.domain.rules.lanes import instance_id

if TYPE_CHECKING:
    from millrace.app.job_status import JobStatus

_log = logging.getLogger("millrace.handler")
_OF_RECORDS = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})  # names that fields cannot have


class RunningAttempt(Protocol):
    """The interface that a context needs from its run. The run is in the worker or in a child process."""

    progress: bytes | None
    children: list[Spec] | None

    @property
    def job(self) -> Job: ...
    @property
    def deadline(self) -> float: ...
    @property
    def clock(self) -> Callable[[], float]: ...
    @property
    def completing(self) -> bool: ...
    @property
    def keeps_log(self) -> bool: ...
    def keep_line(self, level: int, text: str, fields: Mapping[str, Any]) -> None: ...
    async def parents(self) -> list[JobStatus]: ...
    def parents_sync(self) -> list[JobStatus]: ...
    @property
    def state(self) -> Any: ...
    async def complete(self, value: Any, connection: object) -> None: ...
    def complete_sync(self, value: Any, connection: object) -> None: ...


class Enqueueable(Protocol):
    """An object that makes a spec from arguments: a task, or a task with options."""

    def spec(self, *args: Any, **kwargs: Any) -> Spec: ...


class ContextLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that prefixes each message with the job's id and adds job, task, queue and attempt to each record.

    `ctx.log("resized", width=200)` logs a line with fields, at level INFO.
    """

    def __call__(self, text: object, /, **fields: Any) -> None:
        extra = {f"{name}_" if name in _OF_RECORDS else name: value for name, value in fields.items()}
        self.log(logging.INFO, "%s", text, extra=extra, stacklevel=2)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        facts = dict(self.extra or {})
        kwargs["extra"] = {**facts, **(kwargs.get("extra") or {})}
        return f"[{facts['job']}] {safe_text(msg)}", kwargs


class KeptLog(ContextLog):
    """A `ContextLog` whose lines are also stored with the job: those at level INFO and above."""

    def __init__(self, logger: logging.Logger, facts: Mapping[str, object], keep: Keep) -> None:
        super().__init__(logger, facts)
        self._keep = keep

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level >= LEAST_LEVEL:
            self._keep(level, _text(msg, args, kwargs.get("exc_info")), kwargs.get("extra") or {})
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the caller is not this method
        super().log(level, msg, *args, **kwargs)


def _text(message: object, args: tuple[object, ...], exc_info: Any) -> str:
    if isinstance(exc_info, BaseException):
        exc_info = type(exc_info), exc_info, exc_info.__traceback__
    elif exc_info and not isinstance(exc_info, tuple):
        exc_info = sys.exc_info()
    try:
        text = logging.LogRecord("", logging.INFO, "", 0, message, args, None).getMessage()
    except Exception as error:  # logging reports such an error on stderr, and the call does not raise
        text = f"{safe_text(message)} (its {len(args)} arguments cannot be inserted: {safe_text(error)})"
    return f"{text}\n{logging.Formatter().formatException(exc_info)}" if exc_info and exc_info[0] else text


class Context:
    """What a handler knows of its run: annotate a parameter with `Context`, and the worker passes it."""

    def __init__(self, run: RunningAttempt) -> None:
        self._run = run
        self._why: Abort | None = None
        self.check_raised = False  # whether `check` has raised Aborted in the handler
        self._cancelled: threading.Event | None = None
        self._aborted: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._log: ContextLog | None = None

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        return self._run.job

    @property
    def id(self) -> str:
        """The job's id."""
        return self._run.job.spec.id

    @property
    def queue(self) -> str:
        """The job's queue."""
        return self._run.job.spec.queue

    @property
    def task(self) -> str:
        """The name of the job's task."""
        return self._run.job.spec.task

    @property
    def attempt(self) -> int:
        """Number of times the job was claimed, including this run: 1 for the first."""
        return self._run.job.attempt

    @property
    def is_retry(self) -> bool:
        """Whether the job was claimed before."""
        return self._run.job.attempt > 1

    @property
    def is_shadow(self) -> bool:
        """Whether this is a shadow replay: leave out effects outside the queue, such as mails and payments."""
        return is_shadow()

    @property
    def failures(self) -> int:
        """Number of failed attempts so far that count against `max_attempts`."""
        return self._run.job.failures

    @property
    def seq(self) -> int:
        """The job's number in the store: a later enqueue has a higher one."""
        return self._run.job.seq

    @property
    def generation(self) -> int:
        """How often this id was enqueued, including this job: 1 for the first."""
        return self._run.job.generation

    @property
    def lane(self) -> int | None:
        """The job's lane in its pool, counted from 0; None if the job is not in a pool."""
        return self._run.job.lane

    @property
    def pool(self) -> str | None:
        """The name of the job's pool; None if the job is not in a pool."""
        return None if self._run.job.lane is None else self.queue

    @property
    def instance(self) -> str | None:
        """The pool and the lane in one name, such as `workerPool:orders:3`; None if the job is not in a pool."""
        lane = self._run.job.lane
        return None if lane is None else instance_id(self.queue, lane)

    @property
    def enqueued_at(self) -> int:
        """The time at which the job was enqueued, in milliseconds of the store's clock."""
        return self._run.job.enqueued_at

    @property
    def started_at(self) -> int:
        """The time at which this attempt was claimed, in milliseconds of the store's clock."""
        return self._run.job.started_at or 0

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the job was enqueued with."""
        return dict(self._run.job.spec.headers or {})

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that the job was enqueued with."""
        return self._run.job.spec.tags

    @property
    def fence(self) -> tuple[int, int]:
        """The fencing token (seq, attempt), which grows with every claim.

        Pass it to an outside system with each write. If the system refuses a token that is smaller than the last one,
        it refuses the writes of stale runs.
        """
        return self._run.job.fence

    async def parents(self) -> list[JobStatus]:
        """Read the jobs that this job ran after, in the order of `after`: id, state, result, error, …

        This is one call of the store for 500 parents; a handler that does not call it reads nothing. Raises JobNotFound
        if the record of a parent was removed.
        """
        return await self._run.parents()

    def parents_sync(self) -> list[JobStatus]:
        """Read the parents like `parents`, for `def` handlers. This blocks the calling thread."""
        return self._run.parents_sync()

    @property
    def state(self) -> Any:
        """The value that the function below `@app.lifespan` has yielded, made once per worker or child process."""
        return self._run.state

    @property
    def remaining(self) -> float | None:
        """Seconds until this attempt times out; None if it has no timeout."""
        if math.isinf(self._run.deadline):
            return None
        return max(0.0, self._run.deadline - self._run.clock())

    # ── the abort signal ──────────────────────────────────────────────────────────────────────

    @property
    def cancelled(self) -> threading.Event:
        """An event for handlers in threads, set when the run must stop.

        `ctx.cancelled.wait(1)` sleeps for a second, but returns as soon as the event is set.
        """
        if self._cancelled is None:
            self._cancelled = threading.Event()
            if self._why is not None:  # checked after the event is assigned: `abort` may have run in between
                self._cancelled.set()
        return self._cancelled

    @property
    def aborted(self) -> asyncio.Event:
        """An event for tasks that the handler has started on the event loop, set when the run must stop."""
        if self._aborted is None:
            self._loop = asyncio.get_running_loop()
            self._aborted = asyncio.Event()
            if self._why is not None:
                self._aborted.set()
        return self._aborted

    def check(self) -> None:
        """Raise Aborted if the run must stop. A handler in a thread cannot be interrupted in any other way."""
        if self._why is not None:
            self.check_raised = True
            raise Aborted(self.id, self._why)

    def abort(self, why: Abort) -> None:
        """Signal that the run must stop. The worker calls this, from any thread."""
        self._why = why
        if self._cancelled is not None:
            self._cancelled.set()
        if self._aborted is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._aborted.set)

    # ── what a handler reports ────────────────────────────────────────────────────────────────

    def progress(self, value: Any) -> None:
        """Set the job's progress to any JSON value. Raises PayloadInvalid if it cannot be encoded.

        The worker stores the latest value, at most once per second.
        """
        try:
            self._run.progress = msgspec.json.encode(value)
        except (TypeError, ValueError) as error:
            raise PayloadInvalid(f"progress must be a JSON value, not {value!r}: {error}") from error

    @property
    def log(self) -> ContextLog:
        """A logger that adds the job to each record: `ctx.log("resized", width=200)`, `ctx.log.error("no %s", name)`.

        If the task has `keep_log`, its lines at level INFO and above are also stored with the job.
        """
        if self._log is None:
            facts = {"job": self.id, "task": self.task, "queue": self.queue, "attempt": self.attempt}
            keeps = self._run.keeps_log
            self._log = KeptLog(_log, facts, self._run.keep_line) if keeps else ContextLog(_log, facts)
        return self._log

    async def complete(self, result: Any = None, *, within: object) -> None:
        """Complete the job inside the open transaction of your database connection `within`.

        Your writes and the completion commit together. Raises LeaseLost if another worker has reclaimed the job; roll
        back in that case. The handler's return value is ignored. If the handler returns before the transaction was
        committed, the run has failed.
        """
        await self._run.complete(result, within)

    def complete_sync(self, result: Any = None, *, within: object) -> None:
        """Complete the job like `complete`, for `def` handlers. This blocks the calling thread."""
        self._run.complete_sync(result, within)

    def carry(self, spec: Spec) -> str:
        """Enqueue a job in the step that settles this run as completed or snoozed. Return the id of the new job.

        A run that fails, is buried or loses its lease enqueues nothing; the next attempt has to call this again.
        Raises InvalidInput if the spec is invalid, or after `complete` was called.
        """
        check_spec(spec)  # here the handler sees the error; later the settle would fail
        if self._run.completing:
            raise InvalidInput(
                f"ctx.complete has already stored the children of job {self.id!r}, so this one would be lost. "
                "Enqueue it before ctx.complete, or on its own: await task.enqueue(…)"
            )
        if self._run.children is None:
            self._run.children = []
        self._run.children.append(enqueued_by(spec, self.id))
        return spec.id

    def enqueue(self, task: Enqueueable, *args: Any, **kwargs: Any) -> str:
        """Enqueue a job of `task` with these arguments when this run is settled, like `carry`. Return the job's id.

        ctx.enqueue(send_mail.options(delay="1m"), to="ada")
        """
        if getattr(task, "connection", None) is not None:
            raise InvalidInput("a child is enqueued by the step that completes this run; remove options(within=…)")
        make: Callable[..., Spec] = task.spec
        return self.carry(make(*args, **kwargs))
