"""The app's way to its store: opened at first use, and from each event loop in its own right.

A program may hold an app at the top of a module and use it from several loops (one per thread, or one
`asyncio.run` after another). The first loop gets the store itself, others what the store offers beside it. A
process that forks (multiprocessing, a web server that preloads) keeps its own; the child opens its own at first use.
"""

from __future__ import annotations

import asyncio
import threading
from weakref import WeakKeyDictionary

from millrace.domain.errors import InvalidInput
from millrace.store.clock import Clock
from millrace.store.forks import tell_of_forks
from millrace.store.protocol import Store


class _Place:
    """The store as one loop uses it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lock = asyncio.Lock()
        self.open = False
        self.users = 0


class Connection:
    def __init__(self, store: str | Store, clock: Clock | None) -> None:
        if not isinstance(store, str | Store):
            raise InvalidInput(f"{store!r} is neither a store nor a URL such as 'sqlite:///jobs.db'")
        if clock is not None and not isinstance(store, str):
            raise InvalidInput("the clock belongs to the store: give it to the store instead of the app")
        self._url = store if isinstance(store, str) else None
        self._clock = clock
        self._lock = threading.RLock()  # for the two below: loops of several threads may come at once
        self._store = None if isinstance(store, str) else store
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, _Place] = WeakKeyDictionary()
        tell_of_forks(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """A child has opened nothing: what its parent's loops have open is theirs."""
        if in_child:
            self._places = WeakKeyDictionary()
        self._lock.release()

    @property
    def store(self) -> Store:
        """The store, made from its URL at first use; that imports its driver but opens nothing."""
        if self._store is not None:
            return self._store
        from millrace.store.connect import connect

        with self._lock:
            if self._store is None:
                assert self._url is not None
                self._store = connect(self._url, clock=self._clock)
            return self._store

    async def connected(self) -> Store:
        """The store, open, for the running loop."""
        place = self._places.get(asyncio.get_running_loop())
        if place is None or not place.open:
            place = await self._opened()
        return place.store

    async def enter(self) -> None:
        place = await self._opened()
        place.users += 1

    async def leave(self) -> None:
        """Close when the last of those who entered on this loop leaves."""
        place = self._places.get(asyncio.get_running_loop())
        if place is not None:
            place.users -= 1
            if place.users <= 0:
                await self.close()

    async def close(self) -> None:
        with self._lock:
            place = self._places.pop(asyncio.get_running_loop(), None)
        if place is None:
            return
        async with place.lock:
            if place.open:
                place.open = False
                if not self._used_elsewhere(place.store):
                    await place.store.close()

    async def _opened(self) -> _Place:
        place = self._place()
        async with place.lock:  # two tasks of a loop that both come first open it once
            if not place.open:
                await place.store.connect()
                place.open = True
        return place

    def _place(self) -> _Place:
        loop = asyncio.get_running_loop()
        store = self.store
        with self._lock:
            place = self._places.get(loop)
            if place is None:
                place = _Place(store.beside() if self._used_elsewhere(store) else store)
                self._places[loop] = place
            return place

    def _used_elsewhere(self, store: Store) -> bool:
        with self._lock:
            return any(place.store is store for place in self._places.values())
