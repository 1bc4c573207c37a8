"""Calls scripts. A call is repeated until it has a reply, and takes effect only once.

When a connection breaks, it is unknown whether the server has run the call. So every call that changes data has a
number, and the script stores its reply with this number on the server, in the same atomic step. When the call is sent
again, the server finds the number and returns the stored reply, or runs the call if it does not find it. Each stored
reply has a reply slot, a name that only one call at a time uses. (It has nothing to do with the slots of a worker.)

When a server fails or is no longer the master, all connections to it are dropped. The next attempt resolves the host
name again, asks the sentinels or the cluster again, and connects to the server that they return.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
    TryAgainError,
)

from millrace.domain.errors import StoreError
from millrace.store.clock import Clock
from millrace.store.redis.address import Place
from millrace.store.redis.connections import Connections
from millrace.store.redis.encode import encode
from millrace.store.redis.errors import Unconfirmed, explained, given_up
from millrace.store.redis.options import RedisOptions
from millrace.store.redis.scripts import Script, script

Connect = Callable[[Place | None], Redis]

_UNREACHABLE = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    ClusterDownError,
    ReadOnlyError,
    OSError,
)
_NOT_NOW = re.compile(r"^BUSY\b")  # the server is running another script: try again
_NOT_HERE = re.compile(  # errors inside a script are only text; the last one is from WAIT
    r"\b(READONLY|LOADING|MASTERDOWN|NOREPLICAS|UNBLOCKED)\b|cannot be used with replica instances"
)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
FIRST_PATIENCE = 2.0  # seconds
_WAIT_SHARE = 0.5  # share of the timeout that a server may take to write to its disk or its replicas


class RedisWire:
    """Calls scripts and runs commands over the connections of one event loop."""

    def __init__(
        self,
        connect: Connect,
        options: RedisOptions,
        clock: Clock | None,
        salt: str,
        on_return: Callable[[], None] = lambda: None,
    ) -> None:
        """Create a wire. `salt` makes its claim ids and reply slots unique. `on_return` is called when a server replies
        after a failure.
        """
        self._connect = connect
        self._on_return = on_return
        self._options = options
        self._clock = clock
        self._salt = salt
        self._calls = 0
        self._slots: list[str] = []
        self._made = 0
        self._connections: Connections | None = None
        self.places = Places()
        self.server = 0  # counts the servers that were left, so that a late failure of an old one is ignored
        self._is_lost = False  # whether a server has failed since the last reply
        self._has_opened = False  # whether any connection was ever opened
        self.prefix = "{" + options.prefix + "}:"
        self.syncs_disk = True  # False if the server writes to its disk before each reply
        self.has_replied = False  # whether a server has ever replied; if not, the address is probably wrong

    def connect(self) -> Redis:
        """Return a new client for the current server."""
        return self._connect(self.places.current)

    @property
    def connections(self) -> Connections:
        if self._connections is None:
            self._connections = Connections(self.connect(), self._options.connections, self._options.timeout)
        return self._connections

    async def close(self) -> None:
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close()

    async def leave(self, server: int, moved: MovedError | None = None) -> None:
        """Drop all connections to a server that failed or redirected, and choose the next server.

        `server` is the number of the failed server. Do nothing if another call has already left that server.
        """
        if server != self.server:
            return
        self.server += 1
        self._is_lost = True
        if moved is None:
            self.places.failed()
        else:
            self.places.moved(moved.host, moved.port)
        connections, self._connections = self._connections, None
        if connections is not None:
            self._has_opened = self._has_opened or connections.has_opened
            with contextlib.suppress(RedisError, OSError):
                await connections.abandon()

    async def learn_nodes(self) -> None:
        """Read the nodes of a cluster, which are tried when the current node fails. Errors such as a missing permission
        are ignored.
        """
        with contextlib.suppress(RedisError, OSError):
            [slots] = await self.connections.exchange(("CLUSTER", "SLOTS"))
            if isinstance(slots, list):
                self.places.know((node[0].decode(), node[1]) for _, _, *nodes in slots for node in nodes if node[0])

    def claim_id(self) -> str:
        self._calls += 1
        return f"{self._salt}-{self._calls:x}"

    async def ask(
        self,
        name: str,
        arguments: Sequence[Any],
        bodies: Sequence[bytes] = (),
        *,
        durable: bool = False,
        in_order: bool = False,
    ) -> Any:
        """Call a script that can safely run twice, and return its reply.

        The server runs calls with `in_order` one after the other, unless one of them has to be repeated.
        """
        called = script(name)
        words = script_command(called, self.prefix, self._clock, "", "", arguments, bodies)
        return await self._send(words, called.source, durable=durable, in_order=in_order)

    async def change(
        self, name: str, arguments: Sequence[Any], bodies: Sequence[bytes] = (), *, durable: bool = True
    ) -> Any:
        """Call a script and return its reply. The script takes effect once, even if the call is sent several times."""
        called = script(name)
        slot = self._slots.pop() if self._slots else self._new_slot()
        self._calls += 1
        try:
            words = script_command(called, self.prefix, self._clock, slot, str(self._calls), arguments, bodies)
            return await self._send(words, called.source, durable=durable)
        finally:
            self._slots.append(slot)

    async def command(self, *words: Any, durable: bool = False) -> Any:
        """Run a command that can safely run twice, and return its reply."""
        return await self._send(words, None, durable=durable)

    def _new_slot(self) -> str:
        self._made += 1
        return f"{self._salt}.{self._made:x}"

    async def _send(self, words: tuple[Any, ...], source: str | None, *, durable: bool, in_order: bool = False) -> Any:
        """Send a command until a reply arrives, and return the reply. Raise StoreError if none arrives in time.

        `source` is the source code of the script that the command calls. It is sent if the server does not have the
        script.
        """
        confirm = self._confirmation() if durable else None
        patience = self._options.patience if self.has_replied else min(FIRST_PATIENCE, self._options.patience)
        deadline = time.monotonic() + patience
        pause = _FIRST_PAUSE
        while True:
            server = self.server
            try:
                answer = await self._once(words, confirm, in_order)
            except NoScriptError:
                words = ("EVAL", source, *words[2:])
                continue
            except MovedError as moved:
                await self.leave(server, moved)
                problem: Exception = moved
            except (AuthenticationError, NoPermissionError) as error:
                raise StoreError(f"the Redis server refuses: {error}. Check the user and password of the URL") from None
            except (AskError, TryAgainError) as error:  # the slot is being moved: try the same node again
                problem = error
            except (RedisError, OSError) as error:
                if not isinstance(error, _UNREACHABLE) and not _NOT_HERE.search(str(error)):
                    if not _NOT_NOW.search(str(error)):
                        raise explained(error) from error
                else:
                    await self.leave(server)
                problem = error
            else:
                self._server_replied()
                return answer
            if time.monotonic() + pause > deadline:
                raise given_up(problem, patience, self._may_have_received()) from problem
            await asyncio.sleep(pause * (0.5 + random.random()))
            pause = min(_LONGEST_PAUSE, pause * 2)

    async def _once(self, words: tuple[Any, ...], confirm: tuple[Any, ...] | None, in_order: bool) -> Any:
        """Send a command once and return its reply. An error reply of the server is raised.

        If `confirm` is given, send this command (WAIT or WAITAOF) too, and raise Unconfirmed if the write is not
        durable in time.
        """
        commands = (words,) if confirm is None else (words, confirm)
        connections = self._connections or self.connections
        exchange = connections.exchange_in_order if in_order else connections.exchange
        answers = await exchange(*commands)
        if isinstance(answers[0], AskError):
            answers = await self._asking(answers[0], *commands)
        if isinstance(answers[0], Exception):
            raise answers[0]
        if confirm is not None:
            self._check(confirm, answers[1])
        return answers[0]

    async def _asking(self, ask: AskError, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands to the node to which a cluster is moving the store's hash slot, and return the replies.

        This is safe once the old node has no keys of the slot left. Before that, raise `ask`: each node has only some
        of the keys, and a script would treat the other keys as missing. The old node refuses all scripts from the start
        of the move, because the key that they name never exists.
        """
        if isinstance(ask, MovedError):
            raise ask
        [left] = await self.connections.exchange(("CLUSTER", "COUNTKEYSINSLOT", ask.slot_id))
        if left != 0:
            raise ask
        there = Connections(self._connect((ask.host, ask.port)), 1, self._options.timeout)
        try:
            _, *answers = await there.exchange(("ASKING",), *commands)
        finally:
            await there.close()
        return answers

    def _server_replied(self) -> None:
        self.has_replied = True
        if self._is_lost:
            self._is_lost = False
            self.places.answered()
            self._on_return()

    def _may_have_received(self) -> bool:
        """Return whether a server may have received a call; False if no connection was ever opened."""
        return self.has_replied or self._has_opened or (self._connections is not None and self._connections.has_opened)

    # ── durability ────────────────────────────────────────────────────────────────────────────

    def _confirmation(self) -> tuple[Any, ...] | None:
        """Return the command that waits until earlier writes are durable; None if the options do not require it."""
        options = self._options
        if options.durability == "relaxed":
            return None
        patience = max(1, int(options.timeout * _WAIT_SHARE * 1000))
        if options.durability == "disk" and self.syncs_disk:
            return ("WAITAOF", 1, 0, patience)
        if options.durability == "replicated":
            return ("WAIT", options.replicas, patience)
        return None

    def _check(self, confirm: tuple[Any, ...], count: Any) -> None:
        if isinstance(count, Exception):
            raise count
        seconds = self._options.timeout * _WAIT_SHARE
        if confirm[0] == "WAITAOF":
            if count[0] < 1:
                raise Unconfirmed(f"the server has not written it to its disk within {seconds:.0f} s")
        elif count < self._options.replicas:
            raise Unconfirmed(f"{count} of {self._options.replicas} replicas have it after {seconds:.0f} s")


def script_command(
    called: Script,
    prefix: str,
    clock: Clock | None,
    slot: str,
    number: str,
    arguments: Sequence[Any],
    bodies: Sequence[bytes],
) -> tuple[Any, ...]:
    """Return the command that calls a script. scripts/lib/open.lua reads the arguments of this command."""
    instant = "" if clock is None else clock()
    return ("EVALSHA", called.sha, 1, prefix, slot, number, instant, encode(arguments), *bodies)


class Places:
    """Chooses the server to connect to: the server of the URL, or a node of a cluster.

    A cluster redirects (MOVED) to the node that has the store's hash slot. That node is used until it fails. After a
    failure, the server of the URL and the known nodes are tried in turn. A node that does not have the slot redirects
    again.
    """

    def __init__(self) -> None:
        self.current: Place | None = None  # None: the server of the URL
        self.nodes: tuple[Place, ...] = ()  # the nodes of the cluster, if it is one
        self._failures = 0  # consecutive failures

    def moved(self, host: str, port: int) -> None:
        """Use the node to which a cluster has redirected. If `host` is empty, the node has the current host and another
        port.
        """
        here = self.current[0] if self.current is not None else ""  # for "", the client uses the host of the URL
        self.current = (host or here, port)
        self.know([self.current, *self.nodes])

    def know(self, nodes: Iterable[Place]) -> None:
        self.nodes = tuple(dict.fromkeys(nodes))

    def failed(self) -> None:
        candidates = (None, *self.nodes)
        self.current = candidates[self._failures % len(candidates)]
        self._failures += 1

    def answered(self) -> None:
        self._failures = 0
