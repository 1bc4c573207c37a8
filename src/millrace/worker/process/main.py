"""The program of a child process: a new interpreter that imports the tasks once, then runs one attempt after another.

Handlers run in the main thread, where a signal can interrupt them. A second thread reads the messages of the worker
from a socket, the channel. If the channel is closed, the worker is gone, and the child kills itself and every process
that it started. SIGTERM without a `Halt` message has no effect: a service manager sends SIGTERM to all processes at
once, but the worker decides what happens to running jobs.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import os
import queue
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from millrace.app import in_child
from millrace.app.batch_task import BatchTask
from millrace.app.handler.address import find, run_again
from millrace.app.handler.batch_results import answers
from millrace.app.handler.injection import Injection, OpenValues
from millrace.app.handler.verdict import Abort, Aborted
from millrace.app.task import Task
from millrace.app.telemetry.log_context import current_job
from millrace.domain.outcome import Failure
from millrace.worker.process.attempt import ChildAttempt, logging_to, peak_memory
from millrace.worker.process.death import SEVERED
from millrace.worker.process.wire import (
    AttemptDone,
    Boot,
    CallEnded,
    ChildBroken,
    ChildReady,
    Halt,
    Retire,
    ToWorker,
    Work,
    frame,
    receive,
)
from millrace.worker.scope import WorkerScope

PR_SET_PDEATHSIG = 1
HALT_WAIT = 0.5  # seconds that the handler of SIGTERM waits for the message `Halt`


def main(number: int) -> NoReturn:
    channel = socket.socket(fileno=number)
    channel.set_inheritable(False)  # a process started by a handler must not keep the channel open
    boot = receive(channel)
    if not isinstance(boot, Boot):
        os._exit(1)
    ChildProgram(channel, boot).run()


class ChildProgram:
    def __init__(self, channel: socket.socket, boot: Boot) -> None:
        self._channel = channel
        self._boot = boot
        self._sending = threading.Lock()
        self._inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._tasks: dict[str, Task[..., Any]] = {}
        self._loop: asyncio.Runner | None = None
        self._scope = WorkerScope(time.monotonic)
        self._attempts: list[ChildAttempt] = []
        self._open = False  # whether a signal may interrupt the main thread
        self._running: asyncio.Task[Any] | None = None
        self._halted: Abort | None = None

    def run(self) -> NoReturn:
        in_child.enter()
        with suppress(RuntimeError, OSError, ValueError):  # a service may have closed its stderr
            faulthandler.enable()
        _die_with_parent(self._boot.parent)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, _nothing)  # a handler, not SIG_IGN: that would be inherited
        os.register_at_fork(before=_hold_term, after_in_parent=_let_term_through, after_in_child=self._forked)
        threading.Thread(target=self._listen, name="millrace-listen", daemon=True).start()
        self._find_tasks()
        in_child.tasks_imported()
        self._enter_lifespan()
        self._send(ChildReady())
        while (work := self._inbox.get()) is not None:
            self._do(work)
        self._exit(0)

    def _find_tasks(self) -> None:
        boot = self._boot
        sys.path[:] = map(os.fsdecode, boot.path)
        sys.argv[:] = map(os.fsdecode, boot.arguments)
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError):
                stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # or a kill would eat the last lines
        try:
            if boot.program is not None:
                run_again(boot.program)
            self._tasks = {address.task: find(address) for address in boot.tasks}
        except BaseException as error:
            self._send(ChildBroken(Failure.from_exception(error)))
            self._exit(1)

    def _enter_lifespan(self) -> None:
        """Enter the lifespan of the tasks' app. Each child has its own: it shares no objects with the worker."""
        factory = next((task.lifespan_factory for task in self._tasks.values()), None)
        if factory is None:
            return
        self._scope = WorkerScope(time.monotonic, factory)
        try:
            self._runner().run(self._scope.enter())
        except BaseException as error:
            self._send(ChildBroken(Failure.from_exception(error)))
            self._exit(1)

    # ── one call of a handler ───────────────────────────────────────────────────────────────────────────

    def _do(self, work: Work) -> None:
        task = self._tasks[work.jobs[0].task]
        jobs = zip(work.jobs, work.remaining, strict=True)
        attempts = [
            ChildAttempt(index, job, left, task, self._send, self._scope, keeps_log=work.keeps_log)
            for index, (job, left) in enumerate(jobs)
        ]
        self._attempts = attempts
        if self._halted is not None:  # stopped before it began
            for attempt in attempts:
                attempt.halt(self._halted)
        with logging_to(self._send, work.log_level):
            ends = self._run(task, attempts, work.batch)
        self._attempts = []
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the handler may have replaced the stream
                stream.flush()
        self._send(CallEnded(ends, peak_memory(), self._scope.failed))

    def _run(self, task: Task[..., Any], attempts: list[ChildAttempt], batch: bool) -> list[AttemptDone]:
        current_job.set(None if batch else attempts[0].job)
        try:
            call = _batch_call(task, attempts) if batch else partial(task.handler, **attempts[0].arguments())
        except Exception as error:
            return [attempt.payload_invalid(error) for attempt in attempts]
        try:
            self._open = True
            if self._halted is not None:
                raise Aborted(attempts[0].job.id, self._halted)
            if task.injection is not None:
                value = self._run_injected(task, task.injection, attempts[0], call)
            else:
                value = self._run_async(call()) if task.is_async else call()
            self._open = False
        except BaseException as error:
            self._open = False
            return [attempt.raised(error) for attempt in attempts]
        if not batch:
            return [attempts[0].returned(value)]
        ends = answers(task.name, [attempt.job.id for attempt in attempts], value)
        return [attempt.ended(end) for attempt, end in zip(attempts, ends, strict=True)]

    def _run_injected(
        self, task: Task[..., Any], injection: Injection, attempt: ChildAttempt, call: Callable[..., Any]
    ) -> Any:
        """Run a handler with injected parameters.

        Providers run on the loop, but a `def` handler does not, so that a signal can interrupt it. The clean-up is not
        interrupted.
        """
        values = injection.open(attempt.context or attempt.own_context(), self._scope)
        if task.is_async:
            return self._run_async(self._call_injected(values, call))
        self._run_async(values.__aenter__())
        try:
            result = values.injected_into(call)()
        except BaseException:
            self._open = False
            self._runner().run(values.__aexit__(*sys.exc_info()))
            raise
        self._open = False
        self._runner().run(values.__aexit__(None, None, None))
        return result

    async def _call_injected(self, values: OpenValues, call: Callable[..., Any]) -> Any:
        """Await a handler and its providers in one asyncio task, which a cancel scope or a task group requires."""
        async with values:
            try:
                return await values.injected_into(call)()
            finally:
                self._open, self._running = False, None  # the clean-up is not interrupted

    def _run_async(self, coroutine: Any) -> Any:
        """Run a coroutine and return its result. All attempts share one loop, so that open connections stay usable."""
        runner = self._runner()
        job = current_job.get()

        async def body() -> Any:
            current_job.set(job)  # the runner of the loop keeps the context of the first attempt
            self._running = asyncio.current_task()
            try:
                if self._halted is not None:
                    coroutine.close()
                    raise asyncio.CancelledError
                return await coroutine
            finally:
                self._running = None

        return runner.run(body())

    def _runner(self) -> asyncio.Runner:
        if self._loop is None:
            self._loop = asyncio.Runner()
        return self._loop

    # ── messages of the worker ─────────────────────────────────────────────────────────────────

    def _listen(self) -> None:
        while True:
            try:
                message = receive(self._channel)
            except OSError:
                os._exit(SEVERED)
            match message:
                case Work() as work:
                    self._inbox.put(work)
                case Halt(why):
                    self._halt(why)
                case Retire():
                    self._inbox.put(None)
                case _:
                    end_with_all_it_started()

    def _forked(self) -> None:
        """Close the channel and reset the signal handlers in a process that a handler has forked.

        The forked process must not send messages about the child's job. `multiprocessing` ends its processes with
        SIGTERM, so SIGTERM must have its default effect there.
        """
        self._channel.close()
        self._sending = threading.Lock()
        for number, ours, plain in (
            (signal.SIGTERM, self._on_term, signal.SIG_DFL),
            (signal.SIGINT, _nothing, signal.default_int_handler),
        ):
            if signal.getsignal(number) == ours:
                signal.signal(number, plain)
        _let_term_through()

    def _halt(self, why: Abort) -> None:
        self._halted = why
        running = self._running
        for attempt in self._attempts:
            attempt.halt(why)
        if running is not None and self._loop is not None:
            with suppress(RuntimeError):
                self._loop.get_loop().call_soon_threadsafe(self._cancel, running, why)

    def _cancel(self, running: asyncio.Task[Any], why: Abort) -> None:
        if self._running is running:  # not in its clean-up
            running.cancel(why.value)

    def _on_term(self, number: int, frame: types.FrameType | None) -> None:
        """Interrupt the handler if the worker has sent `Halt`. Python calls this in the main thread at SIGTERM.

        SIGTERM from other processes is ignored.
        """
        until = time.monotonic() + HALT_WAIT
        while self._halted is None and self._open and time.monotonic() < until:
            time.sleep(0.005)
        self._interrupt()

    def _interrupt(self) -> None:
        """Raise `Aborted` in a `def` handler, unless `ctx.check()` has already raised it.

        An `async def` handler is not interrupted here: `_halt` cancels it.
        """
        if any(attempt.abort_raised for attempt in self._attempts):
            self._open = False
        if self._open and self._running is None and self._halted is not None and self._attempts:
            self._open = False
            raise Aborted(self._attempts[0].job.id, self._halted)

    def _send(self, message: ToWorker) -> None:
        """Send a message as one frame. A SIGTERM during the send interrupts the handler only after the send."""
        data = frame(message)
        mine = self._open and threading.current_thread() is threading.main_thread()
        if mine:
            self._open = False
        with self._sending:
            try:
                self._channel.sendall(data)
            except ConnectionError:
                end_with_all_it_started()
            except OSError:
                os._exit(SEVERED)
        if mine:
            self._open = True
            self._interrupt()

    def _exit(self, code: int) -> NoReturn:
        if self._loop is not None:
            with suppress(Exception):  # a failure of the lifespan is logged
                self._loop.run(self._scope.leave())
            with suppress(Exception):
                self._loop.close()
        sys.exit(code)


def _nothing(number: int, frame: types.FrameType | None) -> None: ...


def _hold_term() -> None:
    """Block SIGTERM during a fork. Without this, the new process would lose a signal that arrives before `_forked`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_term_through() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _batch_call(task: Task[..., Any], attempts: list[ChildAttempt]) -> Callable[[], Any]:
    assert isinstance(task, BatchTask)
    items = [task.item_of(attempt.job.id, attempt.arguments()) for attempt in attempts]
    contexts = [attempt.own_context() for attempt in attempts] if task.takes_contexts else None
    return lambda: task.invoke(contexts, items)


def _die_with_parent(parent: int) -> None:
    """Request Linux to kill this process when the thread that started it ends. Exit if the parent is already gone.

    On other systems, the child notices that the channel is closed.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl was called
        end_with_all_it_started()


def end_with_all_it_started() -> NoReturn:
    with suppress(OSError):
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(1)
