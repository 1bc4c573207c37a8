"""A store of your own: jobs in memory, and a journal on disk from which they are read when the program starts.

The store carries each call out in a memory store, and then writes it to the journal with the time of the call. The
rules of the queue are functions of their arguments and the time, so the same calls lead to the same jobs again. One
process can use a journal at a time.

`BaseStore` has defaults for the methods that are not here. Another database needs the same methods; `millrace.store` of
this package shows how a store runs the rules inside a transaction. The tests of this example run the conformance suite.

Run it: python journal_store.py
"""

import asyncio
import fcntl
import os
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from millrace import App, StoreError
from millrace.store.base import BaseStore
from millrace.store.clock import Clock, system_clock
from millrace.store.memory import MemoryStore

WRITES = ("enqueue", "claim", "settle", "extend", "reclaim", "cancel", "replay", "archive", "delete", "control")
WRITES += ("drain", "obliterate", "maintain", "beat", "advance", "import_records")
READS = ("get", "find", "count", "position", "lanes", "events", "events_before", "workers", "schedules")
READS += ("due_schedules", "export")
WAITS = ("wait", "wait_for_cancel", "watch")  # the defaults poll once per second
TYPES = {name: get_type_hints(getattr(MemoryStore, name)) for name in WRITES}  # of the arguments, by name


class Call(msgspec.Struct, array_like=True):
    """One line of the journal."""

    at: int
    method: str
    arguments: dict[str, msgspec.Raw]


class JournalStore(BaseStore):
    def __init__(self, path: str | Path, *, clock: Clock = system_clock) -> None:
        self.url = f"journal://{path}"
        self._path = Path(path)
        self._file: int | None = None
        self._is_owner = True  # of the file; a handle with read access is not
        self._system_clock = clock
        self._at: int | None = None  # the time of the call that is carried out
        self._memory = self._empty()

    async def connect(self) -> None:
        if self._file is not None or not self._is_owner:
            return
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            self._file = None
            raise StoreError(f"{self._path} is in use by another process; a journal belongs to one") from None
        lines = self._path.read_bytes().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            os.ftruncate(self._file, sum(map(len, lines[:-1])))  # a crash has cut off the last line
            lines.pop()
        for line in lines:
            call = msgspec.json.decode(line, type=Call)
            types = TYPES[call.method]
            arguments = {name: msgspec.json.decode(raw, type=types[name]) for name, raw in call.arguments.items()}
            await self._carry_out(call.at, call.method, arguments)

    async def close(self) -> None:
        if self._file is not None and self._is_owner:
            os.close(self._file)  # also releases the lock
            self._file = None
            self._memory = self._empty()

    def for_reading(self) -> Any:
        reader: Any = super().for_reading()
        reader._is_owner = False
        return reader

    async def now(self) -> int:
        return self._system_clock()

    async def write(self, method: str, arguments: dict[str, Any]) -> Any:
        """Carry a call out, and append it to the journal. Only then its answer is returned.

        A call that raises has changed nothing, so it is not in the journal.
        """
        await self.connect()
        at = self._system_clock()
        answer = await self._carry_out(at, method, arguments)
        raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in arguments.items()}
        try:
            assert self._file is not None
            os.write(self._file, msgspec.json.encode(Call(at, method, raw)) + b"\n")
            os.fsync(self._file)
        except OSError as error:
            await self.close()  # the next call reads the jobs from the journal again, without this one
            raise StoreError(f"{self._path} cannot be written: {error}") from error
        return answer

    async def _carry_out(self, at: int, method: str, arguments: dict[str, Any]) -> Any:
        self._at = at
        try:
            return await getattr(self._memory, method)(**arguments)
        finally:
            self._at = None

    def _empty(self) -> MemoryStore:
        return MemoryStore(self.url, clock=lambda: self._at or self._system_clock(), salt="journal")


def _journaled(method: str) -> Callable[..., Any]:
    bind = signature(getattr(MemoryStore, method)).bind

    async def call(self: JournalStore, *arguments: Any, **named: Any) -> Any:
        given = bind(self, *arguments, **named).arguments
        del given["self"]
        if given.get("changes") == {}:  # `control` without changes reads the settings
            return await self._memory.control(**given)
        return await self.write(method, given)

    return call


def _passed_on(method: str) -> Callable[..., Any]:
    return lambda self, *arguments, **named: getattr(self._memory, method)(*arguments, **named)


for name in WRITES:
    setattr(JournalStore, name, _journaled(name))
for name in (*READS, *WAITS):
    setattr(JournalStore, name, _passed_on(name))


app = App(JournalStore("jobs.journal"))


@app.task
async def greet(name: str) -> str:
    return f"hello {name}"


async def main() -> None:
    async with app:
        jobs = await greet.enqueue_many([("ada",), ("bob",)])
    async with app, app.worker():  # the store was closed: the jobs come from the journal
        for job in jobs:
            print(await job.result(wait="10s"))


if __name__ == "__main__":
    asyncio.run(main())
