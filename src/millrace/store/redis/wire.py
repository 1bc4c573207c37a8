"""Scripts over the wire: a call is repeated until it has an answer, and still happens once.

A connection that breaks leaves it open whether the server has carried out what was asked. So a call that changes
something has a number, the script keeps its answer under the caller's slot in the same atomic step, and the same call
is simply sent again: it is done, or it is answered from memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
    TryAgainError,
)

from millrace.domain.errors import StoreError
from millrace.store.clock import Clock
from millrace.store.redis.address import close_client
from millrace.store.redis.lines import Lines
from millrace.store.redis.options import RedisOptions
from millrace.store.redis.question import encode
from millrace.store.redis.scripts import Script, script

Connect = Callable[[tuple[str, int] | None], Redis]

_UNREACHABLE = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    ClusterDownError,
    TryAgainError,
    ReadOnlyError,
    OSError,
)
_NOT_NOW = re.compile(r"\bREADONLY\b|^BUSY\b|\bLOADING\b|\bMASTERDOWN\b")  # inside a script, they are only text
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
FIRST_PATIENCE = 2.0  # seconds
_WAIT_SHARE = 0.5  # of the timeout: how long a server may take to write to its disk, or to its replicas


class Wire:
    """Connections of one event loop."""

    def __init__(self, connect: Connect, options: RedisOptions, clock: Clock | None, salt: str) -> None:
        self._connect = connect
        self._options = options
        self._clock = clock
        self._salt = salt
        self._calls = 0
        self._slots: list[str] = []
        self._made = 0
        self._client: Redis | None = None
        self._lines: Lines | None = None
        self.place: tuple[str, int] | None = None  # where a cluster has sent us
        self.prefix = "{" + options.prefix + "}:"
        self.syncs_disk = True  # False where the server writes to its disk before it answers anyway
        self.has_met = False  # a server that was never there is a wrong address rather than a restart
        self.chance = random.Random()

    @property
    def client(self) -> Redis:
        if self._client is None:
            self._client = self._connect(self.place)
        return self._client

    @property
    def lines(self) -> Lines:
        if self._lines is None:
            self._lines = Lines(self._connect(self.place), self._options.connections, self._options.timeout)
        return self._lines

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await close_client(client)
        lines, self._lines = self._lines, None
        if lines is not None:
            await lines.close()

    def claim_id(self) -> str:
        self._calls += 1
        return f"{self._salt}-{self._calls:x}"

    async def ask(
        self, name: str, question: Sequence[Any], bodies: Sequence[bytes] = (), *, durable: bool = False
    ) -> Any:
        """What changes nothing, or nothing the second time, may be asked as often as one likes."""
        return await self._send(script(name), "", "", question, bodies, durable=durable)

    async def change(
        self, name: str, question: Sequence[Any], bodies: Sequence[bytes] = (), *, durable: bool = True
    ) -> Any:
        """Carried out once, however often it has to be sent."""
        slot = self._slots.pop() if self._slots else self._new_slot()
        self._calls += 1
        try:
            return await self._send(script(name), slot, str(self._calls), question, bodies, durable=durable)
        finally:
            self._slots.append(slot)

    async def command(self, *words: Any, durable: bool = False) -> Any:
        """A plain command that may be repeated."""
        confirm = self._confirmation() if durable else None
        if confirm is None:  # the library makes values of the answers to some
            return await self._patiently(lambda: cast(Any, self.client).execute_command(*words))
        return await self._patiently(lambda: self._once(words, confirm))

    def _new_slot(self) -> str:
        self._made += 1
        return f"{self._salt}.{self._made:x}"

    async def _send(
        self, what: Script, slot: str, number: str, question: Sequence[Any], bodies: Sequence[bytes], *, durable: bool
    ) -> Any:
        instant = "" if self._clock is None else self._clock()
        words = (1, self.prefix, slot, number, instant, encode(question), *bodies)
        confirm = self._confirmation() if durable else None

        async def once() -> Any:
            try:
                return await self._once(("EVALSHA", what.sha, *words), confirm)
            except NoScriptError:
                return await self._once(("EVAL", what.source, *words), confirm)

        return await self._patiently(once)

    async def _once(self, words: tuple[Any, ...], confirm: tuple[Any, ...] | None) -> Any:
        answer, *counts = await self.lines.exchange(words, *(() if confirm is None else (confirm,)))
        if isinstance(answer, Exception):
            raise answer
        if confirm is not None:
            self._check(confirm, counts[0])
        return answer

    # ── durability ────────────────────────────────────────────────────────────────────────────

    def _confirmation(self) -> tuple[Any, ...] | None:
        """The command whose answer tells that what was written on this connection is safe, if one is needed."""
        options = self._options
        patience = max(1, int(options.timeout * _WAIT_SHARE * 1000))
        if options.durability == "disk" and self.syncs_disk:
            return ("WAITAOF", 1, 0, patience)
        if options.durability == "replicated":
            return ("WAIT", options.replicas, patience)
        return None

    def _check(self, confirm: tuple[Any, ...], count: Any) -> None:
        if isinstance(count, Exception):
            raise count
        if confirm[0] == "WAITAOF":
            if count[0] < 1:
                raise _Unconfirmed("the server has not written it to its disk within {:.0f} s", self._options)
        elif count < self._options.replicas:
            raise _Unconfirmed(f"{count} of {self._options.replicas} replicas have it after {{:.0f}} s", self._options)

    # ── patience ──────────────────────────────────────────────────────────────────────────────

    async def _patiently(self, once: Callable[[], Any]) -> Any:
        patience = self._options.patience if self.has_met else min(FIRST_PATIENCE, self._options.patience)
        deadline = time.monotonic() + patience
        pause = _FIRST_PAUSE
        while True:
            try:
                answer = await once()
                self.has_met = True
                return answer
            except MovedError as moved:
                self.place = (moved.host, moved.port)
                await self.close()
                problem: Exception = moved
            except (AuthenticationError, NoPermissionError) as error:
                raise StoreError(f"the Redis server refuses: {error}. Check the user and password of the URL") from None
            except TimeoutError as error:
                await self._close_idle_lines()
                problem = error
            except _UNREACHABLE as error:
                problem = error
            except RedisError as error:
                if not _NOT_NOW.search(str(error)):
                    raise _explained(error) from error
                problem = error
            if time.monotonic() + pause > deadline:
                raise _given_up(problem, patience, self._has_been_asked()) from problem
            await asyncio.sleep(pause * (0.5 + self.chance.random()))
            pause = min(_LONGEST_PAUSE, pause * 2)

    def _has_been_asked(self) -> bool:
        """Whether a server was ever there to hear anything."""
        return self.has_met or (self._lines is not None and self._lines.has_opened)

    async def _close_idle_lines(self) -> None:
        """Where one line has gone silent, others may have: to try them one by one would take a timeout each."""
        if self._client is not None:
            with contextlib.suppress(RedisError, OSError):
                await self._client.connection_pool.disconnect(inuse_connections=False)


class _Unconfirmed(ConnectionError):
    """Written, but not yet as safe as was asked for: asking again finds it done, and waits once more."""

    def __init__(self, what: str, options: RedisOptions) -> None:
        super().__init__(what.format(options.timeout * _WAIT_SHARE))


def _given_up(problem: Exception, patience: float, asked: bool) -> StoreError:
    if isinstance(problem, _Unconfirmed):
        return StoreError(
            f"the server has done it, but it is not as durable as asked: {problem}. Asking again is safe; look at its "
            "disk, or at its replicas (INFO persistence, INFO replication)"
        )
    if isinstance(problem, ReadOnlyError) or "READONLY" in str(problem):  # the text is that of scripts before Redis 7
        return StoreError(
            "the Redis server is a read-only replica, so nothing was written. Name the master, or let sentinels name "
            "it: redis+sentinel://host:26379/mymaster"
        )
    what = f"the Redis server could not be reached within {patience:.0f} s: {type(problem).__name__}: {problem}"
    if not asked:
        return StoreError(f"{what}. See that it runs, and that the URL is right")
    return StoreError(f"{what}. Whether the call was carried out is not known; asking again is safe")


def _explained(error: RedisError) -> StoreError:
    text = str(error)
    if isinstance(error, OutOfMemoryError) or "OOM" in text:
        return StoreError(
            "the Redis server has no memory left (maxmemory), so nothing was written. Jobs can still be run and "
            "removed, which frees some; or raise maxmemory, or shorten retention"
        )
    if "MISCONF" in text:
        return StoreError(f"the Redis server cannot write to its disk, so nothing was written: {text}")
    return StoreError(f"the Redis server says: {text}")
