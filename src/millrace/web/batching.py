"""Batching: jobs that clients enqueue one at a time are stored together.

A call to a store costs much more than one more job in the same call. While a call is in progress, the jobs that arrive
are collected for the next call; a job that arrives alone is enqueued at once. Each client gets the answer for its own
job, and a job that the store refuses does not affect the others.
"""

from __future__ import annotations

import asyncio
from collections import deque

from millrace.app.app import App
from millrace.domain.errors import StoreError
from millrace.domain.job import Spec
from millrace.domain.request import Enqueued

MOST = 200
Waiting = tuple[Spec, "asyncio.Future[Enqueued]"]


class EnqueueBatcher:
    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._run: asyncio.Task[None] | None = None

    async def enqueue(self, app: App, spec: Spec) -> Enqueued:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Enqueued] = loop.create_future()
        self._waiting.append((spec, answer))
        if self._run is None:
            self._run = loop.create_task(self._enqueue_all(app))
        return await answer

    async def _enqueue_all(self, app: App) -> None:
        """Enqueue all collected jobs. This runs in its own task, so that a client that disconnects does not cancel the
        enqueue of other clients.
        """
        try:
            while self._waiting:
                await self._enqueue_batch(app, [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))])
        finally:
            self._run = None
            while self._waiting:  # only when the server stops meanwhile
                self._waiting.popleft()[1].cancel()

    async def _enqueue_batch(self, app: App, batch: list[Waiting]) -> None:
        try:
            jobs = await app.enqueue([spec for spec, _ in batch])
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, (StoreError, OSError)):
                for one in batch:  # nothing was stored: enqueued one by one, only the faulty job is refused
                    await self._enqueue_batch(app, [one])
                return
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
        except BaseException:
            for _, answer in batch:
                answer.cancel()
            raise
        else:
            for (_, answer), job in zip(batch, jobs, strict=True):
                if not answer.done():
                    answer.set_result(job.enqueued)
