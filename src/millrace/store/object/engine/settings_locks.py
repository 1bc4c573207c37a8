"""Locks on settings objects: operations of this process that write the same settings object wait for each other.

If a queue counts exactly, every operation on it writes its settings object. Without these locks, concurrent claims and
settles of one worker would make each other fail, and each failure takes as many writes as a success. Operations of
other processes are not known here; the swap detects them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from weakref import WeakValueDictionary


class SettingsLocks:
    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def none_held(self) -> HeldSettings:
        return HeldSettings(self._locks)


class HeldSettings:
    """The locks that one operation holds. It holds none at first. Leaving the `with` block releases all of them."""

    def __init__(self, locks: WeakValueDictionary[str, asyncio.Lock]) -> None:
        self._locks = locks
        self._held: dict[str, asyncio.Lock] = {}

    async def lock(self, keys: Iterable[str]) -> bool:
        """Wait until this operation may write these objects. Return whether another operation had to finish first."""
        wanted = {*keys, *self._held}
        if len(wanted) == len(self._held):
            return False
        self.release()  # all are locked in one order, so that no two operations wait for each other
        waited = False
        for key in sorted(wanted):
            lock = self._locks.setdefault(key, asyncio.Lock())
            waited = waited or lock.locked()
            await lock.acquire()
            self._held[key] = lock
        return waited

    def release(self) -> None:
        while self._held:
            self._held.popitem()[1].release()

    def __enter__(self) -> HeldSettings:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
