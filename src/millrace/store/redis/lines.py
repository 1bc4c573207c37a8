"""Connections for scripts: kept at hand, one exchange at a time on each, and one timer for it.

The client library's own way costs more time per command than the command: a lock, a look at the socket and a timer to
get a connection, a task to write, a timer to read. Its connections are used here, so that TLS, sentinels and logging in
are its business; what breaks is thrown away, and whoever asked asks again (see wire).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from millrace.store.redis.address import close_client


def _packer() -> Callable[[tuple[Any, ...]], bytes] | None:
    try:
        import hiredis
    except ImportError:  # the library's own packer does it, too
        return None
    return cast("Callable[[tuple[Any, ...]], bytes]", hiredis.pack_command)


_pack = _packer()


class Lines:
    def __init__(self, client: Redis, most: int, timeout: float) -> None:
        self._client = client
        self._room = asyncio.Semaphore(most)
        self._timeout = timeout
        self._free: list[tuple[Any, float]] = []  # with the instant of the last answer, the latest at the end
        self.has_opened = False  # a line, ever

    async def exchange(self, *commands: tuple[Any, ...]) -> list[Any]:
        """What the server answers to each; a refusal is an answer, too."""
        async with self._room:
            began = time.monotonic()
            line = self._free.pop()[0] if self._free else self._new()
            try:
                if not line.is_connected:
                    async with asyncio.timeout(self._timeout):
                        await line.connect()  # which asks the sentinels, where there are any
                self.has_opened = True
                async with asyncio.timeout(self._timeout):
                    await line.send_packed_command(_packed(line, commands), check_health=False)
                    answers = [await _answer(line) for _ in commands]
            except BaseException:
                await _drop(line)
                await self._hang_up(before=began)  # what broke this one has mostly broken those that are as old
                raise
            self._free.append((line, time.monotonic()))
            return answers

    async def close(self) -> None:
        await self._hang_up(before=math.inf)
        await asyncio.sleep(0)  # for their sockets to be closed, too
        await close_client(self._client)

    def _new(self) -> Any:
        line: Any = cast(Any, self._client.connection_pool).make_connection()
        line.socket_timeout = None  # an exchange has a timer
        return line

    async def _hang_up(self, before: float) -> None:
        """Those that were last answered before an instant: they have proved nothing since."""
        old = [line for line, answered in self._free if answered < before]
        self._free = [free for free in self._free if free[1] >= before]
        for line in old:
            await _drop(line)


async def _drop(line: Any) -> None:
    """At once: to whom nobody listens any more, what is left to say is not said."""
    writer = line._writer
    if writer is not None:
        writer.transport.abort()
    await line.disconnect(nowait=True)


def _packed(line: Any, commands: Sequence[tuple[Any, ...]]) -> Any:
    if _pack is not None:
        return b"".join(map(_pack, commands))
    return [part for words in commands for part in line.pack_command(*words)]


async def _answer(line: Any) -> Any:
    try:
        return await line.read_response()
    except ResponseError as error:
        return error
