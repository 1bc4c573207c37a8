"""Blocking enqueues on the fast path, for threads without an event loop. A thread writes and reads a socket itself.

Through an event loop on another thread, an enqueue would change threads twice, which takes longer than the enqueue.
Only the usual case is handled here: one attempt, by the fast path. For everything else `enqueue` returns None, and the
caller enqueues through the event loop, which repeats calls and follows the server after a failover. It may repeat an
enqueue of which the reply was lost here: its specs have tokens, by which the server recognizes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from redis.exceptions import AskError, MovedError, NoScriptError, RedisError

from millrace.domain.job import Spec
from millrace.store.clock import Clock
from millrace.store.forks import register_for_forks
from millrace.store.redis.address import Place
from millrace.store.redis.connections import MORE, hiredis, new_parser
from millrace.store.redis.fast_enqueue import packed_call
from millrace.store.redis.options import RedisOptions
from millrace.store.redis.scripts import Script, script
from millrace.store.redis.wire import script_command

Connect = Callable[[RedisOptions, Place | None], Any]
_PAUSE = 1.0  # seconds after a failure in which the event loop, which finds the current server, gets all enqueues
_RECEIVED = 65_536  # bytes to read at most at once


class BlockingEnqueues:
    """Sends the enqueues of all threads of a process. Each uses a connection of its own while its call lasts."""

    def __init__(self, connect: Connect, options: RedisOptions, clock: Clock | None) -> None:
        self._connect = connect
        self._options = options
        self._clock = clock
        self._prefix = "{" + options.prefix + "}:"
        self._lock = threading.Lock()  # guards the number of open connections
        self._open = 0
        self._free: list[_SocketConnection] = []  # the one that was used last at the end
        self._place: Place | None = None  # the node of a cluster that has the store's hash slot
        self._paused_until = 0.0
        self._is_possible = hiredis is not None and options.durability == "relaxed"
        register_for_forks(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:  # the connections are the parent's; the library closes only this process's copies
            self._free, self._open = [], 0
        self._lock.release()

    def enqueue(self, specs: Sequence[Spec]) -> int | None:
        """Enqueue checked specs and return the seq of the first; the others follow.

        Return None if this is not possible here. Unless a reply was lost, nothing has changed then.
        """
        if not self._is_possible or time.monotonic() < self._paused_until:
            return None
        bodies: list[bytes] = []
        call = packed_call(specs, bodies)
        if call is None or not all(spec.token for spec in specs):
            return None
        called = script(call[0])
        words = script_command(called, self._prefix, self._clock, "", "", call[1], bodies)
        connection = self._idle_connection()
        if connection is None:
            return None
        try:
            answer = _exchange(connection, words, called)
        except (RedisError, OSError):
            self._failed(connection)
            return None
        except BaseException:  # such as an interrupt: the reply may still arrive
            self._closed(connection)
            raise
        if isinstance(answer, Exception):
            self._failed(connection, answer)
            return None
        self._free.append(connection)
        return answer if isinstance(answer, int) and answer >= 0 else None

    def close(self) -> None:
        """Close the idle connections."""
        while self._free:
            self._closed(self._free.pop())

    def _idle_connection(self) -> _SocketConnection | None:
        """Return a connection that no other thread uses; None if there can be no more."""
        try:
            return self._free.pop()
        except IndexError:
            pass
        with self._lock:
            if self._open >= self._options.connections:
                return None
            self._open += 1
        opened = self._connect(self._options, self._place)
        if opened is None:
            self._is_possible = False
            return None
        return _SocketConnection(opened)

    def _failed(self, connection: _SocketConnection, answer: Exception | None = None) -> None:
        """Close a connection that failed or whose server refuses, and all idle ones: they have mostly failed too."""
        self._closed(connection)
        self.close()
        if isinstance(answer, MovedError) and self._place is None:
            self._place = (answer.host, answer.port)
        elif not isinstance(answer, AskError) or isinstance(answer, MovedError):
            self._place = None
            self._paused_until = time.monotonic() + _PAUSE

    def _closed(self, connection: _SocketConnection) -> None:
        connection.close()
        with self._lock:
            self._open = max(0, self._open - 1)


class _SocketConnection:
    """One connection, which is opened by its first request."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._socket: Any = None
        self._parser: Any = None

    def request(self, words: tuple[Any, ...]) -> Any:
        """Send a command and return its reply. An error reply of the server is returned, not raised."""
        if self._socket is None:
            self._connection.connect()
            self._socket, self._parser = self._connection._sock, new_parser(self._connection)
        self._socket.sendall(cast(Any, hiredis).pack_command(words))
        while True:
            answer = self._parser.gets()
            if answer is not MORE:
                return answer
            data = self._socket.recv(_RECEIVED)
            if not data:
                raise OSError("the server has closed the connection")
            self._parser.feed(data)

    def close(self) -> None:
        self._connection.disconnect()


def _exchange(connection: _SocketConnection, words: tuple[Any, ...], called: Script) -> Any:
    answer = connection.request(words)
    if isinstance(answer, NoScriptError):
        answer = connection.request(("EVAL", called.source, *words[2:]))
    return answer
