"""A child: a fresh interpreter that imports the tasks once and then runs one attempt after the other.

Handlers run in its main thread, where a signal can interrupt them. A second thread listens to the worker; when that
channel ends, the worker is gone, and the child ends with everything it started. SIGTERM alone means nothing here: a
service manager sends it to every process at once, and it is the worker that decides what becomes of running jobs.
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

from millrace.domain.outcome import Failure
from millrace.runtime.answers import answers
from millrace.runtime.batch_task import BatchTask
from millrace.runtime.hold import Abort
from millrace.runtime.log_context import current_job
from millrace.runtime.process import inside
from millrace.runtime.process.address import find, run_again
from millrace.runtime.process.attempt import Attempt, logging_to, peak_memory
from millrace.runtime.process.death import SEVERED
from millrace.runtime.process.wire import Boot, Broken, Done, Ended, Halt, Ready, Retire, ToWorker, Work, frame, receive
from millrace.runtime.task import Task
from millrace.runtime.verdict import Aborted

PR_SET_PDEATHSIG = 1
HEAR_SAY = 0.5  # seconds that SIGTERM waits for the word which explains it


def main(number: int) -> NoReturn:
    channel = socket.socket(fileno=number)
    channel.set_inheritable(False)  # what a handler starts must not keep the worker waiting for the end of this
    boot = receive(channel)
    if not isinstance(boot, Boot):
        os._exit(1)
    Child(channel, boot).live()


class Child:
    def __init__(self, channel: socket.socket, boot: Boot) -> None:
        self._channel = channel
        self._boot = boot
        self._sending = threading.Lock()
        self._inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._tasks: dict[str, Task[..., Any]] = {}
        self._loop: asyncio.Runner | None = None
        self._attempts: list[Attempt] = []
        self._open = False  # may a signal interrupt the main thread?
        self._running: asyncio.Task[Any] | None = None
        self._halted: Abort | None = None

    def live(self) -> NoReturn:
        inside.here = inside.importing = True
        with suppress(RuntimeError, OSError, ValueError):  # a service may have closed its stderr
            faulthandler.enable()
        _die_with_parent(self._boot.parent)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, _nothing)  # a handler, not SIG_IGN: that would be inherited
        os.register_at_fork(before=_hold_term, after_in_parent=_let_term_through, after_in_child=self._forked)
        threading.Thread(target=self._listen, name="millrace-listen", daemon=True).start()
        self._find_tasks()
        inside.importing = False
        self._send(Ready())
        while (work := self._inbox.get()) is not None:
            self._do(work)
        self._leave(0)

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
            self._send(Broken(Failure.from_exception(error)))
            self._leave(1)

    # ── one call of a handler ───────────────────────────────────────────────────────────────────────────

    def _do(self, work: Work) -> None:
        task = self._tasks[work.jobs[0].task]
        told = zip(work.jobs, work.remaining, strict=True)
        attempts = [Attempt(index, job, left, task, self._send) for index, (job, left) in enumerate(told)]
        self._attempts = attempts
        if self._halted is not None:  # told before it began
            for attempt in attempts:
                attempt.halt(self._halted)
        with logging_to(self._send, work.log_level):
            ends = self._run(task, attempts, work.batch)
        self._attempts = []
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the handler may have put anything in its place
                stream.flush()
        self._send(Ended(ends, peak_memory()))

    def _run(self, task: Task[..., Any], attempts: list[Attempt], batch: bool) -> list[Done]:
        current_job.set(None if batch else attempts[0].job)
        try:
            call = _batch_call(task, attempts) if batch else partial(task.handler, **attempts[0].arguments())
        except Exception as error:
            return [attempt.unfit(error) for attempt in attempts]
        try:
            self._open = True
            if self._halted is not None:
                raise Aborted(attempts[0].job.id, self._halted)
            value = self._run_async(call()) if task.is_async else call()
            self._open = False
        except BaseException as error:
            self._open = False
            return [attempt.raised(error) for attempt in attempts]
        if not batch:
            return [attempts[0].returned(value)]
        ends = answers(task.name, [attempt.job.id for attempt in attempts], value)
        return [attempt.ended(end) for attempt, end in zip(attempts, ends, strict=True)]

    def _run_async(self, coroutine: Any) -> Any:
        """On one loop for all attempts, so that what a module keeps open on it stays usable."""
        if self._loop is None:
            self._loop = asyncio.Runner()

        job = current_job.get()

        async def body() -> Any:
            current_job.set(job)  # the loop has a context of its own, from its first attempt on
            self._running = asyncio.current_task()
            try:
                if self._halted is not None:
                    coroutine.close()
                    raise asyncio.CancelledError
                return await coroutine
            finally:
                self._running = None

        return self._loop.run(body())

    # ── the worker's word ─────────────────────────────────────────────────────────────────────

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
        """In a copy of this process, which a handler has made: it is not this child, and has nothing to tell.

        Else it would answer in the name of whatever job runs by then. And its signals are those of any program:
        `multiprocessing` ends its processes by SIGTERM.
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
                self._loop.get_loop().call_soon_threadsafe(running.cancel, why.value)

    def _on_term(self, number: int, frame: types.FrameType | None) -> None:
        """In the main thread. The worker explains itself over the channel first; others are not listened to."""
        until = time.monotonic() + HEAR_SAY
        while self._halted is None and self._open and time.monotonic() < until:
            time.sleep(0.005)
        self._interrupt()

    def _interrupt(self) -> None:
        """A handler on an event loop is cancelled instead."""
        if self._open and self._running is None and self._halted is not None and self._attempts:
            self._open = False
            raise Aborted(self._attempts[0].job.id, self._halted)

    def _send(self, message: ToWorker) -> None:
        """A whole frame or none: a signal that would interrupt it has its effect right afterwards."""
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

    def _leave(self, code: int) -> NoReturn:
        if self._loop is not None:
            with suppress(Exception):
                self._loop.close()
        sys.exit(code)


def _nothing(number: int, frame: types.FrameType | None) -> None: ...


def _hold_term() -> None:
    """A signal that reaches a copy before it has become a program of its own would be forgotten."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_term_through() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _batch_call(task: Task[..., Any], attempts: list[Attempt]) -> Callable[[], Any]:
    assert isinstance(task, BatchTask)
    items = [task.item_of(attempt.job.id, attempt.arguments()) for attempt in attempts]
    contexts = [attempt.own_context() for attempt in attempts] if task.takes_contexts else None
    return lambda: task.invoke(contexts, items)


def _die_with_parent(parent: int) -> None:
    """Linux kills this process when the thread that started it ends. Elsewhere the end of the channel must do."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before this could be asked for
        end_with_all_it_started()


def end_with_all_it_started() -> NoReturn:
    with suppress(OSError):
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(1)
