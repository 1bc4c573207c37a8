"""One attempt inside a child process: its context, and the message that reports how it ended."""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millrace.app.handler.context import Context
from millrace.app.handler.job_log import make_line
from millrace.app.handler.verdict import Abort, Aborted, Bury, Retry, Snooze, Verdict
from millrace.app.task import Task
from millrace.domain.errors import InvalidInput, PayloadInvalid, ResultInvalid
from millrace.domain.job import Job, Spec
from millrace.domain.outcome import Failure, encodable
from millrace.worker.process.wire import AttemptDone, ChildLine, ChildRecord, Progress, ToWorker
from millrace.worker.scope import WorkerScope

if TYPE_CHECKING:
    from millrace.app.job_status import JobStatus

PROGRESS_EVERY = 0.1  # seconds; a handler may report each of a million rows
JOB_LOG = "millrace.handler"

Send = Callable[[ToWorker], None]


class ChildAttempt:
    """An attempt in a child process.

    It provides the interface that `Context` needs, and sends progress to the worker.
    """

    completing = False

    def __init__(
        self,
        index: int,
        job: Job,
        remaining: float | None,
        task: Task[..., Any],
        send: Send,
        scope: WorkerScope,
        *,
        keeps_log: bool = False,
    ) -> None:
        self.job = job
        self.task = task
        self.children: list[Spec] | None = None
        self.deadline = math.inf if remaining is None else time.monotonic() + remaining
        self.clock = scope.clock
        self.scope = scope
        self.context: Context | None = None
        self._why: Abort | None = None
        self.keeps_log = keeps_log
        self._index = index
        self._send = send
        self._started = time.monotonic()
        self._sender = _ProgressSender(index, send)

    @property
    def state(self) -> Any:
        return self.scope.state

    @property
    def progress(self) -> bytes | None:
        return self._sender.latest

    @progress.setter
    def progress(self, value: bytes | None) -> None:
        self._sender.report(value)

    def keep_line(self, level: int, text: str, fields: Mapping[str, Any]) -> None:
        line = make_line(self.job, time.monotonic() - self._started, level, text, fields)
        self._send(ChildLine(self._index, line))

    async def parents(self) -> list[JobStatus]:
        return await self.task.parents_of(self.job)

    def parents_sync(self) -> list[JobStatus]:
        return self.task.parents_of_sync(self.job)

    async def complete(self, value: Any, connection: object) -> None:
        self.complete_sync(value, connection)

    def complete_sync(self, value: Any, connection: object) -> None:
        raise InvalidInput(
            "ctx.complete works where the handler runs in the worker itself; a child process returns its result instead"
        )

    def arguments(self) -> dict[str, Any]:
        arguments = self.task.load(self.job.spec.payload, self.job.spec.serde)
        if self.task.context_parameter is not None:
            arguments[self.task.context_parameter] = self.own_context()
        return arguments

    def own_context(self) -> Context:
        self.context = Context(self)
        if self._why is not None:
            self.context.abort(self._why)
        return self.context

    @property
    def abort_raised(self) -> bool:
        """Whether `ctx.check()` has raised `Aborted` in the handler."""
        return self.context is not None and self.context.check_raised

    def halt(self, why: Abort) -> None:
        """Abort the attempt. Called from the thread that reads the worker's messages."""
        self._why = why
        if self.context is not None:
            self.context.abort(why)

    # ── its end ───────────────────────────────────────────────────────────────────────────────

    def ended(self, value: object) -> AttemptDone:
        """Return the message about the end of one job of a batch. `value` is the result of the job or an exception."""
        return self.raised(value) if isinstance(value, BaseException) else self.returned(value)

    def returned(self, value: object) -> AttemptDone:
        if isinstance(value, Verdict):
            return self._from_verdict(value)
        try:
            return self._done("returned", result=self.task.dump_result(value, self.job.spec.serde))
        except Exception as error:
            return self.raised(error)

    def raised(self, error: BaseException) -> AttemptDone:
        if isinstance(error, Verdict):
            return self._from_verdict(error)
        if isinstance(error, Aborted | asyncio.CancelledError) and self._why is not None:
            return self._done("aborted")
        failure = Failure.from_exception(error)
        if isinstance(error, ResultInvalid):
            return self._done("result_invalid", error=failure)
        return self._done("raised" if self.task.retries(error) else "not_retried", error=failure)

    def payload_invalid(self, error: Exception) -> AttemptDone:
        """Return the message about an attempt whose payload could not be decoded."""
        how = "payload_invalid" if isinstance(error, PayloadInvalid) else "raised"
        return self._done(how, error=Failure.from_exception(error))

    def _from_verdict(self, verdict: Verdict) -> AttemptDone:
        match verdict:
            case Retry(after=after):
                return self._done("retry", error=Failure.from_exception(verdict), delay=after)
            case Snooze(delay=delay):
                return self._done("snooze", delay=delay)
            case Bury():
                return self._done("bury", error=Failure.from_exception(verdict))
            case _:
                return self._done("raised", error=Failure.from_exception(verdict))

    def _done(self, how: Any, **facts: Any) -> AttemptDone:
        return AttemptDone(how, children=self.children or [], progress=self._sender.close(), **facts)


@contextmanager
def logging_to(send: Send, level: int) -> Iterator[None]:
    """Inside the `with` block, send the records of `ctx.log` to the worker, which applies its logging settings."""
    logger = logging.getLogger(JOB_LOG)
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [_ToWorker(send)], False
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])


class _ProgressSender:
    """Sends the latest progress to the worker, at most once per `PROGRESS_EVERY` seconds. None is not sent."""

    def __init__(self, index: int, send: Send) -> None:
        self.latest: bytes | None = None
        self._index = index
        self._send = send
        self._sent_at = -math.inf
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._over = False

    def report(self, value: bytes | None) -> None:
        with self._lock:
            self.latest = value
            wait = self._sent_at + PROGRESS_EVERY - time.monotonic()
            if wait <= 0:
                self._flush()
            elif self._timer is None:
                self._timer = threading.Timer(wait, self._later)
                self._timer.daemon = True
                self._timer.start()

    def _later(self) -> None:
        with self._lock:
            self._timer = None
            self._flush()

    def _flush(self) -> None:
        value, self.latest = self.latest, None
        if value is not None and not self._over:
            self._sent_at = time.monotonic()
            self._send(Progress(self._index, value))

    def close(self) -> bytes | None:
        with self._lock:
            self._over = True
            return self.latest


class _ToWorker(logging.Handler):
    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send_line = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            facts = {encodable(name): _encodable(value) for name, value in vars(record).items() if name not in _OWN}
            self._send_line(ChildRecord(record.levelno, encodable(text), facts))
        except Exception:
            self.handleError(record)


def _encodable(value: object) -> object:
    """Return the value if msgpack can encode it, otherwise its repr."""
    if value is None or isinstance(value, float | bool) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    return encodable(value if isinstance(value, str) else repr(value))


_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def peak_memory() -> int:
    """Return the peak memory of this process, in bytes.

    On Linux, `getrusage` includes the peak of the process that started this one, so /proc is read instead.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
