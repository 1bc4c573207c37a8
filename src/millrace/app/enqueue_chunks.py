"""Enqueueing of many jobs in chunks: the next chunk is encoded while the store writes the previous one.

A store that supports concurrent writes has up to two chunks in flight. A chunk is stored only if the chunk before it
was stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from millrace.domain.job import Spec
from millrace.domain.request import Enqueued
from millrace.store.protocol import Store

Writing = asyncio.Future[list[Enqueued]]
PutIn = Callable[[list[Spec]], Awaitable[list[Enqueued]]]


async def put_all(
    chunks: Iterator[list[Spec]], put_in: PutIn, store: Store | None, chunk: int, answers: list[Enqueued]
) -> None:
    """Enqueue all chunks in order and append the store's answers to `answers`.

    If `store` is set and the first chunk is full (`chunk` jobs), two chunks at a time are written by
    `store.enqueue_behind`. Otherwise the function `put_in` writes one chunk at a time. After an error, `answers` has
    the answers for the chunks that were stored.
    """
    under_way: deque[Writing] = deque()
    try:
        for specs in chunks:
            before = under_way[-1] if under_way else None
            if store is not None and (before is not None or len(specs) == chunk):
                while len(under_way) > 1:
                    answers += await under_way.popleft()
                under_way.append(await store.enqueue_behind(specs, before))
            else:
                while under_way:
                    answers += await under_way.popleft()
                under_way.append(asyncio.ensure_future(put_in(specs)))
                await asyncio.sleep(0)  # lets the write start, and other tasks run
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
