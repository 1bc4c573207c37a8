"""A call that would wait for its own caller: to write while the caller's transaction holds the write lock.

Who has a step in an open transaction and then asks, without `within`, for another write, waits for a lock that only
they can give back. We cannot see whether their transaction is still open, so such a call gets a short while, and then
an error that says what has happened.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent import futures
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millrace.domain.errors import StoreError
from millrace.store.caller import acting_for
from millrace.store.sqlite.lookout import Awaited

if TYPE_CHECKING:
    from millrace.store.sqlite.home import Home

T = TypeVar("T")

A_WHILE = 2.0  # seconds


class Joined:
    """The calling task, or the thread if it runs none, has a step in a transaction of its own on this store."""

    def __init__(self, home: Home, awaited: Awaited) -> None:
        self._home = id(home)
        self._awaited = awaited
        self._thread = threading.get_ident()
        self._task = weakref.ref(task) if (task := _current_task()) is not None else None
        self.over = False  # a write of the caller's went through since, so nobody held the lock

    def is_mine(self, home: Home) -> bool:
        """Tasks that were started since have inherited it, but they wait for somebody else."""
        if self._home != id(home):
            return False
        blocked = acting_for.get()
        if blocked is not None:
            return self._task is None and self._thread == blocked
        if self._thread != threading.get_ident():
            return False
        return _current_task() is (None if self._task is None else self._task())

    @property
    def open(self) -> bool:
        return not self.over and self._awaited.open


_joined: ContextVar[Joined | None] = ContextVar("millrace_joined", default=None)


def standing_in(home: Home, awaited: Awaited) -> None:
    _joined.set(Joined(home, awaited))


def may_wait_for_itself(home: Home) -> Joined | None:
    joined = _joined.get()
    if joined is None or not joined.is_mine(home):
        return None
    if not joined.open:
        _joined.set(None)
        return None
    return joined


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return None


class Gate(Generic[T]):
    """A call that can be taken back until it begins."""

    def __init__(self, run: Callable[[Any, int], T]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._state = ""

    def __call__(self, ledger: Any, now: int) -> T | None:
        return self._run(ledger, now) if self._become("begun") else None

    def take_back(self) -> bool:
        """True when it will not run; False when it has begun."""
        return self._become("taken back")

    def _become(self, state: str) -> bool:
        with self._lock:
            if self._state in ("", state):
                self._state = state
            return self._state == state


async def bounded(
    joined: Joined, submit: Callable[[Gate[T]], asyncio.Future[T | None]], run: Callable[[Any, int], T]
) -> T:
    gate = Gate(run)
    future = submit(gate)
    try:
        await asyncio.wait([future], timeout=A_WHILE)
        if not future.done() and gate.take_back():
            raise StoreError(_EXPLAINED)
        result = await future
        joined.over = True
        return result  # type: ignore[return-value]  # None only when it was taken back
    finally:
        if not future.done():
            future.cancel()


def bounded_now(
    joined: Joined, submit: Callable[[Gate[T]], futures.Future[T | None]], run: Callable[[Any, int], T]
) -> T:
    gate = Gate(run)
    future = submit(gate)
    futures.wait([future], A_WHILE)
    if not future.done() and gate.take_back():
        raise StoreError(_EXPLAINED)
    result = future.result()
    joined.over = True
    return result  # type: ignore[return-value]


_EXPLAINED = (
    "this call waits for the database's write lock, and a transaction that you have put a job into (within=…) holds "
    "it: you would wait for yourself. Nothing of this call was written. Commit or roll back first, or make the call "
    "part of the transaction with `within` too."
)
