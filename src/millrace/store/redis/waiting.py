"""Waiting for jobs, and for the end of jobs. Waiters are registered on the server, which sends hints over one
connection.

There are two kinds of waiters: a sleeper is an idle worker that waits for jobs, and a watch waits for the end of one
job. The atomic step that registers a waiter also checks whether there is anything to wait for. A hint may be wrong or
missing. After a lost connection is restored, all waiters are woken, because hints may have been missed. When the store
switches to another server (see `wire.py`), the connection for hints switches too.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

from redis.exceptions import RedisError

from millrace.domain.errors import StoreError
from millrace.domain.job import State
from millrace.store.protocol import Ending
from millrace.store.redis.address import close_client
from millrace.store.redis.decode import id_in, job_in
from millrace.store.redis.messages import receive
from millrace.store.redis.wire import RedisWire

WATCHED = 3_600_000  # milliseconds for which a watch is kept on the server if it is neither renewed nor removed
_GRACE = 5_000  # milliseconds after its timeout for which a sleeper is kept on the server
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
_NEWS = ord("n")


class Hint(asyncio.Event):
    """An event that is set when the message that a waiter expects arrives.

    `news` is the message itself, if it contains the job that has ended. `sent` is False if `_wake_all` has set the hint
    without a message of the server.
    """

    sent = False  # by the server, which has then removed the waiter's registration
    news: bytes | None = None

    async def wait_for(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait()


class RedisListener:
    """Registers the waiters of one event loop, and delivers hints to them.

    The key of a waiter is the message that it waits for: `w` and the name of a sleeper, or `e` and a job id.
    """

    def __init__(self, wire: RedisWire, name: str) -> None:
        self.name = name
        self._wire = wire
        self._channel = f"{wire.prefix}hear:{name}"
        self._expected: dict[str, list[Hint]] = {}
        self.registered: set[str] = set()  # ids of watched jobs that are registered on the server
        self._subscribed = asyncio.Event()
        self._server = -1  # the number of the server that is used, or was tried last
        self._attempt: asyncio.Timeout | None = None  # the current attempt to listen
        self._task: asyncio.Task[None] | None = None
        self._sleepers = 0
        self._background: set[asyncio.Task[Any]] = set()

    async def ready(self) -> None:
        """Start to listen if needed, and wait until hints can be received, but at most 5 seconds: callers also poll."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen(), name="millrace-redis-hints")
        if not self._subscribed.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                async with asyncio.timeout(5.0):
                    await self._subscribed.wait()

    @property
    def is_subscribed(self) -> bool:
        return self._subscribed.is_set()

    # ── waiting ───────────────────────────────────────────────────────────────────────────────

    async def sleep(self, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> bool:
        """Wait until a claim may find a job, at most `timeout` seconds.

        Return True if a hint ended the wait, or if a job was already due. Return False after the timeout, or when the
        next known job becomes due.
        """
        await self.ready()
        names = list(dict.fromkeys(queues))
        self._sleepers += 1
        sleeper = f"{self.name}.{self._sleepers:x}"
        hint = self._expect("w" + sleeper)
        asleep = True  # whether the server may have this sleeper registered
        try:
            length = int(timeout * 1000) + _GRACE
            known = None if tasks is None else list(tasks)
            left = await self._wire.ask("sleep", [names, known, _kind_of(tasks), self.name, sleeper, length])
            asleep = left != 0
            if left >= 0:
                timeout = min(timeout, left / 1000)
            if timeout > 0:
                await hint.wait_for(timeout)
            return hint.is_set() or left == 0
        except asyncio.CancelledError:
            hint.sent = False  # a cancelled worker claims nothing: `wake_up` gives its hint to another one
            raise
        finally:
            self._forget("w" + sleeper, hint)
            if asleep and not hint.sent:  # a registration that stays would get the next hint
                with contextlib.suppress(StoreError):
                    await asyncio.shield(self._wire.ask("wake_up", [names, sleeper]))

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncIterator[_Watch]:
        await self.ready()
        hint = self._expect("e" + job_id)
        try:
            yield _Watch(self, job_id, hint)
        finally:
            if self._forget("e" + job_id, hint) and job_id in self.registered:
                self.registered.discard(job_id)  # in the background: the caller already has its answer
                self.send_in_background(self._wire.ask("watch", [job_id, self.name, WATCHED, False]))

    async def register_watch(self, job_id: str) -> bool:
        """Register a watch on the server. Return False if the job has ended or does not exist, or the call failed."""
        try:
            waits = await self._wire.ask("watch", [job_id, self.name, WATCHED, True])
        except StoreError:  # the caller reads the job next and gets this error there
            return False
        self.registered.add(job_id)
        return bool(waits)

    def unregistered(self, ids: Iterable[str]) -> list[str]:
        """Return those of `ids` that are watched but not registered on the server yet."""
        if not self._expected:
            return []
        return [one for one in ids if "e" + one in self._expected and one not in self.registered]

    def _expect(self, message: str) -> Hint:
        hint = Hint()
        self._expected.setdefault(message, []).append(hint)
        return hint

    def _forget(self, message: str, hint: Hint) -> bool:
        """Remove a waiter. Return True if no other waiter expects the same message."""
        waiting = self._expected.get(message, [])
        if hint in waiting:
            waiting.remove(hint)
        if not waiting:
            self._expected.pop(message, None)
        return not waiting

    # ── calls that the caller does not wait for ───────────────────────────────────────────────

    def send_in_background(self, call: Coroutine[Any, Any, Any]) -> None:
        """Run a call in the background and ignore its errors."""
        task = asyncio.ensure_future(call)
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._background:
            await asyncio.wait(self._background, timeout=1.0)
        for left in list(self._background):
            left.cancel()

    # ── the connection ────────────────────────────────────────────────────────────────────────

    def follow(self) -> None:
        """Reconnect to the store's current server immediately, instead of after a pause, unless already subscribed
        there.
        """
        attempt = self._attempt
        if attempt is None or attempt.when() is not None:
            return
        if self._server != self._wire.server or not self._subscribed.is_set():
            attempt.reschedule(0)

    async def _listen(self) -> None:
        pause = _FIRST_PAUSE
        try:
            while True:
                self._server = self._wire.server
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None) as self._attempt:
                        subscribed = await self._listen_until_lost()
                        pause = _FIRST_PAUSE if subscribed else min(_LONGEST_PAUSE, pause * 2)
                        await asyncio.sleep(pause * (0.5 + random.random()))
        finally:
            self._attempt = None

    async def _listen_until_lost(self) -> bool:
        """Receive messages until the connection is lost. Return False if the subscription was never confirmed."""
        client = self._wire.connect()
        subscribed = False
        try:
            await receive(client, self._channel, self._begin, self._deliver)
        except (RedisError, OSError):
            subscribed = self._subscribed.is_set()
            if not subscribed:  # then other calls get no reply from this server either
                await self._wire.leave(self._server)
        finally:
            self._subscribed.clear()
            self.send_in_background(close_client(client))  # not here, where `follow` would interrupt it
        return subscribed

    def _begin(self) -> None:
        """Note that the subscription has begun. Hints before it may have been missed."""
        self.registered.clear()  # a server that took over or restarted may not have them
        self._wake_all()
        self._subscribed.set()

    def _deliver(self, data: bytes) -> None:
        news = None
        if data[0] == _NEWS:  # the message has the job itself; the server has removed the registration
            job_id, news = id_in(data), data
            self.registered.discard(job_id)
            data = b"e" + job_id.encode()
        for hint in self._expected.get(data.decode(), ()):
            hint.sent, hint.news = True, news
            hint.set()

    def _wake_all(self) -> None:
        for waiting in self._expected.values():
            for hint in waiting:
                hint.set()


class _Watch:
    """A watch on one job.

    If this process enqueues the job, the enqueue registers the watch on the server. Otherwise the first `wait`
    registers it, and checks whether the job has already ended.
    """

    def __init__(self, listener: RedisListener, job_id: str, hint: Hint) -> None:
        self._listener = listener
        self._id = job_id
        self._hint = hint

    async def wait(self, timeout: float) -> Ending | None:
        hint, listener = self._hint, self._listener
        if not hint.is_set() and self._id not in listener.registered and not await listener.register_watch(self._id):
            return None
        await hint.wait_for(timeout)
        news, hint.news = hint.news, None
        hint.clear()
        if news is None:
            return None
        job = job_in(news)
        return Ending(job.generation, job.result) if job.state is State.COMPLETED else None


@lru_cache(64)
def _kind_of(tasks: frozenset[str] | None) -> str:
    """Return a short name for a set of tasks. Sleepers with the same name run the same tasks, so a job can wake any of
    them.
    """
    if tasks is None:
        return "*"
    return hashlib.sha256("\0".join(sorted(tasks)).encode()).hexdigest()[:16]
