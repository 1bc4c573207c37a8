"""Memory stores in which a move is killed, or in which another command acts between two of its calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from millrace.domain.settings import QueueSettings
from millrace.store.memory import MemoryStore
from millrace.store.protocol import Store
from millrace.store.transfer import closed


class Killed(BaseException):
    pass


def killed_after(store: Any, calls: int) -> Any:
    """The store, whose calls that change it fail from the n-th on: half of them after they have been carried out."""

    class Dying(type(store)):  # type: ignore[misc]
        left = calls

        async def control(self, *args: Any) -> Any:
            if not args[2]:
                return await super().control(*args)
            return await self._die(super().control(*args))

        async def import_records(self, *args: Any) -> Any:
            return await self._die(super().import_records(*args))

        async def _die(self, call: Any) -> Any:
            Dying.left -= 1
            if Dying.left < 0 or (Dying.left == 0 and calls % 2):
                call.close()
                raise Killed
            answer = await call
            if Dying.left == 0:
                raise Killed
            return answer

    store.__class__ = Dying
    return store


async def claimable_in(store: Store) -> bool:
    """Return whether a job of the store can be claimed, now or when it is due: it is in a queue that is not paused."""
    why = await closed(store)
    if why is not None and why.refuses:
        return False
    return any([counts.waiting and not await is_paused(store, counts.queue) for counts in await store.count()])


async def is_paused(store: Store, queue: str) -> bool:
    settings = await store.control("queue", queue, {})
    assert isinstance(settings, QueueSettings)
    return settings.paused


def interposed(store: Any, method: str, nth: int, command: Callable[[], Awaitable[object]]) -> None:
    """Run a command just before the n-th call of this method; of `control`, only calls that change something count."""
    left = nth

    async def call(self: Any, *args: Any) -> Any:
        nonlocal left
        counted = method != "control" or bool(args[2])
        left -= counted
        if counted and left == 0:
            await command()
        return await getattr(MemoryStore, method)(self, *args)

    store.__class__ = type("Interposed", (MemoryStore,), {method: call})
