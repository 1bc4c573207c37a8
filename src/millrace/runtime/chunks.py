"""Many jobs, a chunk at a time: the next one is made ready while the store writes the one before.

A store that can be at two of them has both under way; they are in, or are not, in their order all the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from millrace.domain.job import Spec
from millrace.domain.request import Enqueued
from millrace.store.protocol import Abreast

Writing = asyncio.Future[list[Enqueued]]
PutIn = Callable[[list[Spec]], Awaitable[list[Enqueued]]]


async def put_all(
    chunks: Iterator[list[Spec]], put_in: PutIn, store: object, chunk: int, answers: list[Enqueued]
) -> None:
    """Answers are added as chunks come in; after an error, those of the chunks that are in are there."""
    under_way: deque[Writing] = deque()
    try:
        for specs in chunks:
            several = isinstance(store, Abreast) and (under_way or len(specs) == chunk)
            while len(under_way) > (1 if several else 0):
                answers += await under_way.popleft()
            under_way.append(await _begin(specs, put_in, under_way[-1] if under_way else None, store, bool(several)))
        while under_way:
            answers += await under_way.popleft()
    except Exception:
        while under_way:
            answers += await under_way.popleft()
        raise
    finally:
        for writing in under_way:
            writing.cancel()
        if under_way:
            await asyncio.wait(under_way)


async def _begin(specs: list[Spec], put_in: PutIn, before: Writing | None, store: object, several: bool) -> Writing:
    if several and isinstance(store, Abreast):
        return await store.enqueue_behind(specs, before)
    writing: Writing = asyncio.ensure_future(put_in(specs))
    await asyncio.sleep(0)  # it begins; and others on the loop have their turn
    return writing
