"""One claimed job: its lease, its run, and the outcome of the run.

`HeldJob` is a job under a lease, from the claim until the store has answered its settle. `Run` is a held job whose
handler runs in a slot, or waits for one; the executor starts and ends it. The end of the run becomes an `Outcome`: what
the handler returned or raised, or why it was aborted. The settler writes the outcome.

Transactional completion: a handler may call `ctx.complete` on its own database connection. If its transaction commits,
the job is completed and the lease has ended, so the store refuses the worker's later settle. If the transaction does
not commit, the lease remains, and the worker settles the run as failed.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import UNSET, UnsetType

from millrace.app.handler.context import Context
from millrace.app.handler.job_log import JobLog, LogLine, make_line
from millrace.app.handler.verdict import Abort, Aborted, Verdict
from millrace.app.host import Runnable
from millrace.domain.change import Change
from millrace.domain.errors import LeaseLost, PayloadInvalid, ResultInvalid
from millrace.domain.job import Job, Lease, Spec
from millrace.domain.outcome import Buried, CancelledOnRequest, Failure, Outcome, Raised, Released, Returned, TimedOut
from millrace.domain.request import Receipt
from millrace.worker.process.remote import Encoded, OutcomeError, ProcessDied
from millrace.worker.scope import WorkerScope

if TYPE_CHECKING:
    from millrace.app.job_status import JobStatus
    from millrace.store.protocol import Within

_CREATING = threading.Lock()  # of the log of a job: two threads of a handler may write its first lines
MARGIN = 0.1  # share of the lease duration that is left when a worker that cannot extend it aborts the run
CANCELLED_DELAY = 1_000  # milliseconds; a handler that cancels its own task must not run again at once, in a loop
NOT_COMMITTED = Raised(
    Failure(
        "NotCommitted",
        "the handler called ctx.complete(…, within=…) and returned, but that transaction was not committed: "
        "it was rolled back, or is still open. Nothing of it has happened",
    )
)


class Execution(Protocol):
    """The interface to stop a handler that runs in a thread, in a child process or in a batch."""

    def stop(self, why: Abort) -> None:
        """Ask the handler to end. The run ends when the handler has ended."""
        ...

    def abandon(self) -> bool:
        """Kill the handler after the grace period, if that is possible.

        Return whether the handler is certain to end.
        """
        ...


class HeldJob:
    """A job under a lease of this worker, from the claim until the store has answered the settle.

    The thread of the heartbeat reads held jobs too.
    """

    keep_result: int | UnsetType | None = UNSET  # how long its result is kept, if that is not stored with the job
    __slots__ = (
        "_on_progress",
        "_progress",
        "children",
        "completing",
        "ended",
        "error",
        "extend_until",
        "given_up",
        "job",
        "lease",
        "length",
        "margin",
        "started",
        "task",
        "until",
        "value",
        "waiting",
        "why",
    )

    def __init__(
        self,
        job: Job,
        task: Runnable | None,
        length: float,
        since: float,
        extend_until: float,
        on_progress: Callable[[], None] | None = None,
    ) -> None:
        self.job = job
        self.task = task
        self.lease = job.lease
        self.length = length  # seconds
        self.until = since + length  # as in `lease_from`: one held job is created for every job
        self.margin = length * MARGIN
        self.extend_until = extend_until  # the heartbeat no longer extends it after this
        self._progress: bytes | None = None
        self._on_progress = on_progress  # called in the thread that reports progress
        self.why: Abort | None = None  # set when its run is to end early
        self.ended = True  # no handler runs; a Run sets this to False
        self.given_up = False  # the heartbeat has aborted its run because the lease is lost
        self.waiting = False  # claimed ahead: it waits for a slot, and its handler has not started
        self.completing = False  # its handler has completed the job in a transaction of its own
        self.started: float | None = None  # when its handler started
        self.children: list[Spec] | None = None  # jobs that its handler enqueues with its end
        self.error: BaseException | None = None  # what the handler raised, for the log
        self.value: object = None  # what the handler returned, for local listeners

    def lease_from(self, since: float, length: float) -> None:
        """Set the expiry of the lease to `length` seconds after `since`, the time when the call was sent."""
        self.until = since + length  # another worker may get the job after this
        self.margin = length * MARGIN

    @property
    def progress(self) -> bytes | None:
        """The latest progress that the handler reported and that is not written yet, or None."""
        return self._progress

    @progress.setter
    def progress(self, value: bytes | None) -> None:
        self._progress = value
        if value is not None and self._on_progress is not None:
            self._on_progress()

    def progress_written(self, value: bytes | None) -> None:
        if self._progress is value:  # otherwise the handler has reported more since
            self._progress = None

    @property
    def unwritten_log(self) -> bytes | None:
        """The log of the job, if its handler has written lines that the store does not have yet."""
        return None

    def log_written(self, log: bytes) -> None:
        """Note that the store has this log."""

    @property
    def abort_at(self) -> float:
        return self.until - self.margin

    def give_up(self) -> None:
        self.given_up = True

    def extend_only_until(self, until: float) -> None:
        self.extend_until = until

    def take_error(self) -> BaseException | None:
        """Return the exception that the handler raised, or None.

        Drop the reference to it, which keeps stack frames alive.
        """
        error, self.error = self.error, None
        return error

    def signal(self, why: Abort) -> None:
        """Notify the handler, if one is running, that it must end. Can be called from any thread."""


HeldJobs = dict[str, HeldJob]  # by lease id


class Run(HeldJob):
    """One attempt of a job, in a slot. Other threads may only read it and call `signal`."""

    __slots__ = ("context", "deadline", "execution", "kept_log", "loop_task", "scope", "slot_at")

    task: Runnable
    started: float

    def __init__(
        self,
        job: Job,
        task: Runnable,
        length: float,
        since: float,
        scope: WorkerScope,
        grace: float,
        on_progress: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(job, task, length, since, math.inf, on_progress)
        self.begin(scope.clock(), grace)
        self.slot_at = self.started  # when it got its slot; it may still have to wait for a thread or a process
        self.scope = scope
        self.loop_task: asyncio.Task[None] | None = None  # None while a thread runs it directly
        self.execution: Execution | None = None
        self.context: Context | None = None
        self.kept_log: JobLog | None = None  # created with the first line
        self.ended = False

    @property
    def clock(self) -> Callable[[], float]:
        """The clock of the deadline."""
        return self.scope.clock

    @property
    def state(self) -> Any:
        """The value of the app's lifespan."""
        return self.scope.state

    def begin(self, now: float, grace: float) -> None:
        """Start the timeout at `now`. After the timeout and the grace period, the lease is no longer extended."""
        timeout = self.job.spec.timeout
        self.started = now
        self.deadline = math.inf if timeout is None else now + timeout / 1000
        self.extend_until = self.deadline + grace

    def wait_to_begin(self) -> None:
        """Suspend the timeout while the handler waits for a slot, a thread, a process or its batch."""
        self.deadline = self.extend_until = math.inf

    def wait_for_slot(self) -> None:
        self.waiting = True
        self.wait_to_begin()

    def got_slot(self, now: float, grace: float) -> None:
        self.waiting = False
        self.slot_at = now
        self.begin(now, grace)

    def runs_in(self, execution: Execution | None) -> None:
        """Set the `Execution` that can stop the handler, or remove it with None."""
        self.execution = execution

    def abort(self, why: Abort) -> None:
        self.why = why
        self.signal(why)

    def signal(self, why: Abort) -> None:
        if self.context is not None:
            self.context.abort(why)

    def arguments(self) -> dict[str, Any]:
        """Return the handler's arguments. Raises PayloadMismatch if the payload does not fit the parameters."""
        task = self.task
        try:
            arguments = task.load(self.job.spec.payload, self.job.spec.serde)
        except PayloadInvalid as error:
            raise PayloadMismatch(str(error)) from error
        if task.context_parameter is not None:
            arguments[task.context_parameter] = self.own_context()
        return arguments

    def own_context(self) -> Context:
        context = self.context
        if context is None:
            context = self.context = Context(self)
            if self.why is not None:
                context.abort(self.why)
        return context

    def receive(self, children: Iterable[Spec], progress: bytes | None) -> None:
        """Add the child jobs and the progress that a handler in a child process reported."""
        self.children = [*(self.children or ()), *children] or None
        if progress is not None:
            self.progress = progress

    async def parents(self) -> list[JobStatus]:
        return await self.task.parents_of(self.job)

    def parents_sync(self) -> list[JobStatus]:
        return self.task.parents_of_sync(self.job)

    # ── the log ───────────────────────────────────────────────────────────────────────────────

    @property
    def keeps_log(self) -> bool:
        """Whether the lines of `ctx.log` are stored with the job."""
        return self.task.options.keep_log

    def keep_line(self, level: int, text: str, fields: Mapping[str, Any]) -> None:
        """Add a line to the job's log. Can be called in any thread."""
        self.keep(make_line(self.job, self.clock() - self.started, level, text, fields))

    def keep(self, line: LogLine) -> None:
        with _CREATING:
            if self.kept_log is None:
                self.kept_log = JobLog(self.job.log)
        self.kept_log.add(line)
        if self._on_progress is not None:
            self._on_progress()

    @property
    def unwritten_log(self) -> bytes | None:
        """The log of the job, if its handler has written lines that the store does not have yet."""
        return None if self.kept_log is None else self.kept_log.unwritten()

    def log_written(self, log: bytes) -> None:
        """Note that the store has this log."""
        if self.kept_log is not None:
            self.kept_log.written(log)

    # ── transactional completion ──────────────────────────────────────────────────────────────

    async def complete(self, value: Any, connection: object) -> None:
        with self._completing(value, connection) as (within, item, again):
            [receipt] = await within.settle([item])
            _refuse_lost(receipt, item[0], again)

    def complete_sync(self, value: Any, connection: object) -> None:
        with self._completing(value, connection) as (within, item, again):
            [receipt] = within.settle_now([item])
            _refuse_lost(receipt, item[0], again)

    @contextmanager
    def _completing(self, value: Any, connection: object) -> Iterator[tuple[Within, tuple[Lease, Change], bool]]:
        """Prepare a call of `ctx.complete`. Yield what it needs: the store operations that run in the handler's
        transaction, the lease with the change to settle, and whether `complete` was called before.

        From this call on, a lost lease does not abort the handler: its own transaction may have ended the lease.
        """
        if self.why is Abort.LOST:
            raise LeaseLost(self.job.id)
        result = self.task.dump_result(value, self.job.spec.serde)
        duration = max(0, int((self.clock() - self.started) * 1000))
        jobs = tuple(self.children or ())
        kept = {"keep_result": self.keep_result, "log": self.unwritten_log}
        change = Change.completed(result, duration=duration, jobs=jobs, **kept)
        before, self.completing = self.completing, True
        try:
            yield self.task.join(connection), (self.lease, change), before
        except BaseException:
            self.completing = before
            raise
        self.value = value

    # ── outcomes ──────────────────────────────────────────────────────────────────────────────

    def returned(self, value: object) -> Outcome | None:
        """Return the outcome of a run whose handler returned `value`, or None if the lease is lost."""
        if self.completing:
            return NOT_COMMITTED  # if it was committed, the store refuses this
        if self.why is Abort.TIMEOUT or self.why is Abort.LOST:
            return self.aborted(self.why)
        if isinstance(value, Verdict):
            return value.outcome()
        if isinstance(value, Encoded):  # from a child process; decoded for local listeners only
            self.value = self.task.load_result(value.data, self.job.spec.serde)
            return Returned(value.data)
        self.value = value
        return Returned(self.task.dump_result(value, self.job.spec.serde))

    def raised(self, error: BaseException) -> Outcome | None:
        """Return the outcome of a run whose handler raised an exception, or None if the lease is lost.

        If the run was aborted, the abort determines the outcome, because it probably caused the exception. But Retry,
        Snooze and Bury still apply, unless the run was aborted because of a timeout or a lost lease.
        """
        why = self.why
        if why is None and isinstance(error, Aborted):  # the heartbeat's thread was faster than the loop
            why = Abort(error.why)
        if why is not None and (why is Abort.TIMEOUT or why is Abort.LOST or not isinstance(error, Verdict)):
            outcome = self.aborted(why)
            if isinstance(outcome, TimedOut) and isinstance(error, ProcessDied):
                text = f"{outcome.error.message}; its process {error.death}"
                return TimedOut(Failure(outcome.error.type, text))
            return outcome
        self.error = error
        if isinstance(error, Verdict | OutcomeError):
            return error.outcome()
        if isinstance(error, asyncio.CancelledError) and self.loop_task is not None and self.loop_task.cancelling():
            return Released(CANCELLED_DELAY)  # most likely all tasks of this loop are being cancelled
        if isinstance(error, ResultInvalid):  # the handler has run; another attempt would repeat its effects
            return Buried(Failure.from_exception(error), "result_invalid")
        if not self.task.retries(error):
            return Buried(Failure.from_exception(error), "not_retried")
        return Raised(Failure.from_exception(error))

    def aborted(self, why: Abort) -> Outcome | None:
        """Return the outcome of an aborted run, or None if the lease may be lost.

        A reaper settles the job in that case.
        """
        match why:
            case Abort.TIMEOUT:
                timeout = (self.job.spec.timeout or 0) / 1000
                return TimedOut(Failure("TimedOut", f"the attempt ran longer than its timeout of {timeout:g} s"))
            case Abort.CANCEL:
                return CancelledOnRequest()
            case Abort.SHUTDOWN:
                return Released()
            case Abort.SILENT | Abort.LOST:
                return None


class KeepingRun(Run):
    """A run whose worker sets `keep_result`: the default of the worker, or of the code that it has."""

    __slots__ = ()

    @property
    def keep_result(self) -> int | None:  # type: ignore[override]
        return self.job.spec.keep_result


class PayloadMismatch(OutcomeError, PayloadInvalid):
    """The payload does not fit the handler's parameters, so every attempt would fail. The job is buried."""

    def outcome(self) -> Outcome:
        return Buried(Failure.from_exception(self.__cause__ or self), "payload_invalid")


def _refuse_lost(receipt: Receipt, lease: Lease, again: bool) -> None:
    if receipt is Receipt.LOST:
        error = LeaseLost(lease.job)
        if again:
            error.add_note("This run has called ctx.complete before: if that has committed, the job is completed.")
        raise error
