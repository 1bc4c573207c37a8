"""Hints from the server: a connection of its own, on which scripts say who may wake up.

A hint is never a proof. When the connection is lost, everybody who waits is woken once it stands again, because what
was said meanwhile nobody has heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError, RedisError

from millrace.store.redis.address import close_client
from millrace.store.redis.record import id_in

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
_QUIET = 30.0  # seconds without a word after which the connection is tried …
_NEWS = ord("n")
_ANSWER = 10.0  # … and after which one that does not answer is given up: nobody else may ever say that it is dead


class Word(asyncio.Event):
    """A word that is waited for, and what was said with it."""

    news: bytes | None = None


class Listener:
    """Who waits for which word, on one event loop."""

    def __init__(self, connect: Callable[[], Redis], prefix: str, name: str) -> None:
        self.name = name
        self._connect = connect
        self._channel = f"{prefix}hear:{name}"
        self._expected: dict[str, list[Word]] = {}
        self.registered: set[str] = set()  # ids of jobs of whose end the server will tell this listener
        self._hears = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._numbers = 0
        self._passing: set[asyncio.Task[Any]] = set()

    async def ready(self) -> None:
        """Return once the server would be heard, or soon after if it cannot be: polling is behind every hint."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen(), name="millrace-redis-hints")
        if not self._hears.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                async with asyncio.timeout(5.0):
                    await self._hears.wait()

    def new_name(self) -> str:
        self._numbers += 1
        return f"{self.name}.{self._numbers:x}"

    def expect(self, word: str) -> Word:
        event = Word()
        self._expected.setdefault(word, []).append(event)
        return event

    def unregistered(self, ids: Iterable[str]) -> list[str]:
        """Those of whose end somebody here waits to be told, and the server does not know it yet."""
        if not self._expected:
            return []
        return [one for one in ids if "e" + one in self._expected and one not in self.registered]

    def forget(self, word: str, event: Word) -> bool:
        """True when nobody else here waits for that word."""
        waiting = self._expected.get(word, [])
        if event in waiting:
            waiting.remove(event)
        if not waiting:
            self._expected.pop(word, None)
        return not waiting

    def in_passing(self, call: Coroutine[Any, Any, Any]) -> None:
        """Send what nobody waits for; an error in it is nobody's, too."""
        task = asyncio.ensure_future(call)
        self._passing.add(task)
        task.add_done_callback(self._passed)

    def _passed(self, task: asyncio.Task[Any]) -> None:
        self._passing.discard(task)
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        if self._passing:
            await asyncio.wait(self._passing, timeout=1.0)
        for left in list(self._passing):
            left.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            client = self._connect()
            try:
                async with client.pubsub() as channel:
                    await channel.subscribe(self._channel)
                    pause = _FIRST_PAUSE
                    await self._hear(channel)
            except (RedisError, OSError):
                self._hears.clear()
                await asyncio.sleep(pause * (0.5 + random.random()))
                pause = min(_LONGEST_PAUSE, pause * 2)
            finally:
                with contextlib.suppress(RedisError, OSError):
                    await close_client(client)

    async def _hear(self, channel: object) -> None:
        tried = False
        while True:
            message = await channel.get_message(timeout=_ANSWER if tried else _QUIET)  # type: ignore[attr-defined]
            if message is None:
                if tried:
                    raise ConnectionError("no answer to a ping")
                await channel.ping()  # type: ignore[attr-defined]
                tried = True
                continue
            tried = False
            if message["type"] == "subscribe":
                self._wake_all()
                self._hears.set()
            elif message["type"] == "message":
                self._tell(message["data"])

    def _tell(self, data: bytes) -> None:
        news = None
        if data[0] == _NEWS:  # the server has told what there is to tell, and will not do so again
            job_id, news = id_in(data), data
            self.registered.discard(job_id)
            data = b"e" + job_id.encode()
        for word in self._expected.get(data.decode(), ()):
            word.news = news
            word.set()

    def _wake_all(self) -> None:
        for waiting in self._expected.values():
            for event in waiting:
                event.set()
