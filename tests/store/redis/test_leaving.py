"""What a server answers that cannot serve us any more: it is left with all connections, and asked nothing again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from millrace.store.redis.address import RedisAddress
from millrace.store.redis.options import RedisOptions
from millrace.store.redis.wire import Places, RedisWire

IN_A_SCRIPT = "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -"
REPLICA = "READONLY You can't write against a read only replica."
NOT_HERE = [
    REPLICA,
    IN_A_SCRIPT + REPLICA,
    "LOADING Redis is loading the dataset in memory",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "CLUSTERDOWN The cluster is down",
    "NOREPLICAS Not enough good replicas to write.",
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    "ERR WAIT cannot be used with replica instances. Please also note …",
    "",  # the line is cut
]
NOT_NOW = [
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
]


class OldServer:
    """On connections that are as old as its first refusal it refuses, for ever or so many times; on others it works."""

    def __init__(self, refusal: str, times: int | None = None) -> None:
        self._refusal = refusal
        self._left = times
        self._newest_old = 0
        self.connections = 0
        self.asked: list[int] = []  # the connection on which each script came

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while data := await reader.read(1 << 16):
                if b"EVALSHA" not in data:
                    writer.write(b"+OK\r\n" * data.count(b"*"))
                    continue
                self.asked.append(number)
                if not self._refuses(number):
                    writer.write(b"$4\r\ndone\r\n")
                elif self._refusal:
                    writer.write(f"-{self._refusal}\r\n".encode())
                else:
                    return
        finally:
            writer.close()

    def _refuses(self, connection: int) -> bool:
        self._newest_old = self._newest_old or self.connections
        if self._left is None:
            return connection <= self._newest_old
        self._left -= 1
        return self._left >= 0


@asynccontextmanager
async def wire(server: OldServer) -> AsyncIterator[RedisWire]:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with listener:
        address = RedisAddress.parse(f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        options = RedisOptions(timeout=5.0, patience=20.0)
        made = RedisWire(lambda place: address.client(options, place), options, None, "salt")
        try:
            yield made
        finally:
            await made.close()


@pytest.mark.parametrize("refusal", NOT_HERE)
async def test_a_server_that_is_no_master_any_more_is_left_with_all_connections(refusal: str):
    server = OldServer(refusal)

    async with wire(server) as made:
        assert await made.change("cancel", [[], False]) == b"done"

    assert server.asked == [1, 2]


@pytest.mark.parametrize("refusal", NOT_NOW)
async def test_a_server_that_is_busy_for_a_moment_is_asked_again_on_the_same_connection(refusal: str):
    server = OldServer(refusal, times=2)

    async with wire(server) as made:
        assert await made.change("cancel", [[], False]) == b"done"

    assert server.asked == [1, 1, 1]


async def test_calls_that_fail_together_leave_the_server_once():
    server = OldServer(REPLICA)

    async with wire(server) as made:
        answers = await asyncio.gather(*(made.change("cancel", [[], False]) for _ in range(8)))
        assert made.server == 1

    assert answers == [b"done"] * 8


def test_a_place_that_fails_is_forgotten_and_the_url_and_the_other_nodes_are_tried_in_turn():
    places = Places()
    first = places.current
    assert first is None, "the URL"
    places.moved("b", 1)
    places.know([("a", 1), ("b", 1)])
    assert places.current == ("b", 1)

    tried = []
    for _ in range(4):
        places.failed()
        tried.append(places.current)
    assert tried == [None, ("a", 1), ("b", 1), None]

    places.answered()
    places.failed()
    assert places.current is None


def test_a_node_without_a_host_is_another_port_of_the_one_that_named_it():
    places = Places()
    places.moved("", 7001)
    assert places.current == ("", 7001), "the host is that of the URL"

    places.moved("b", 7002)
    places.moved("", 7003)
    assert places.current == ("b", 7003)
