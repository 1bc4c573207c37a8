"""What a handler may know and say about its own run: `ctx`.

Built only for handlers that take one. A handler in a thread looks at `ctx.cancelled` or calls `ctx.check()`; one
on the event loop is cancelled, and may wait for `ctx.aborted` in a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

import msgspec

from millrace.domain.check import check_spec
from millrace.domain.errors import InvalidInput, PayloadInvalid
from millrace.domain.job import Job, Spec
from millrace.domain.line import instance_id
from millrace.runtime.completion import complete, complete_sync
from millrace.runtime.hold import Abort
from millrace.runtime.verdict import Aborted

_log = logging.getLogger("millrace.job")


class Attempt(Protocol):
    """What a context knows of its run, be it here or in another process."""

    progress: bytes | None
    children: list[Spec] | None

    @property
    def job(self) -> Job: ...
    @property
    def deadline(self) -> float: ...
    @property
    def clock(self) -> Callable[[], float]: ...


class Enqueueable(Protocol):
    """A task, with or without options bound: it can say what an enqueue of it would be."""

    def spec(self, *args: Any, **kwargs: Any) -> Spec: ...


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """Puts the job's id before each line, and its facts into each record for structured logs."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        facts = dict(self.extra or {})
        kwargs["extra"] = {**facts, **(kwargs.get("extra") or {})}
        return f"[{facts['job']}] {msg}", kwargs


class Context:
    def __init__(self, run: Attempt) -> None:
        self._run = run
        self._why: Abort | None = None
        self._cancelled: threading.Event | None = None
        self._aborted: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._log: JobLog | None = None

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        return self._run.job

    @property
    def id(self) -> str:
        return self._run.job.spec.id

    @property
    def queue(self) -> str:
        return self._run.job.spec.queue

    @property
    def task(self) -> str:
        return self._run.job.spec.task

    @property
    def attempt(self) -> int:
        """Claims so far, this one included: 1 for the first."""
        return self._run.job.attempt

    @property
    def is_retry(self) -> bool:
        return self._run.job.attempt > 1

    @property
    def failures(self) -> int:
        """Failed runs before this one."""
        return self._run.job.failures

    @property
    def seq(self) -> int:
        return self._run.job.seq

    @property
    def generation(self) -> int:
        return self._run.job.generation

    @property
    def lane(self) -> int | None:
        """The pool's lane that it runs in, counted from 0."""
        return self._run.job.lane

    @property
    def pool(self) -> str | None:
        """The name of the pool that it runs in."""
        return None if self._run.job.lane is None else self.queue

    @property
    def instance(self) -> str | None:
        """Pool and lane in one name: `workerPool:orders:3`."""
        lane = self._run.job.lane
        return None if lane is None else instance_id(self.queue, lane)

    @property
    def enqueued_at(self) -> int:
        """By the store's clock, in milliseconds."""
        return self._run.job.enqueued_at

    @property
    def started_at(self) -> int:
        """When this attempt was claimed, by the store's clock, in milliseconds."""
        return self._run.job.started_at or 0

    @property
    def headers(self) -> dict[str, str]:
        return dict(self._run.job.spec.headers or {})

    @property
    def fence(self) -> tuple[int, int]:
        """Grows with every claim: let what you write to refuse a smaller one, and a stale run cannot harm it."""
        return self._run.job.fence

    @property
    def remaining(self) -> float | None:
        """Seconds until this attempt times out; None when it has no timeout."""
        if math.isinf(self._run.deadline):
            return None
        return max(0.0, self._run.deadline - self._run.clock())

    # ── the abort signal ──────────────────────────────────────────────────────────────────────

    @property
    def cancelled(self) -> threading.Event:
        """Set when the run is to end: for handlers in threads. `ctx.cancelled.wait(1)` is a sleep that ends early."""
        if self._cancelled is None:
            self._cancelled = threading.Event()
            if self._why is not None:  # looked at after the event became visible, so neither side misses the other
                self._cancelled.set()
        return self._cancelled

    @property
    def aborted(self) -> asyncio.Event:
        """Set when the run is to end: for tasks on the event loop that a handler started itself."""
        if self._aborted is None:
            self._loop = asyncio.get_running_loop()
            self._aborted = asyncio.Event()
            if self._why is not None:
                self._aborted.set()
        return self._aborted

    def check(self) -> None:
        """Raise Aborted when the run is to end; nothing else can stop a thread."""
        if self._why is not None:
            raise Aborted(self.id, self._why)

    def abort(self, why: Abort) -> None:
        """The worker's side of the signal, from any thread."""
        self._why = why
        if self._cancelled is not None:
            self._cancelled.set()
        if self._aborted is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._aborted.set)

    # ── what a handler says ───────────────────────────────────────────────────────────────────

    def progress(self, value: Any) -> None:
        """Note how far it is: any JSON value. It travels with the next heartbeat; the latest one wins."""
        try:
            self._run.progress = msgspec.json.encode(value)
        except (TypeError, ValueError) as error:
            raise PayloadInvalid(f"progress must be a JSON value, and {value!r} is none: {error}") from error

    @property
    def log(self) -> JobLog:
        if self._log is None:
            self._log = JobLog(_log, {"job": self.id, "task": self.task, "queue": self.queue, "attempt": self.attempt})
        return self._log

    async def complete(self, result: Any = None, *, within: object) -> None:
        """Complete the job in a transaction of your own, on your connection: both happen at its commit, or neither.

        Raises LeaseLost when the job is no longer this run's: roll back then. What the handler returns afterwards is
        not looked at, and a handler that ends without a commit has failed.
        """
        await complete(self._run, result, within)

    def complete_sync(self, result: Any = None, *, within: object) -> None:
        """`complete` for `def` handlers, on the calling thread."""
        complete_sync(self._run, result, within)

    def carry(self, spec: Spec) -> str:
        """Enqueue a job in the very step that ends this run well, or not at all. Answers its id.

        A run that fails, is lost or buries itself enqueues nothing: its next attempt says again what follows.
        """
        check_spec(spec)  # here, where the handler sees the error; a settle must not fail for it
        if getattr(self._run, "completing", False):  # in another process nobody completes by himself
            raise InvalidInput(
                f"job {self.id!r} takes along the children that were enqueued before ctx.complete was called; this one "
                "would be lost. Enqueue it before, or on its own: await task.enqueue(…)"
            )
        if self._run.children is None:
            self._run.children = []
        self._run.children.append(spec)
        return spec.id

    def enqueue(self, task: Enqueueable, *args: Any, **kwargs: Any) -> str:
        """`carry` for a task and its arguments: `ctx.enqueue(send_mail.options(delay="1m"), to="ada")`."""
        if getattr(task, "connection", None) is not None:
            raise InvalidInput("a child is enqueued by the step that ends this run, so it takes no `within` of its own")
        make: Callable[..., Spec] = task.spec
        return self.carry(make(*args, **kwargs))
