"""Detection of calls that would deadlock with their own callers.

A caller may hold SQLite's write lock in its own transaction, and then make a call that needs the same lock. Such a call
waits for a short time, and then fails with an error that explains the deadlock. There are two ways to detect it. If the
caller has put a step into its transaction with `within`, this is known (`may_wait_for_itself`). Otherwise, once a call
has to wait, the operating system and Python show whether a connection of this process holds the lock
(`self_deadlocks`).
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millrace.domain.errors import StoreError
from millrace.store.caller import acting_for
from millrace.store.sqlite.connection import OwnConnection
from millrace.store.sqlite.threads import BlockingCall, Call, CallThread

if TYPE_CHECKING:
    from millrace.store.sqlite.commit_watch import JoinedStep
    from millrace.store.sqlite.process import ProcessState

T = TypeVar("T")

JOINED_LIMIT = 2.0  # seconds that a call may wait while a transaction that its caller has joined may hold the lock
AT_ONCE = 0.1  # seconds of waiting; a blocked thread that holds the lock itself cannot release it
A_WHILE = 2.0  # seconds; another thread or task of this process may hold the lock, and usually releases it by then
LOCKS = Path("/proc/locks")
_WRITE_LOCK = 120  # the byte of the -shm file that SQLite locks against other writers
_BORN = re.compile(r"created in thread id (\d+)")

Owner = int | None  # the thread that a connection belongs to; None: any thread may use it


# ── a lock that a connection of this process holds ────────────────────────────────────────────


def self_deadlocks(path: str, calls: Sequence[Call[Any]], waited: float) -> list[tuple[Call[Any], str]]:
    """Return the calls that deadlock with their own callers, each with an explanation.

    `waited` is how long the calls have waited, in seconds.
    """
    if waited < AT_ONCE or not any(call.thread is not None and (call.blocks or waited >= A_WHILE) for call in calls):
        return []
    ours = held_by_this_process(path)
    if ours is False or (ours is None and waited < A_WHILE):
        return []
    holding = transaction_owners()
    found = []
    for call in calls:
        alone = bool(ours) and holding == {call.thread}
        if (alone and call.blocks) or (waited >= A_WHILE and call.thread and {call.thread, None} & holding):
            if ours is not None or call.suspected:
                found.append((call, explain(path, certainly=alone)))
            call.suspected = True  # if nobody is shown as the holder, the lock may just have been released: try again
    return found


def held_by_this_process(path: str) -> bool | None:
    """Return whether this process holds the write lock of a database; None if the system does not show who holds it."""
    try:
        inode = str(os.stat(path + "-shm").st_ino)
        locks = LOCKS.read_text()
    except OSError:
        return None
    holders = {pid for pid, file in _writers(locks) if file == inode}
    return str(os.getpid()) in holders if holders else None


def _writers(locks: str) -> Iterator[tuple[str, str]]:
    """Yield (process id, inode) of each SQLite write lock in the text of /proc/locks."""
    for line in locks.splitlines():
        match line.split():
            case [_, "POSIX", _, "WRITE", pid, file, first, last] if int(first) <= _WRITE_LOCK:
                if last == "EOF" or int(last) >= _WRITE_LOCK:
                    yield pid, file.rpartition(":")[2]


def transaction_owners() -> set[Owner]:
    """Return the threads that own connections with an open transaction, on any database file.

    Only connections of this process are considered, and not those of the store itself.
    """
    in_transaction = [
        thing
        for thing in gc.get_objects()
        if isinstance(thing, sqlite3.Connection) and not isinstance(thing, OwnConnection) and _is_in_transaction(thing)
    ]
    return {_owner(connection) for connection in in_transaction}


def _is_in_transaction(connection: sqlite3.Connection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.Error:  # closed
        return False


def _owner(connection: sqlite3.Connection) -> Owner:
    """Return the id of the thread that a connection belongs to; None if any thread may use the connection.

    When another thread requests a cursor, the sqlite3 module raises an error. The text of that error has the id.
    """
    wrapped_by = _wrapper(connection)
    if wrapped_by is not None:
        return getattr(wrapped_by, "_thread_ident", None)  # Django's; the thread of aiosqlite belongs to no caller
    try:
        sqlite3.Connection.cursor(connection)
    except sqlite3.ProgrammingError as error:
        born = _BORN.search(str(error))
        return None if born is None else int(born[1])
    return None


def _wrapper(connection: sqlite3.Connection) -> Any:
    for holder in gc.get_referrers(connection):
        for outer in [holder, *gc.get_referrers(holder)] if isinstance(holder, dict) else [holder]:
            module = type(outer).__module__
            if module.startswith(("django.", "aiosqlite")):
                return outer
    return None


def explain(path: str, *, certainly: bool) -> str:
    who = "a transaction that you have open yourself" if certainly else "a transaction that this process has open"
    return (
        f"this call waits for the write lock of {path}, and {who} holds it: this is a deadlock. Nothing of "
        "this call was written. Commit or roll back first; or, if the two belong together, make the call part of the "
        "transaction: task.options(within=connection).enqueue(…)."
    )


# ── a caller that has a step in a transaction of its own ──────────────────────────────────────


class Joined:
    """A mark that the current caller has a step in its own open transaction.

    The caller is the current asyncio task, or the current thread if it runs no task.
    """

    def __init__(self, process: ProcessState, awaited: JoinedStep) -> None:
        self._process = id(process)
        self._awaited = awaited
        self._thread = threading.get_ident()
        self._task = weakref.ref(task) if (task := _current_task()) is not None else None
        self.over = False  # a later write of this caller succeeded, so the lock was free

    def is_mine(self, process: ProcessState) -> bool:
        """Return whether the current caller is the caller that set this mark.

        Asyncio tasks that this caller has started inherit the mark, but they are other callers.
        """
        if self._process != id(process):
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


joined_by_caller: ContextVar[Joined | None] = ContextVar("millrace_joined", default=None)


def remember_joined(process: ProcessState, awaited: JoinedStep) -> None:
    joined_by_caller.set(Joined(process, awaited))


def may_wait_for_itself(process: ProcessState) -> Joined | None:
    joined = joined_by_caller.get()
    if joined is None or not joined.is_mine(process):
        return None
    if not joined.open:
        joined_by_caller.set(None)
        return None
    return joined


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return None


class RevocableCall(Generic[T]):
    """A call that can be revoked until it begins. A revoked call returns None and does nothing."""

    def __init__(self, run: Callable[[Any, int], T]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._state = ""

    def __call__(self, ledger: Any, now: int) -> T | None:
        return self._run(ledger, now) if self._become("begun") else None

    def revoke(self) -> bool:
        """Revoke the call. Return False if it has already begun."""
        return self._become("revoked")

    def _become(self, state: str) -> bool:
        with self._lock:
            if self._state in ("", state):
                self._state = state
            return self._state == state


async def bounded(joined: Joined, writer: CallThread, run: Callable[[Any, int], T]) -> T:
    """Run a call that may wait for a lock held by its own caller, and return its result.

    Raises StoreError if the call could not begin within `JOINED_LIMIT` seconds.
    """
    revocable = RevocableCall(run)
    call = Call(revocable)
    writer.submit(call)
    future = call.future
    try:
        await asyncio.wait([future], timeout=JOINED_LIMIT)
        if not future.done() and revocable.revoke():
            raise StoreError(_EXPLAINED)
        result = await future
        joined.over = True
        return result  # type: ignore[return-value]  # None only if it was revoked
    finally:
        if not future.done():
            future.cancel()


def bounded_now(joined: Joined, writer: CallThread, run: Callable[[Any, int], T]) -> T:
    """Like `bounded`, for a thread without an event loop: block until the call has ended."""
    revocable = RevocableCall(run)
    call = BlockingCall(revocable)
    writer.submit(call)
    if not call.ended(JOINED_LIMIT):
        if revocable.revoke():
            raise StoreError(_EXPLAINED)
        call.ended()
    result = call.outcome()
    joined.over = True
    return result  # type: ignore[return-value]  # None only if it was revoked


_EXPLAINED = (
    "this call waits for the database's write lock, and a transaction that you have put a job into (within=…) holds "
    "it: this is a deadlock. Nothing of this call was written. Commit or roll back first, or make the call "
    "part of the transaction with `within` too."
)
