"""Refuses changes of a closed store.

Every change reads the objects of its queues, which say that the store is closed. Only if a queue has no object yet, the
object of the store is read.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.domain.errors import StoreClosed
from millrace.domain.settings import Closing
from millrace.store.object.engine.objects import Objects, SeenObject
from millrace.store.object.engine.values import QueueValue, StoreValue, value_of
from millrace.store.object.keys import STORE


async def closed_store(objects: Objects) -> Closing | None:
    """Return why the store is closed; None if it is open."""
    [seen] = await objects.read([STORE])
    return (value_of(seen, StoreValue) or StoreValue()).settings.closed


async def refuse_if_closed(objects: Objects, queues: Iterable[tuple[SeenObject, QueueValue]] | None = None) -> None:
    """Raise StoreClosed if the store is closed. With `queues`, which are about to change, read little or nothing."""
    read = list(queues or ())
    why = next((value.closed for _, value in read if value.closed is not None), None)
    if why is None and (queues is None or any(seen.value is None for seen, _ in read)):
        why = await closed_store(objects)
    if why is not None and why.refuses:
        raise StoreClosed(why.stage, why.peer)
