"""Waiting inside one process, over threads and event loops: who is woken when jobs come or end.

One job wakes one waiter, a batch as many as it has jobs (BE-14); a waiter registers before it checks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping


class Waiter:
    """One sleeper on its own event loop; woken at most once, from any thread."""

    __slots__ = ("_future", "_loop", "places")

    def __init__(self, places: Iterable[str]) -> None:
        self.places = tuple(places)
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._set)
        except RuntimeError:  # its loop is closed: nobody sleeps there any more
            return

    def _set(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def sleep(self, timeout: float) -> None:
        await asyncio.wait([self._future], timeout=max(0.0, timeout))

    @property
    def woken(self) -> bool:
        return self._future.done()


class Waiters:
    """Sleepers by the place they wait at (a queue, a job), oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[str, dict[Waiter, None]] = {}

    def register(self, places: Iterable[str]) -> Waiter:
        waiter = Waiter(places)
        with self._lock:
            for place in waiter.places:
                self._places.setdefault(place, {})[waiter] = None
        return waiter

    def forget(self, waiter: Waiter) -> None:
        with self._lock:
            self._drop(waiter)

    def wake(self, jobs: Mapping[str, int]) -> Mapping[str, int]:
        """Wake at most so many waiters per place; answer for how many more there was nobody to wake."""
        if not self._places:
            return jobs
        taken: list[Waiter] = []
        left: dict[str, int] = {}
        with self._lock:
            for place, count in jobs.items():
                waiting = self._places.get(place)
                while waiting and count > 0:
                    waiter = next(iter(waiting))
                    self._drop(waiter)
                    taken.append(waiter)
                    count -= 1
                if count > 0:
                    left[place] = count
        for waiter in taken:
            waiter.wake()
        return left

    def asleep(self) -> tuple[int, tuple[str, ...]]:
        """(how many wait, at which places)"""
        with self._lock:
            return len({waiter for waiting in self._places.values() for waiter in waiting}), tuple(self._places)

    def _drop(self, waiter: Waiter) -> None:
        for place in waiter.places:
            waiting = self._places.get(place)
            if waiting is not None:
                waiting.pop(waiter, None)
                if not waiting:
                    del self._places[place]

    def __len__(self) -> int:
        return sum(map(len, self._places.values()))
