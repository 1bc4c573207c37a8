"""The app's connection to its store: opened at first use, once per event loop.

A program may define an app in a module and use it from several event loops (one per thread, or one `asyncio.run` after
another). The first loop uses the store itself. Each further loop uses a handle of the store that belongs to that loop.
After a fork (multiprocessing, a web server that preloads), parent and child each have their own connection.
"""

from __future__ import annotations

import asyncio
import threading
from weakref import WeakKeyDictionary

from millrace.app.shadow_mode import refuse_real
from millrace.domain.errors import InvalidInput
from millrace.store.clock import Clock
from millrace.store.forks import register_for_forks
from millrace.store.protocol import Store, Transactional, Within


class _Place:
    """The store for one event loop, and the number of `async with app:` blocks that are open on that loop."""

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
            raise InvalidInput("pass the clock to the store instead of the app")
        self._url = store if isinstance(store, str) else None
        self._clock = clock
        self._lock = threading.RLock()  # guards the two attributes below: several threads may run event loops
        self._store = None if isinstance(store, str) else store
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, _Place] = WeakKeyDictionary()
        register_for_forks(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """Release the lock; in the child, also forget the connections that belong to the parent's event loops."""
        if in_child:
            self._places = WeakKeyDictionary()
        self._lock.release()

    @property
    def store(self) -> Store:
        """The store, created from its URL at first use. Reading this imports the driver but does not connect."""
        if self._store is not None:
            return self._store
        from millrace.store.connect import connect

        with self._lock:
            if self._store is None:
                assert self._url is not None
                self._store = connect(self._url, clock=self._clock)
            return self._store

    async def connected(self) -> Store:
        """Return the open store for the running event loop."""
        place = self._places.get(asyncio.get_running_loop())
        if place is None or not place.open:
            place = await self._opened()
        return place.store

    async def enter(self) -> None:
        place = await self._opened()
        place.users += 1

    async def leave(self) -> None:
        """End one `async with app:` block. The last one on this event loop closes the store."""
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
        async with place.lock:  # so that two tasks of one loop open it only once
            if not place.open:
                refuse_real(place.store)
                await place.store.connect()
                place.open = True
        return place

    def _place(self) -> _Place:
        loop = asyncio.get_running_loop()
        store = self.store
        with self._lock:
            place = self._places.get(loop)
            if place is None:
                place = _Place(store.for_loop() if self._used_elsewhere(store) else store)
                self._places[loop] = place
            return place

    def _used_elsewhere(self, store: Store) -> bool:
        with self._lock:
            return any(place.store is store for place in self._places.values())


def join(store: Store, connection: object) -> Within:
    """Return the store operations that run inside the open transaction of `connection`.

    Raises InvalidInput if the store cannot take part in a caller's transaction.
    """
    if not isinstance(store, Transactional):
        raise InvalidInput(
            f"a store at {store.url.partition('://')[0]}:// cannot be part of your own transaction; sqlite://, "
            "postgresql:// and memory:// can. Leave `within` out."
        )
    return store.within(connection)
