"""One attempt inside a child: its context, and how its end reads on the wire."""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from millrace.domain.errors import PayloadInvalid
from millrace.domain.job import Job, Spec
from millrace.domain.outcome import Failure, encodable
from millrace.runtime.context import Context
from millrace.runtime.hold import Abort
from millrace.runtime.process.wire import Done, Line, Progress, ToWorker
from millrace.runtime.task import Task
from millrace.runtime.verdict import Aborted, Bury, Retry, Snooze, Verdict

PROGRESS_EVERY = 0.1  # seconds: a handler may report each of a million rows
JOB_LOG = "millrace.job"

Send = Callable[[ToWorker], None]


class Attempt:
    """What `Context` needs of a run, told to the worker instead of kept."""

    def __init__(self, index: int, job: Job, remaining: float | None, task: Task[..., Any], send: Send) -> None:
        self.job = job
        self.task = task
        self.children: list[Spec] | None = None
        self.deadline = math.inf if remaining is None else time.monotonic() + remaining
        self.clock = time.monotonic
        self.context: Context | None = None
        self._why: Abort | None = None
        self._news = _News(index, send)

    @property
    def progress(self) -> bytes | None:
        return self._news.latest

    @progress.setter
    def progress(self, value: bytes | None) -> None:
        self._news.tell(value)

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

    def halt(self, why: Abort) -> None:
        """From the listening thread."""
        self._why = why
        if self.context is not None:
            self.context.abort(why)

    # ── its end ───────────────────────────────────────────────────────────────────────────────

    def ended(self, value: object) -> Done:
        """As one of a batch: an answer may be an error, too."""
        return self.raised(value) if isinstance(value, BaseException) else self.returned(value)

    def returned(self, value: object) -> Done:
        if isinstance(value, Verdict):
            return self._said(value)
        try:
            return self._done("returned", result=self.task.dump_result(value, self.job.spec.serde))
        except Exception as error:
            return self.raised(error)

    def raised(self, error: BaseException) -> Done:
        if isinstance(error, Verdict):
            return self._said(error)
        if isinstance(error, Aborted | asyncio.CancelledError) and self._why is not None:
            return self._done("aborted")
        return self._done("raised", error=Failure.from_exception(error))

    def unfit(self, error: Exception) -> Done:
        """The payload cannot be read: no later attempt will be able to, either."""
        how = "unfit" if isinstance(error, PayloadInvalid) else "raised"
        return self._done(how, error=Failure.from_exception(error))

    def _said(self, verdict: Verdict) -> Done:
        match verdict:
            case Retry(after=after):
                return self._done("retry", error=Failure.from_exception(verdict), delay=after)
            case Snooze(delay=delay):
                return self._done("snooze", delay=delay)
            case Bury():
                return self._done("bury", error=Failure.from_exception(verdict))
            case _:
                return self._done("raised", error=Failure.from_exception(verdict))

    def _done(self, how: Any, **facts: Any) -> Done:
        return Done(how, children=self.children or [], progress=self._news.last_words(), **facts)


@contextmanager
def logging_to(send: Send, level: int) -> Iterator[None]:
    """What a handler says through `ctx.log` is logged by the worker, by the worker's settings."""
    logger = logging.getLogger(JOB_LOG)
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [_ToWorker(send)], False
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])


class _News:
    """Progress on its way: the latest value, at most so often, and never none."""

    def __init__(self, index: int, send: Send) -> None:
        self.latest: bytes | None = None
        self._index = index
        self._send = send
        self._sent_at = -math.inf
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._over = False

    def tell(self, value: bytes | None) -> None:
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

    def last_words(self) -> bytes | None:
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
            facts = {encodable(name): _plain(value) for name, value in vars(record).items() if name not in _OWN}
            self._send_line(Line(record.levelno, encodable(text), facts))
        except Exception:
            self.handleError(record)


def _plain(value: object) -> object:
    """A fact as it can travel."""
    if value is None or isinstance(value, float | bool) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    return encodable(value if isinstance(value, str) else repr(value))


_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def peak_memory() -> int:
    """Bytes this process has held at most.

    Linux lets a process inherit the peak of the one that started it; only /proc tells its own.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
