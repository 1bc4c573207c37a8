"""A driver that keeps objects in memory, for tests and simulations. It keeps every version."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Sequence

from millrace.store.clock import Clock, system_clock
from millrace.store.object.driver import (
    UNCHANGED,
    Answer,
    Blob,
    Expect,
    Listed,
    Listing,
    Read,
    Refused,
    Version,
    VersionPage,
    Want,
    Write,
    WriteReply,
)
from millrace.store.waiters import Waiters

_numbers = itertools.count(1)


class MemoryBlobs:
    """The driver. All threads and event loops can use it, and the outcome of every write is known.

    Wrap it in `FaultyBlobs` to inject faults.
    """

    durability = "nothing beyond this process"
    keeps_versions = True
    refusal_is_final = True

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self.url = f"memory:{next(_numbers)}"  # unique in this process
        self.requests: Counter[str] = Counter()
        self._clock = clock
        self._keys: list[str] = []  # sorted keys of existing objects
        self._lives: dict[str, list[tuple[Version, Blob | None]]] = {}
        self._changes = 0
        self._lock = threading.Lock()
        self._waiters = Waiters()

    async def connect(self) -> None: ...

    async def close(self) -> None: ...

    async def read(self, wants: Sequence[Want]) -> Sequence[Read]:
        self.requests["get"] += len(wants)
        with self._lock:
            return [self._read(want) for want in wants]

    def _read(self, want: Want) -> Read:
        blob = self._current(want.key)
        return UNCHANGED if blob is not None and blob.tag == want.unless else blob

    def _current(self, key: str) -> Blob | None:
        life = self._lives.get(key)
        return life[-1][1] if life else None

    async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
        self.requests["put"] += len(writes)
        with self._lock:
            answers = [self._write(write) for write in writes]
        self._waiters.wake([""])
        return answers

    def _write(self, write: Write) -> Answer:
        there = self._current(write.key)
        if write.expect is Expect.ABSENT:
            fits = there is None
        else:
            fits = write.expect is Expect.ANYTHING or (there is not None and there.tag == write.expect)
        if not fits:
            return Refused()
        tag = self._note(write.key, write.body)
        if there is None:
            insort(self._keys, write.key)
        return WriteReply(tag, versioned=True)

    def _note(self, key: str, body: bytes | None) -> str:
        life = self._lives.setdefault(key, [])
        number, now = str(len(life) + 1), self._clock()
        version = Version(number, now, len(body or b""), deleted=body is None)
        life.append((version, None if body is None else Blob(key, body, number, now)))
        self._changes += 1
        return number

    async def delete(self, keys: Sequence[str]) -> None:
        self.requests["delete"] += 1
        with self._lock:
            for key in keys:
                if self._current(key) is not None:
                    self._note(key, None)
                    self._keys.remove(key)
        self._waiters.wake([""])

    async def remove(self, key: str, tag: str) -> bool:
        self.requests["delete"] += 1
        with self._lock:
            there = self._current(key)
            if there is None or there.tag != tag:
                return False
            self._note(key, None)
            self._keys.remove(key)
        return True

    async def list(self, prefix: str, after: str | None, limit: int) -> Listing:
        self.requests["list"] += 1
        found: list[Listed] = []
        with self._lock:
            place = bisect_right(self._keys, max(prefix, after or ""))
            for key in self._keys[place : place + limit + 1]:
                blob = self._current(key)
                if blob is None or not key.startswith(prefix):
                    break
                found.append(Listed(key, len(blob.body), blob.modified))
        return Listing(tuple(found[:limit]), truncated=len(found) > limit)

    async def versions(self, key: str, after: str | None, limit: int) -> VersionPage:
        self.requests["versions"] += 1
        before = len(self._lives.get(key, [])) if after is None else int(after) - 1
        some = [version for version, _ in self._lives.get(key, [])[:before]][::-1][:limit]
        return VersionPage(tuple(some), some[-1].id if len(some) < before else None)

    async def read_version(self, key: str, version: str) -> Blob | None:
        self.requests["get"] += 1
        return next((blob for known, blob in self._lives.get(key, []) if known.id == version), None)

    async def now(self) -> int:
        return self._clock()

    def mark(self, prefix: str) -> int:
        return self._changes

    def signal(self, prefix: str) -> None:
        self._changes += 1
        self._waiters.wake([""])

    async def wait_for_change(self, prefix: str, timeout: float, since: int | None = None) -> bool:
        waiter = self._waiters.register([""])
        try:
            if since is not None and since != self._changes:
                return True
            await waiter.sleep(timeout)
            return waiter.woken
        finally:
            self._waiters.forget(waiter)
