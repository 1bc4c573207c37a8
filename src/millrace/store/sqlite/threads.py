"""The calls of a store, the base class of the threads that run them, and the reader.

SQLite calls block, so they run in two threads with their own connections: the writer (`writer.py`) and the reader. A
thread takes all waiting calls, runs them, and delivers their results together. So many callers share one commit, and
each event loop is woken once. The reader never waits for the writer.

A change of threads takes longer than a short call. So the caller's own thread runs a call if the connection is not in
use and nothing else makes the call wait (`run_here`). Only one thread at a time uses a connection: the one that has the
turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from millrace.domain.errors import StoreError
from millrace.domain.ledger import Ledger
from millrace.store.caller import acting_for
from millrace.store.clock import Clock
from millrace.store.sqlite.connection import Io, OpenedFile, retry_while_busy
from millrace.store.sqlite.errors import store_error
from millrace.store.sqlite.file import open_reader
from millrace.store.sqlite.tables import SqliteTables

T = TypeVar("T")
log = logging.getLogger("millrace.sqlite")

QUICK = 0.001  # seconds that calls may block an event loop on average; a change of threads costs a tenth of this
LONG = 0.005  # seconds that a single call may block it, as Python's other threads may (`sys.getswitchinterval`)
RECENT = 16  # calls; the weight of a call in the average is 1 / RECENT
SLOW_SHARE = 50  # after slower calls, event loops run none for 50 times as long: at most 2 % of their time is lost
_UNEXPECTED = "unexpected error in %s; the calls it was serving have failed"
_NESTED = (
    "this call was made while a call of the same thread was being written, for example by a signal handler. Nothing of "
    "this call was written. Set a flag in the signal handler, and make the call after it has returned."
)


class Call(Generic[T]):
    """One step to run, and a future for its result. The caller runs on an event loop."""

    __slots__ = ("answered", "blocks", "durable", "error", "future", "loop", "result", "run", "suspected", "thread")

    def __init__(self, run: Callable[[Any, int], T], durable: bool = True) -> None:
        self.run = run
        self.durable = durable
        blocked = acting_for.get()
        self.blocks = blocked is not None  # its caller is blocked until it has the result
        self.thread: int | None = threading.get_ident() if blocked is None else blocked
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self.result: T | None = None
        self.error: BaseException | None = None
        self.answered = False
        self.suspected = False  # of a deadlock with its caller, see `self_deadlock.py`


class DirectCall(Call[T]):
    """One step that runs on the thread of its caller, which this blocks, or not at all (see `CallThread.run_here`)."""

    __slots__ = ()

    def __init__(self, run: Callable[[Any, int], T], durable: bool = True) -> None:
        self.run = run
        self.durable = durable
        self.blocks, self.thread = True, threading.get_ident()
        self.loop = self.future = _NO_LOOP
        self.result = self.error = None
        self.answered = self.suspected = False

    def outcome(self) -> T:
        """Return the result of the call, which has ended, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]

    def notify(self) -> None:
        """Do nothing: nobody waits for this call."""


class BlockingCall(DirectCall[T]):
    """One step to run for a caller without an event loop. Unless `waits` is False, the caller's thread blocks for the
    result.
    """

    __slots__ = ("_ended",)

    def __init__(self, run: Callable[[Any, int], T], *, waits: bool = True) -> None:
        super().__init__(run)
        if not waits:
            self.blocks, self.thread = False, None
        self._ended = threading.Lock()
        self._ended.acquire()

    def ended(self, timeout: float = -1) -> bool:
        """Wait until the call has ended, for at most `timeout` seconds. Return whether it has ended."""
        return self.answered or self._ended.acquire(timeout=timeout)

    def notify(self) -> None:
        self._ended.release()


class _NoLoop:
    """Takes the place of the event loop and the future of a direct or blocking call. Wakes its thread directly."""

    def call_soon_threadsafe(self, _answer: Callable[..., None], calls: list[DirectCall[Any]]) -> None:
        for call in calls:
            call.notify()

    def cancelled(self) -> bool:
        return False


_NO_LOOP: Any = _NoLoop()


def answer_all(calls: Sequence[Call[Any]]) -> None:
    """Deliver the result or error of each call to its caller, with one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Call[Any]]] = {}
    for call in calls:
        call.answered = True
        by_loop.setdefault(call.loop, []).append(call)
    for loop, own in by_loop.items():
        try:
            loop.call_soon_threadsafe(set_futures, own)
        except RuntimeError:  # the loop is closed: its callers no longer wait
            continue


def set_futures(calls: list[Call[Any]]) -> None:
    """Set the futures of these calls, which have ended. All callers must run on the current event loop."""
    for call in calls:
        if call.future.done():  # its caller was cancelled
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.result)


class CallThread:
    """A thread that runs calls; the first call starts it.

    After `idle_after` seconds without a call, the thread runs `idle` once.

    `_turn` has the id of the thread that uses the connection. It is a dict, because a thread that takes the turn in one
    atomic operation, and ends it only if the turn is its own, leaves no turn behind if Ctrl-C interrupts it anywhere.
    """

    def __init__(self, name: str, idle_after: float | None = None) -> None:
        self._name = name
        self._idle_after = idle_after
        self._wakeup = threading.Condition()
        self._waiting: list[Call[Any]] = []
        self._thread: threading.Thread | None = None
        self._closing = False
        self._suspended = False
        self._was_up = False  # before it was suspended
        self._is_open = False  # whether the connection is open
        self._turn: dict[str, int] = {}
        self._turn_wanted = False  # the thread waits for the turn
        self._resting = False  # the thread waits for calls, and has run `idle`
        self._typical = 0.0  # seconds that recent calls took, on average
        self._slow_until = 0.0
        self._used = False  # other threads have run calls since the thread last looked

    def run_here(self, calls: list[Call[Any]], *, on_loop: bool) -> bool:
        """Run these calls on the current thread, without waiting for a lock. Return False if this is not possible.

        `on_loop` means that this thread runs an event loop, which only runs calls while recent calls were quick. The
        results are set in the calls, but not delivered. If this returns False, nothing has happened.
        """
        me, turn = threading.get_ident(), self._turn
        if turn.get("of") == me:
            raise StoreError(_NESTED)
        if self._waiting or self._turn_wanted or (on_loop and time.monotonic() < self._slow_until):
            return False
        try:
            if turn.setdefault("of", me) != me or not self._is_open:
                return False
            self._used = True
            return self.serve_here(calls)
        except Exception as error:
            log.exception(_UNEXPECTED, self._name)
            set_error(calls, error)
            return True
        finally:
            self._end_turn(me)

    def note_time(self, begun: float) -> None:
        """Record how long the disk has taken since `begun`: if too long, event loops run no calls for a while."""
        ended = time.monotonic()
        took = ended - begun
        self._typical += (took - self._typical) / RECENT
        if self._typical > QUICK or took > LONG:
            self._slow_until = ended + max(took, self._typical) * SLOW_SHARE

    def _take_turn(self) -> None:
        me = threading.get_ident()
        with self._wakeup:
            self._turn_wanted = True
            while self._turn.setdefault("of", me) != me:
                self._wakeup.wait()
            self._turn_wanted = False

    def _end_turn(self, me: int) -> None:
        if self._turn.get("of") == me:
            del self._turn["of"]
            if self._turn_wanted or self._resting:
                with self._wakeup:
                    self._wakeup.notify()

    def submit(self, *calls: Call[Any]) -> None:
        """Pass calls to the thread. Raise StoreError if the store is closed."""
        with self._wakeup:
            if self._closing:
                raise StoreError(f"the store is closed; connect() it again before using it ({self._name})")
            self._waiting += calls
            if self._thread is None:
                if not self._suspended:
                    self._start()
            elif len(self._waiting) == len(calls):
                self._wakeup.notify()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
        self._thread.start()

    def suspend(self, patience: float) -> bool:
        """Finish the running calls, close the connection and end the thread, before a fork. Calls that wait are kept.

        Returns False if the thread did not end within `patience` seconds.
        """
        with self._wakeup:
            self._suspended = True
            self._was_up = self._thread is not None
            thread = self._thread
            self._wakeup.notify()
        if thread is not None:
            thread.join(patience)
        return thread is None or not thread.is_alive()

    def resume(self) -> None:
        with self._wakeup:
            self._suspended = False
            if self._thread is None and (self._was_up or self._waiting):
                self._start()

    def close(self) -> None:
        """Finish all calls, close the connection, and wait until the thread has ended."""
        with self._wakeup:
            self._closing = True
            thread = self._thread
            self._wakeup.notify()
        if thread is not None:
            thread.join()

    def give_up(self, error: BaseException) -> None:
        """Set this error as the result of all calls that have not begun."""
        with self._wakeup:
            calls, self._waiting = self._waiting, []
        fail_all(calls, error)

    def _main(self) -> None:
        try:
            self.open()
        except BaseException as error:
            with self._wakeup:
                self._thread = None
            self.give_up(error)
            return
        self._is_open = True
        try:
            while calls := self._next_calls():
                self._take_turn()
                try:
                    self.serve(calls)
                except Exception as error:  # fail the calls, or their callers would wait forever
                    log.exception(_UNEXPECTED, self._name)
                    set_error([call for call in calls if not call.answered], error)
                finally:
                    self._end_turn(threading.get_ident())  # before the callers continue: they may need it
                answer_all([call for call in calls if not call.answered])
        finally:
            self._take_turn()
            self._is_open = False
            self.shut()
            self._end_turn(threading.get_ident())
            with self._wakeup:
                if not self._closing:  # suspended, or a call arrived while the thread was ending
                    self._thread = None
                    if self._waiting and not self._suspended:
                        self._start()

    def _next_calls(self) -> list[Call[Any]]:
        """Wait until there are calls, and return all of them. Return an empty list if the thread should end."""
        rest = self._idle_after
        while True:
            with self._wakeup:
                if not self._waiting and not self._closing and not self._suspended:
                    self._resting = rest is None and self._idle_after is not None
                    self._wakeup.wait(rest)
                    self._resting = False
                if self._suspended or (self._closing and not self._waiting):
                    return []
                waiting, self._waiting = self._waiting, []
            used, self._used = self._used, False
            if calls := [call for call in waiting if not call.future.cancelled()]:
                return calls
            if used:
                rest = self._idle_after
            elif rest is not None and not waiting:
                self._take_turn()
                try:
                    self.idle()
                finally:
                    self._end_turn(threading.get_ident())
                rest = None

    def open(self) -> None:
        raise NotImplementedError

    def serve(self, calls: list[Call[Any]]) -> None:
        """Run these calls, and set a result or an error in each. They are delivered afterwards."""
        raise NotImplementedError

    def serve_here(self, calls: list[Call[Any]]) -> bool:
        """Like `serve`, on the thread of the callers. Return False, and change nothing, if the calls would have to wait
        for a lock.
        """
        raise NotImplementedError

    def idle(self) -> None:
        """Do background work. This is called once when no call has arrived for `idle_after` seconds."""

    def shut(self) -> None:
        raise NotImplementedError


def set_error(calls: Sequence[Call[Any]], error: BaseException) -> None:
    """Set the error of these calls. It is delivered later, together with the results of the other calls."""
    for call in calls:
        call.result, call.error = None, error


def fail_all(calls: Sequence[Call[Any]], error: BaseException) -> None:
    set_error(calls, error)
    answer_all(calls)


class Reader(CallThread):
    """The thread that runs the read-only calls of a store."""

    def __init__(self, path: str, io: Io, clock: Clock, opened: OpenedFile) -> None:
        super().__init__("millrace-sqlite-reader")
        self._path = path
        self._io = io
        self._clock = clock
        self._opened = opened

    def open(self) -> None:
        try:
            self.connection = open_reader(self._path, self._io)
            self._io.execute(self.connection, "PRAGMA busy_timeout = 0")  # `retry_while_busy` retries
        except sqlite3.Error as error:
            raise self._opened.file_error() or store_error(error, self._path) from error
        self._tables = SqliteTables(self.connection, self._io)
        self._ledger = Ledger(self._tables)

    def serve(self, calls: list[Call[Any]]) -> None:
        """Run each call in its own snapshot. Snapshots are short, because a long one blocks checkpoints of the log."""
        for call in calls:
            try:
                retry_while_busy(lambda call=call: self._run(call))  # type: ignore[misc]
            except sqlite3.Error as error:
                call.error = store_error(error, self._path)
            except Exception as error:
                call.error = error
        if (file_error := self._opened.file_error()) is not None:
            set_error(calls, file_error)

    def serve_here(self, calls: list[Call[Any]]) -> bool:
        [call] = calls
        begun = time.monotonic()
        try:
            self._run(call)
        except (
            sqlite3.Error
        ):  # the thread tries again: readers rarely wait for a lock, but may while a log is recovered
            return False
        except Exception as error:
            call.error = error
        self.note_time(begun)
        if (file_error := self._opened.file_error()) is not None:
            set_error(calls, file_error)
        return True

    def _run(self, call: Call[Any]) -> None:
        self._io.begin_read(self.connection)
        try:
            self._tables.refresh()
            call.result = call.run(self._ledger, self._clock())
        finally:
            self._tables.trim_cache()
            with contextlib.suppress(sqlite3.Error):
                self._io.rollback(self.connection)

    def shut(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._io.close(self.connection)
