"""Connections to the server. A call sends a list of commands, and gets all replies at once.

For each command, the client library takes a lock, checks the socket, starts two timers and an asyncio task, and reads
the reply through four levels of coroutines. That takes longer than the server needs to run the command. So the library
only opens connections, including TLS, sentinels and logins. On an open connection, `ReplyReader` sends the commands and
passes received data to hiredis, the parser that the library uses too. A connection that fails is dropped, and `wire.py`
repeats the call.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, cast

from redis.asyncio import Redis
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError, InvalidResponse, ResponseError

from millrace.store.redis.address import close_client

_CLOSED = "the server has closed the connection"
_SWITCHED = "the store has switched to another server"
_LATE = 0.05  # seconds without a reply after which calls are no longer sent behind an earlier one
MORE = object()  # returned by the parser while a reply is incomplete
_READABLE = frozenset({Connection, SSLConnection, UnixDomainSocketConnection})  # those of sentinels do more than read


def _library() -> ModuleType | None:
    try:
        import hiredis
    except ImportError:  # then the client library reads the replies
        return None
    return hiredis


hiredis = _library()


class Connections:
    def __init__(self, client: Redis, most: int, timeout: float) -> None:
        self._client = client
        self._most = most
        self._room = asyncio.Semaphore(most)
        self._timeout = timeout
        self._free: list[tuple[_Connection, float]] = []  # with the time of the last reply, the latest at the end
        self._busy: set[_Connection] = set()
        self._ordered: _Connection | None = None  # for calls that are sent in order
        self._beginning = asyncio.Lock()
        self._has_begun = False  # whether a call in order has had a reply
        self._closed = asyncio.Event()
        self.has_opened = False  # whether any connection was ever opened

    async def exchange(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands and return one reply for each. Error replies of the server are returned, not raised.

        Raise an exception if the connection fails or the replies do not arrive in time.
        """
        await self._room.acquire()
        try:
            if self._closed.is_set():  # closed while this call waited for room
                raise ConnectionError(_SWITCHED)
            began = time.monotonic()
            connection = self._free.pop()[0] if self._free else self._new()
            self._busy.add(connection)
            try:
                if not connection.is_connected:
                    async with asyncio.timeout(self._timeout):
                        await connection.connect()
                    self.has_opened = True
                if connection.reader is None:
                    answers = await connection.exchange(commands, self._timeout)
                else:
                    answers = await connection.reader.request(commands, self._timeout)
            except BaseException as error:
                await connection.drop()
                await self._drop_idle(before=began)  # idle connections as old as this one have mostly failed too
                if isinstance(error, AttributeError) and self._closed.is_set():  # the library was connecting
                    raise ConnectionError(_SWITCHED) from error
                raise
            finally:
                self._busy.discard(connection)
                if self._closed.is_set():  # closed during the exchange
                    await self._close_late(connection)
            if not self._closed.is_set():
                self._free.append((connection, time.monotonic()))
            return answers
        finally:
            self._room.release()

    async def exchange_in_order(self, *commands: tuple[Any, ...]) -> list[Any]:
        """As `exchange`, on a connection that such calls share. The server runs them in the order of these calls.

        A call does not wait for the replies to earlier ones, unless they take long. One that is cancelled does not
        affect the others.
        """
        if not self._has_begun:
            async with self._beginning:
                if not self._has_begun:  # the first call opens the connection that the others use
                    return await self._exchange_and_reserve(commands)
        connection = self._ordered
        if connection is not None and connection.reader is not None and connection.reader.is_over:
            await self._drop_ordered(connection)
            connection = None
        if connection is None or connection.reader is None or connection.reader.is_late():
            return await self._exchange_and_reserve(commands)
        try:
            return await connection.reader.request(commands, self._timeout)
        except asyncio.CancelledError:
            raise
        except BaseException:
            await self._drop_ordered(connection)
            raise
        finally:
            if self._closed.is_set() and not connection.reader.is_busy:
                await self._close_late(connection)

    async def _exchange_and_reserve(self, commands: tuple[tuple[Any, ...], ...]) -> list[Any]:
        """Exchange commands, then reserve an idle connection for calls in order, if there is none and others remain."""
        answers = await self.exchange(*commands)
        self._has_begun = True
        if self._ordered is None and self._free and self._most > 1 and not self._closed.is_set():
            connection = self._free[-1][0]
            if connection.reader is not None and not self._room.locked():
                self._free.pop()
                self._ordered = connection
                await self._room.acquire()
        return answers

    async def _drop_ordered(self, connection: _Connection) -> None:
        if connection is self._ordered:
            self._ordered = None
            self._room.release()
        await connection.drop()

    async def _close_late(self, connection: _Connection) -> None:
        await connection.drop()
        if not self._busy:  # this connection may have opened the sentinels' connections again
            await close_client(self._client)

    async def abandon(self) -> None:
        """Close all connections immediately. An exchange that is in progress raises ConnectionError."""
        for connection in list(self._busy):
            await connection.drop()
        if self._ordered is not None:
            await self._drop_ordered(self._ordered)
        await self.close()

    async def close(self) -> None:
        """Close all idle connections; those in use are closed once they have their replies."""
        self._closed.set()
        await self._drop_idle(before=math.inf)
        await asyncio.sleep(0)  # lets the event loop close their sockets
        await close_client(self._client)

    def _new(self) -> _Connection:
        return _Connection(cast(Any, self._client.connection_pool).make_connection())

    async def _drop_idle(self, before: float) -> None:
        """Drop idle connections that received their last reply before the monotonic time `before`."""
        old = [connection for connection, answered in self._free if answered < before]
        self._free = [free for free in self._free if free[1] >= before]
        for connection in old:
            await connection.drop()
        ordered = self._ordered
        reader = None if ordered is None else ordered.reader
        if ordered is not None and reader is not None and not reader.is_busy and reader.heard < before:
            await self._drop_ordered(ordered)


class _Connection:
    def __init__(self, connection: Any) -> None:
        connection.socket_timeout = None  # an exchange has its own timer
        self._connection = connection
        self.is_connected = False
        self.reader: ReplyReader | None = None  # None: the client library reads the replies

    async def connect(self) -> None:
        await self._connection.connect()  # also asks the sentinels, if there are any
        self.reader = take_over(self._connection)
        self.is_connected = True

    async def exchange(self, commands: Sequence[tuple[Any, ...]], timeout: float) -> list[Any]:
        """Send commands and return the replies, without a reader."""
        connection = self._connection
        parts = [part for words in commands for part in connection.pack_command(*words)]
        async with asyncio.timeout(timeout):
            await connection.send_packed_command(parts, check_health=False)
            return [await _answer(connection) for _ in commands]

    async def drop(self) -> None:
        """Close the connection immediately, without sending what is still buffered."""
        self.is_connected = False
        writer = self._connection._writer
        if writer is not None:
            writer.transport.abort()
        await self._connection.disconnect(nowait=True)


async def _answer(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


class _Request(NamedTuple):
    answered: asyncio.Future[list[Any]]
    answers: list[Any]
    replies: int  # expected
    sent: float
    deadline: float


class ReplyReader(asyncio.Protocol):
    """Sends requests on one connection, and reads the replies. A caller gets all replies to its request at once.

    One timer runs while requests follow each other: to start and stop one for each would take longer than to send it.
    """

    def __init__(self, transport: asyncio.Transport, parser: Any) -> None:
        self._transport = transport
        self._parser = parser
        self._loop = asyncio.get_running_loop()
        self._requests: deque[_Request] = deque()  # those without a reply, in the order in which they were sent
        self._timer: asyncio.TimerHandle | None = None
        self.heard = time.monotonic()  # when data was last received
        self.is_over = False  # whether the connection is closed

    @property
    def is_busy(self) -> bool:
        return bool(self._requests)

    def is_late(self) -> bool:
        """Return whether a request has been without a reply for long."""
        return bool(self._requests) and self._loop.time() > self._requests[0].sent + _LATE

    def request(self, commands: Sequence[tuple[Any, ...]], timeout: float) -> asyncio.Future[list[Any]]:
        """Send commands and return a future of their replies. Error replies of the server are results.

        The future raises an exception if the connection fails or the replies do not arrive within `timeout` seconds.
        """
        if self.is_over:
            raise ConnectionError(_CLOSED)
        answered: asyncio.Future[list[Any]] = self._loop.create_future()
        sent = self._loop.time()
        self._requests.append(_Request(answered, [], len(commands), sent, sent + timeout))
        if self._timer is None:
            self._timer = self._loop.call_at(sent + timeout, self._check_deadline)
        pack = cast(ModuleType, hiredis).pack_command
        self._transport.write(pack(commands[0]) if len(commands) == 1 else b"".join(map(pack, commands)))
        return answered

    def data_received(self, data: bytes) -> None:
        self.heard = time.monotonic()
        try:
            self._parser.feed(data)
            while self._requests:
                request = self._requests[0]
                while len(request.answers) < request.replies:
                    answer = self._parser.gets()
                    if answer is MORE:
                        return
                    if isinstance(answer, ConnectionError):
                        raise answer
                    request.answers.append(answer)
                self._requests.popleft()
                if not request.answered.done():  # else its caller was cancelled
                    request.answered.set_result(request.answers)
        except Exception as error:
            self._fail(error)

    def eof_received(self) -> bool:
        return False  # lets the transport close itself

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._fail(ConnectionError(_CLOSED if error is None else f"{_CLOSED}: {error}"))

    def _fail(self, error: Exception) -> None:
        """Raise the error for all callers, and close the connection: a late reply would be taken for another one."""
        self.is_over = True
        self._transport.abort()
        for request in self._requests:
            if not request.answered.done():
                request.answered.set_exception(error)
        self._requests.clear()

    def _check_deadline(self) -> None:
        self._timer = None  # the next request starts another one
        if not self._requests:
            return
        first = self._requests[0]
        if self._loop.time() < first.deadline:
            self._timer = self._loop.call_at(first.deadline, self._check_deadline)
        else:
            self._fail(TimeoutError("no answer in time"))


def take_over(connection: Any) -> ReplyReader | None:
    """Take over an open connection from the client library, and return a reader for it.

    Return None if the library must read the replies itself: hiredis is not installed, or sentinels chose the server.
    """
    if not is_readable(connection):
        return None
    transport = cast(asyncio.Transport, connection._writer.transport)
    reader = ReplyReader(transport, new_parser(connection))
    transport.set_protocol(reader)
    return reader


def is_readable(connection: Any) -> bool:
    """Return whether the socket of a connection can be read without the client library."""
    return hiredis is not None and type(connection) in _READABLE


def new_parser(connection: Any) -> Any:
    """Return a parser for a connection of the client library. While a reply is incomplete, it returns MORE."""
    return cast(Any, hiredis).Reader(
        protocolError=InvalidResponse, replyError=connection._parser.parse_error, notEnoughData=MORE
    )
