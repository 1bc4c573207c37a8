"""Connections for scripts: kept at hand, one exchange at a time on each, and one timer for it.

The client library's own way costs more time per command than the command: a lock, a look at the socket and a timer to
get a connection, a task to write, a timer to read. Its connections are used here, so that TLS, sentinels and logging in
are its business; once one stands, what arrives on it is read by `talk`. What breaks is thrown away, and whoever asked
asks again (see wire).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from millrace.store.redis.address import close_client
from millrace.store.redis.talk import Talk, hiredis, talk_over


class Lines:
    def __init__(self, client: Redis, most: int, timeout: float) -> None:
        self._client = client
        self._room = asyncio.Semaphore(most)
        self._timeout = timeout
        self._free: list[tuple[_Line, float]] = []  # with the instant of the last answer, the latest at the end
        self.has_opened = False  # a line, ever

    async def exchange(self, *commands: tuple[Any, ...]) -> list[Any]:
        """What the server answers to each; a refusal is an answer, too."""
        async with self._room:
            began = time.monotonic()
            line = self._free.pop()[0] if self._free else self._new()
            try:
                if not line.stands:
                    async with asyncio.timeout(self._timeout):
                        await line.connect()
                self.has_opened = True
                answers = await line.exchange(commands, self._timeout)
            except BaseException:
                await line.drop()
                await self._hang_up(before=began)  # what broke this one has mostly broken those that are as old
                raise
            self._free.append((line, time.monotonic()))
            return answers

    async def close(self) -> None:
        await self._hang_up(before=math.inf)
        await asyncio.sleep(0)  # for their sockets to be closed, too
        await close_client(self._client)

    def _new(self) -> _Line:
        return _Line(cast(Any, self._client.connection_pool).make_connection())

    async def _hang_up(self, before: float) -> None:
        """Those that were last answered before an instant: they have proved nothing since."""
        old = [line for line, answered in self._free if answered < before]
        self._free = [free for free in self._free if free[1] >= before]
        for line in old:
            await line.drop()


class _Line:
    def __init__(self, connection: Any) -> None:
        connection.socket_timeout = None  # an exchange has a timer
        self._connection = connection
        self._talk: Talk | None = None

    @property
    def stands(self) -> bool:
        return bool(self._connection.is_connected)

    async def connect(self) -> None:
        await self._connection.connect()  # which asks the sentinels, where there are any
        self._talk = talk_over(self._connection)

    async def exchange(self, commands: Sequence[tuple[Any, ...]], timeout: float) -> list[Any]:
        connection, talk = self._connection, self._talk
        if talk is not None and hiredis is not None:
            packed = b"".join(map(hiredis.pack_command, commands))
            return await talk.ask(packed, len(commands), timeout)
        parts = [part for words in commands for part in connection.pack_command(*words)]
        async with asyncio.timeout(timeout):
            await connection.send_packed_command(parts, check_health=False)
            return [await _answer(connection) for _ in commands]

    async def drop(self) -> None:
        """At once: to whom nobody listens any more, what is left to say is not said."""
        writer = self._connection._writer
        if writer is not None:
            writer.transport.abort()
        await self._connection.disconnect(nowait=True)


async def _answer(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
