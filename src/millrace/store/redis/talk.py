"""Reading answers straight off a connection.

The client library reads through a stream: a coroutine on each of four levels, and a buffer to be copied out of. Here
what arrives goes into the parser that the library uses, too (hiredis), and whoever asked gets all answers at once.
"""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any, cast

from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError, InvalidResponse

_CLOSED = "the server has closed the connection"
_MORE = object()  # what the parser answers while there is more to come
_PLAIN = frozenset({Connection, SSLConnection, UnixDomainSocketConnection})  # sentinels' do more than read


def _library() -> ModuleType | None:
    try:
        import hiredis
    except ImportError:  # then the client library does everything
        return None
    return hiredis


hiredis = _library()


class Talk(asyncio.Protocol):
    """The other end of one connection, for one question at a time."""

    def __init__(self, transport: asyncio.Transport, parser: Any) -> None:
        self._transport = transport
        self._parser = parser
        self._loop = asyncio.get_running_loop()
        self._answered: asyncio.Future[list[Any]] | None = None
        self._answers: list[Any] = []
        self._missing = 0
        self.is_over = False  # nothing more will be heard here

    async def ask(self, packed: bytes, count: int, timeout: float) -> list[Any]:
        """So many answers to what is sent; an error of the connection is raised, one of the server an answer."""
        if self.is_over:
            raise ConnectionError(_CLOSED)
        answered: asyncio.Future[list[Any]] = self._loop.create_future()
        self._answered = answered
        self._answers, self._missing = [], count
        timer = self._loop.call_later(timeout, self._give_up, answered)
        try:
            self._transport.write(packed)
            return await answered
        finally:
            timer.cancel()
            self._answered = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
            while self._missing:
                answer = self._parser.gets()
                if answer is _MORE:
                    return
                if isinstance(answer, ConnectionError):
                    raise answer
                self._answers.append(answer)
                self._missing -= 1
        except Exception as error:
            self._fail(error)
            return
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(self._answers)

    def eof_received(self) -> bool:
        return False  # the transport closes itself

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True
        self._fail(ConnectionError(_CLOSED if error is None else f"{_CLOSED}: {error}"))

    def _fail(self, error: Exception) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)

    def _give_up(self, answered: asyncio.Future[list[Any]]) -> None:
        if not answered.done():
            answered.set_exception(TimeoutError("no answer in time"))


def talk_over(line: Any) -> Talk | None:
    """Take a connection over from the library once it stands; None where that has to go on reading by itself."""
    if hiredis is None or type(line) not in _PLAIN:
        return None
    parser = hiredis.Reader(protocolError=InvalidResponse, replyError=line._parser.parse_error, notEnoughData=_MORE)
    transport = cast(asyncio.Transport, line._writer.transport)
    talk = Talk(transport, parser)
    transport.set_protocol(talk)
    return talk
