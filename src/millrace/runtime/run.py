"""One attempt: a handler, its arguments, and how its end reads as an outcome.

A handler is told to end by cancelling it (`async def`) or by a flag it may look at (`def`, in a thread). It may
ignore either. The worker then goes on without it, and the fence in the store keeps what it does later from
changing the job.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from millrace.domain.change import Change, Verb
from millrace.domain.decide import decide
from millrace.domain.errors import PayloadInvalid
from millrace.domain.job import Job, Spec
from millrace.domain.outcome import Aborted as Cancelled
from millrace.domain.outcome import Buried, Failure, Outcome, Raised, Released, Returned, TimedOut
from millrace.runtime.completion import NOT_COMMITTED
from millrace.runtime.context import Context
from millrace.runtime.hold import Abort, Hold
from millrace.runtime.host import Runnable
from millrace.runtime.log_context import current_job
from millrace.runtime.verdict import Verdict

log = logging.getLogger("millrace.worker")

End = Callable[["Run", Outcome | None], None]


class Inner(Protocol):
    """Where a handler runs that cannot be cancelled like a coroutine: a thread, a process, a batch."""

    def stop(self, why: Abort) -> None:
        """Tell the handler to end; the run ends when the handler does."""
        ...

    def abandon(self) -> bool:
        """Its grace is over. True when its end is certain now; False when it may go on for ever."""
        ...


class Reported(Exception):
    """An error that knows the outcome it stands for."""

    def outcome(self) -> Outcome:
        raise NotImplementedError


CANCELLED_DELAY = 1_000  # a handler that cancels its own task looks like a loop that ends, and must not spin
_WITH_CHILDREN = frozenset({Verb.COMPLETE, Verb.SNOOZE})


class Run(Hold):
    """A job in a slot. Belongs to the worker's event loop; `signal` and plain reads are for any thread."""

    __slots__ = ("children", "clock", "context", "deadline", "handle", "inner", "started", "task", "value")

    def __init__(
        self, job: Job, task: Runnable, length: float, since: float, clock: Callable[[], float], grace: float
    ) -> None:
        super().__init__(job, length, since, math.inf)
        self.begin(clock(), grace)
        self.task = task
        self.clock = clock
        self.handle: asyncio.Task[None] | None = None
        self.inner: Inner | None = None
        self.context: Context | None = None
        self.children: list[Spec] | None = None
        self.value: object = None  # what it returned, for local listeners
        self.ended = False

    def begin(self, now: float, grace: float) -> None:
        """Its time runs from here; the heartbeat lets go of it when timeout and grace are over."""
        timeout = self.job.spec.timeout
        self.started = now
        self.deadline = math.inf if timeout is None else now + timeout / 1000
        self.extend_until = self.deadline + grace

    def signal(self, why: Abort) -> None:
        if self.context is not None:
            self.context.abort(why)

    def arguments(self) -> dict[str, Any]:
        task = self.task
        arguments = task.load(self.job.spec.payload, self.job.spec.serde)
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


async def drive(run: Run, end: End) -> None:
    """Run an `async def` handler to its end. The caller makes this a task, so the handler has one of its own."""
    current_job.set(run.job)
    try:
        arguments = run.arguments()
    except Exception as error:
        end(run, _unfit(error))
        return
    try:
        outcome = returned(run, await run.task.handler(**arguments))
    except KeyboardInterrupt:
        end(run, Released())
        raise
    except BaseException as error:  # CancelledError and SystemExit too: a handler cannot end its worker
        if isinstance(error, GeneratorExit) and not runs(run):
            raise  # not the handler's: this coroutine is being thrown away with its loop
        outcome = raised(run, error)
    end(run, outcome)


def runs(run: Run) -> bool:
    """Is this its own task, on a loop that turns?"""
    try:
        return asyncio.current_task() is run.handle
    except RuntimeError:
        return False


def perform(run: Run) -> Outcome | None:
    """Run a `def` handler to its end, in a thread that has a context of its own."""
    current_job.set(run.job)
    try:
        arguments = run.arguments()
    except Exception as error:
        return _unfit(error)
    try:
        return returned(run, run.task.handler(**arguments))
    except BaseException as error:
        return raised(run, error)


def _unfit(error: Exception) -> Outcome:
    failure = Failure.from_exception(error)
    return Buried(failure, "payload_invalid") if isinstance(error, PayloadInvalid) else Raised(failure)


def returned(run: Run, value: object) -> Outcome | None:
    if run.completing:
        return NOT_COMMITTED  # refused by the fence when it was
    if run.why is Abort.TIMEOUT or run.why is Abort.LOST:
        return aborted(run, run.why)
    if isinstance(value, Verdict):
        return value.outcome()
    run.value = value
    return Returned(run.task.dump_result(value, run.job.spec.serde))


def raised(run: Run, error: BaseException) -> Outcome | None:
    """After an abort, an error is taken for its consequence; a verdict is still the handler's own wish."""
    why = run.why
    if why is not None and (why is Abort.TIMEOUT or why is Abort.LOST or not isinstance(error, Verdict)):
        return aborted(run, why)
    if isinstance(error, Verdict | Reported):
        return error.outcome()
    if isinstance(error, asyncio.CancelledError) and run.handle is not None and run.handle.cancelling():
        return Released(CANCELLED_DELAY)  # most likely somebody ends all tasks of this loop
    return Raised(Failure.from_exception(error))


def aborted(run: Run, why: Abort) -> Outcome | None:
    """How a run ended that was told to; None when there is nothing left to write: the reaper decides then."""
    match why:
        case Abort.TIMEOUT:
            allowed = (run.job.spec.timeout or 0) / 1000
            return TimedOut(Failure("TimedOut", f"the attempt ran longer than its timeout of {allowed:g} s"))
        case Abort.CANCEL:
            return Cancelled()
        case Abort.SHUTDOWN:
            return Released()
        case Abort.SILENT | Abort.LOST:
            return None


def change_after(run: Run, outcome: Outcome, chance: float, now: float) -> Change:
    """What to settle a run with: the decision, how long it took, and the children it enqueued."""
    change = chosen_delay(run.task, run.job, outcome, decide(run.job, outcome, chance))
    children = tuple(run.children) if run.children and change.verb in _WITH_CHILDREN else ()
    return msgspec.structs.replace(change, duration=max(0, int((now - run.started) * 1000)), jobs=children)


def chosen_delay(task: Runnable | None, job: Job, outcome: Outcome, change: Change) -> Change:
    """A task may bring its own backoff curve; it yields to a delay that the handler asked for."""
    if change.verb is not Verb.RETRY or task is None or task.options.backoff is None:
        return change
    if isinstance(outcome, Raised) and outcome.after is not None:
        return change
    try:
        seconds = float(task.options.backoff(job.failures + 1))
        if not math.isfinite(seconds) or seconds < 0:
            raise ValueError(f"a backoff of {seconds!r} seconds makes no sense")
    except Exception:
        log.exception("the backoff of task %s failed; its retry policy is used", task.name)
        return change
    return msgspec.structs.replace(change, delay=round(seconds * 1000))
