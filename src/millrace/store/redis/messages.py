"""Receives the messages of a channel. As in `connections.py`, the client library only opens the connection.

The library reads each message with several coroutines and a timer, which takes longer than to handle the message.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from millrace.store.redis.connections import MORE, hiredis, is_readable, new_parser

_QUIET = 30.0  # seconds without a message after which a ping is sent
_ANSWER = 10.0  # seconds without a reply to the ping after which the connection counts as dead


async def receive(
    client: Redis, channel: str, on_subscribed: Callable[[], None], deliver: Callable[[bytes], None]
) -> None:
    """Pass the messages of a channel to `deliver`, until the connection is lost: then raise an exception."""
    connection = cast(Any, client.connection_pool).make_connection()
    if not is_readable(connection):
        await _receive_by_library(client, channel, on_subscribed, deliver)
        return
    connection.socket_timeout = None
    pack = cast(Any, hiredis).pack_command
    try:
        await connection.connect()
        transport = cast(asyncio.Transport, connection._writer.transport)
        reader = _MessageReader(new_parser(connection), on_subscribed, deliver)
        transport.set_protocol(reader)
        transport.write(pack(("SUBSCRIBE", channel)))
        while True:
            if not await reader.has_heard(_QUIET):
                transport.write(pack(("PING",)))
                if not await reader.has_heard(_ANSWER):
                    raise ConnectionError("no answer to a ping")
    finally:
        if connection._writer is not None:
            connection._writer.transport.abort()
        await connection.disconnect(nowait=True)


class _MessageReader(asyncio.Protocol):
    def __init__(self, parser: Any, on_subscribed: Callable[[], None], deliver: Callable[[bytes], None]) -> None:
        self._parser = parser
        self._on_subscribed = on_subscribed
        self._deliver = deliver
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._received = 0  # messages, and replies to pings

    async def has_heard(self, seconds: float) -> bool:
        """Wait, and return whether anything was received. Raise an exception if the connection is lost."""
        before = self._received
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._lost)
        return self._received > before

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
            while (message := self._parser.gets()) is not MORE:
                if isinstance(message, Exception):
                    raise message
                self._received += 1
                if message[0] == b"message":
                    self._deliver(message[2])
                elif message[0] == b"subscribe":
                    self._on_subscribed()
        except Exception as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionError("the server has closed the connection"))

    def _end(self, error: Exception) -> None:
        if not self._lost.done():
            self._lost.set_exception(error)
            self._lost.exception()  # retrieved here, if nobody waits any more


async def _receive_by_library(
    client: Redis, channel: str, on_subscribed: Callable[[], None], deliver: Callable[[bytes], None]
) -> None:
    async with cast(Any, client).pubsub() as messages:
        await messages.subscribe(channel)
        tried = False
        while True:
            message = await messages.get_message(timeout=_ANSWER if tried else _QUIET)
            if message is None:
                if tried:
                    raise ConnectionError("no answer to a ping")
                await messages.ping()
                tried = True
                continue
            tried = False
            if message["type"] == "subscribe":
                on_subscribed()
            elif message["type"] == "message":
                deliver(message["data"])
