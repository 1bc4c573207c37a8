"""Where a step of the ledger sits: a connection with an event loop of its own, which runs only while it is asked.

The ledger is plain code that asks for rows as it goes, so a step runs in a thread. Were its questions put to a
connection on the store's event loop, each would cross from one thread to the other and back, which takes longer than
the question itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, TypeVar

import asyncpg

from millrace.store.postgres.address import Address
from millrace.store.postgres.line import FORGET_PLANS, Plans, open_line
from millrace.store.postgres.unit import Held, Row

T = TypeVar("T")
_IDLE = 1.0  # seconds after which a connection is looked at before it is trusted


class Desk:
    """Used by one thread at a time, and by any."""

    def __init__(self, address: Address) -> None:
        self._loop = asyncio.new_event_loop()
        self._used = 0.0
        self._plans = Plans()
        try:
            self._connection: Any = self._wait(open_line(address.arguments_for_steps()))
        except BaseException:
            self._loop.close()
            raise

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def rows(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        try:
            return self._wait(self._connection.fetch(sql, *args))
        except asyncpg.LockNotAvailableError as error:
            raise Held from error

    def begin(self, sql: str) -> None:
        self.execute(f"{sql}; {FORGET_PLANS}" if self._plans.are_old() else sql)

    def execute(self, sql: str) -> None:
        self._wait(self._connection.execute(sql))

    def is_alive(self) -> bool:
        """The end of a line is noticed only while the loop runs."""
        if time.monotonic() - self._used > _IDLE:
            self._wait(_turns())
        return not self._connection.is_closed()

    def rest(self) -> None:
        self._used = time.monotonic()

    def end(self) -> None:
        if not self._loop.is_closed():
            self._connection.terminate()
            self._wait(_turns())
            self._loop.close()

    def close(self) -> None:
        """In good order."""
        with suppress(Exception):  # it goes either way
            self._wait(self._connection.close(timeout=2))
        self.end()


async def _turns() -> None:
    """Until what has arrived is read, and what follows from it has happened."""
    for _ in range(3):
        await asyncio.sleep(0)


class Desks:
    """Those that are free; `lines` counts them and those in use."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._free: list[Desk] = []
        self._closed = False
        self._counting = Lock()
        self.lines = 0

    def run(self, begin: str, work: Callable[[Desk], T], make_room: Callable[[], None]) -> T:
        """A transaction, in the thread that calls this."""
        desk = self._take(make_room)
        try:
            desk.begin(begin)
            answer = work(desk)
            desk.execute("COMMIT")
        except BaseException as error:
            self._undo(desk, error)
            raise
        self._give_back(desk)
        return answer

    def _take(self, make_room: Callable[[], None]) -> Desk:
        with suppress(IndexError):  # others take from it, too
            while True:
                desk = self._free.pop()
                if desk.is_alive():
                    return desk
                self._end(desk)
        self._count(1)
        make_room()
        try:
            return Desk(self._address)
        except BaseException:
            self._count(-1)
            raise

    def _undo(self, desk: Desk, error: BaseException) -> None:
        if isinstance(error, TimeoutError):  # who did not answer that will not answer this
            self._end(desk)
            return
        try:
            desk.execute("ROLLBACK")
        except Exception:  # then it is of no use any more, whatever the reason
            self._end(desk)
        else:
            self._give_back(desk)

    def _give_back(self, desk: Desk) -> None:
        desk.rest()
        self._free.append(desk)
        if self._closed:
            self.close()

    def end_idle(self) -> None:
        """One makes way for a connection of another kind."""
        with suppress(IndexError):
            self._end(self._free.pop())

    def _end(self, desk: Desk) -> None:
        self._count(-1)
        desk.end()

    def _count(self, more: int) -> None:
        with self._counting:
            self.lines += more

    def close(self) -> None:
        """Blocks; who is still at work closes their own when they are done."""
        self._closed = True
        with suppress(IndexError):
            while True:
                desk = self._free.pop()
                self._count(-1)
                desk.close()
