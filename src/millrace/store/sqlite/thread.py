"""A thread that owns a connection, and the calls that wait for it.

SQLite calls block, so they run in a thread of their own. It takes all calls that are waiting, runs them together and
answers them together: one commit, and one wake-up per event loop, for many callers.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from millrace.domain.errors import StoreError

T = TypeVar("T")
log = logging.getLogger("millrace.sqlite")


class Call(Generic[T]):
    """One step to run, and who waits for its answer."""

    __slots__ = ("answered", "durable", "error", "future", "loop", "result", "run")

    def __init__(self, run: Callable[[Any, int], T], durable: bool = True) -> None:
        self.run = run
        self.durable = durable
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self.result: T | None = None
        self.error: BaseException | None = None
        self.answered = False

    def answer(self) -> None:
        if self.future.done():  # its caller was cancelled
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]


class _OnThisThread:
    """Stands where a call has its event loop, for callers who have none and block."""

    def call_soon_threadsafe(self, callback: Callable[..., None], *arguments: Any) -> None:
        callback(*arguments)


_ON_THIS_THREAD: Any = _OnThisThread()


class BlockingCall(Call[T]):
    """One step to run, and a thread that waits for its answer."""

    __slots__ = ()

    def __init__(self, run: Callable[[Any, int], T]) -> None:
        self.run = run
        self.loop = _ON_THIS_THREAD
        self.future: Any = concurrent.futures.Future()
        self.result, self.error, self.answered, self.durable = None, None, False, True


def answer_all(calls: Sequence[Call[Any]]) -> None:
    """Tell every caller, with one wake-up for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Call[Any]]] = {}
    for call in calls:
        call.answered = True
        by_loop.setdefault(call.loop, []).append(call)
    for loop, own in by_loop.items():
        try:
            loop.call_soon_threadsafe(_answer, own)
        except RuntimeError:  # the loop is closed: nobody waits there any more
            continue


def _answer(calls: list[Call[Any]]) -> None:
    for call in calls:
        call.answer()


class CallThread:
    """Started by the first call; `idle_after` seconds without one, `idle` runs, once until the next call."""

    def __init__(self, name: str, idle_after: float | None = None) -> None:
        self._name = name
        self._idle_after = idle_after
        self._wakeup = threading.Condition()
        self._waiting: list[Call[Any]] = []
        self._thread: threading.Thread | None = None
        self._closing = False
        self._resting = False
        self._taken: list[Call[Any]] = []

    def submit(self, run: Callable[[Any, int], T], durable: bool = True) -> asyncio.Future[T]:
        call = Call(run, durable)
        self._put(call)
        return call.future

    def submit_blocking(self, run: Callable[[Any, int], T]) -> concurrent.futures.Future[T]:
        """The same for a thread without an event loop: its future is waited for with `result()`."""
        call = BlockingCall(run)
        self._put(call)
        future: concurrent.futures.Future[T] = call.future
        return future

    def _put(self, call: Call[Any]) -> None:
        with self._wakeup:
            if self._closing:
                raise StoreError(f"the store is closed; connect() it again before using it ({self._name})")
            self._waiting.append(call)
            if self._thread is None:
                if not self._resting:
                    self._start()
            elif len(self._waiting) == 1:
                self._wakeup.notify()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
        self._thread.start()

    def rest(self, patience: float) -> bool:
        """Before a fork: finish what is in hand, let go of the connection and end the thread; what waits, waits.

        False when it did not come to an end in so many seconds.
        """
        with self._wakeup:
            self._resting = True
            self._was_up = self._thread is not None
            thread = self._thread
            self._wakeup.notify()
        if thread is not None:
            thread.join(patience)
        return thread is None or not thread.is_alive()

    def resume(self) -> None:
        with self._wakeup:
            self._resting = False
            if self._thread is None and (self._was_up or self._waiting):
                self._start()

    _was_up = False

    def close(self) -> None:
        """Finish what was asked for, then let go of the connection. Blocks until it is done."""
        with self._wakeup:
            self._closing = True
            thread = self._thread
            self._wakeup.notify()
        if thread is not None:
            thread.join()

    def give_up(self, reason: str) -> None:
        """Answer the calls that have not begun with an error."""
        fail_all(self.take(), StoreError(reason))

    def take(self) -> list[Call[Any]]:
        """All calls that wait now; who takes them answers them."""
        with self._wakeup:
            calls, self._waiting = self._waiting, []
        self._taken = [call for call in calls if not call.future.cancelled()]
        return self._taken

    def _main(self) -> None:
        try:
            self.open()
        except BaseException as error:
            with self._wakeup:
                self._thread = None
            fail_all(self.take(), error)
            return
        try:
            while self._await_calls():
                self._serve_safely()
        finally:
            self.shut()
            with self._wakeup:
                if not self._closing:  # it rests, or was called back in the moment it went
                    self._thread = None
                    if self._waiting and not self._resting:
                        self._start()

    def _serve_safely(self) -> None:
        """A defect of ours must not leave a thread that looks alive and callers that wait for ever."""
        try:
            self.serve()
        except Exception as error:
            log.exception("%s met an error that nobody foresaw; the calls it was serving have failed", self._name)
            fail_all([call for call in self._taken if not call.answered], error)

    def _await_calls(self) -> bool:
        """True when there is a call to serve; False when it is time to end."""
        rest = self._idle_after
        while True:
            with self._wakeup:
                if not self._waiting and not self._closing and not self._resting:
                    self._wakeup.wait(rest)
                if self._resting:
                    return False
                if self._waiting:
                    return True
                if self._closing:
                    return False
            if rest is not None:
                self.idle()
                rest = None

    def open(self) -> None:
        raise NotImplementedError

    def serve(self) -> None:
        """Take the waiting calls, run them, and answer every one, whatever happens."""
        raise NotImplementedError

    def idle(self) -> None:
        """Nothing was asked for a while."""

    def shut(self) -> None:
        raise NotImplementedError


def fail_all(calls: Sequence[Call[Any]], error: BaseException) -> None:
    for call in calls:
        call.error = error
    answer_all(calls)
