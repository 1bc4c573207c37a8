"""Single enqueues of many clients, put into the store together.

A call to a store costs much more than one more job in it. So while a call is under way, what arrives is gathered, and
goes with the next one; a job that arrives alone goes at once. Nobody notices but by the time it takes: each is answered
for its own job, and what the store refuses for one of them is not refused for the others.
"""

from __future__ import annotations

import asyncio
from collections import deque

from millrace.domain.errors import StoreError
from millrace.domain.job import Spec
from millrace.domain.request import Enqueued
from millrace.runtime.app import App

MOST = 200
Asked = tuple[Spec, "asyncio.Future[Enqueued]"]


class Together:
    def __init__(self) -> None:
        self._waiting: deque[Asked] = deque()
        self._run: asyncio.Task[None] | None = None

    async def enqueue(self, app: App, spec: Spec) -> Enqueued:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Enqueued] = loop.create_future()
        self._waiting.append((spec, answer))
        if self._run is None:
            self._run = loop.create_task(self._put_in_all(app))
        return await answer

    async def _put_in_all(self, app: App) -> None:
        """A task of its own: a client that goes away takes nobody's answer along."""
        try:
            while self._waiting:
                await self._put_in(app, [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))])
        finally:
            self._run = None
            while self._waiting:  # only when the server ends in the middle of it
                self._waiting.popleft()[1].cancel()

    async def _put_in(self, app: App, asked: list[Asked]) -> None:
        try:
            answers = await app.enqueue([spec for spec, _ in asked])
        except Exception as error:
            if len(asked) > 1 and not isinstance(error, (StoreError, OSError)):
                for one in asked:  # nothing was stored: whose fault it was shows when each goes alone
                    await self._put_in(app, [one])
                return
            for _, answer in asked:
                if not answer.done():
                    answer.set_exception(error)
        except BaseException:
            for _, answer in asked:
                answer.cancel()
            raise
        else:
            for (_, answer), enqueued in zip(asked, answers, strict=True):
                if not answer.done():
                    answer.set_result(enqueued)
