"""Connections that are kept open: what is read on one is the reply to what was sent on it; broken ones are dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError, ResponseError

from millrace.store.redis import connections as module
from millrace.store.redis.address import RedisAddress
from millrace.store.redis.connections import Connections
from tests.servers.redis_server import url_for

MOST = 3


@pytest.fixture
async def connections(tmp_path: Path) -> AsyncIterator[Connections]:
    address = RedisAddress.parse(url_for(tmp_path))
    made = Connections(address.client(address.options), MOST, 5.0)
    try:
        yield made
    finally:
        await made.close()


async def test_a_connection_is_used_again(connections: Connections):
    first = [await connections.exchange(("CLIENT", "ID")) for _ in range(3)]

    assert first[0] == first[1] == first[2]


async def test_calls_side_by_side_have_connections_of_their_own_and_no_more_than_allowed(connections: Connections):
    answers = await asyncio.gather(*(connections.exchange(("ECHO", str(n)), ("CLIENT", "ID")) for n in range(20)))

    assert [echo for echo, _ in answers] == [str(n).encode() for n in range(20)]
    assert 1 < len({number for _, number in answers}) <= MOST


async def test_a_refusal_is_an_answer_and_the_next_one_is_read_too(connections: Connections):
    refusal, echo = await connections.exchange(("NO-SUCH-COMMAND",), ("ECHO", "b"))

    assert isinstance(refusal, ResponseError)
    assert echo == b"b"
    assert await connections.exchange(("ECHO", "c")) == [b"c"]


async def test_whoever_gives_up_leaves_no_answer_behind_for_the_next(connections: Connections):
    [before] = await connections.exchange(("CLIENT", "ID"))
    waiting = asyncio.create_task(connections.exchange(("BLPOP", "nothing", 1)))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert await connections.exchange(("ECHO", "mine")) == [b"mine"]
    assert await connections.exchange(("CLIENT", "ID")) != [before]


async def test_a_server_that_does_not_answer_in_time_is_given_up(tmp_path):
    address = RedisAddress.parse(url_for(tmp_path))
    hasty = Connections(address.client(address.options), 1, 0.1)

    with pytest.raises(TimeoutError):
        await hasty.exchange(("BLPOP", "nothing", 2))
    assert await hasty.exchange(("ECHO", "again")) == [b"again"]
    await hasty.close()


async def all_at_once(connections: Connections) -> set[int]:
    """The numbers that the server gives to the connections, each of them in use."""
    answers = await asyncio.gather(
        *(connections.exchange(("BLPOP", "nothing", 0.1), ("CLIENT", "ID")) for _ in range(MOST))
    )
    return {number for _, number in answers}


async def test_one_that_broke_takes_the_idle_ones_along(connections: Connections):
    before = await all_at_once(connections)
    [victim] = await connections.exchange(("CLIENT", "ID"))
    with pytest.raises(ConnectionError):
        await connections.exchange(("CLIENT", "KILL", "ID", victim, "SKIPME", "no"), ("ECHO", "lost"))
    after = await all_at_once(connections)

    assert len(before) == len(after) == MOST
    assert not before & after


async def test_without_hiredis_the_library_packs_and_reads(connections: Connections, monkeypatch):
    monkeypatch.setattr(module, "hiredis", None)

    refusal, *echoes = await connections.exchange(("NO-SUCH-COMMAND",), ("ECHO", "ä"), ("ECHO", b"\0\xff"))
    assert isinstance(refusal, ResponseError)
    assert echoes == ["ä".encode(), b"\0\xff"]


async def test_an_answer_in_many_pieces_is_read_whole(connections: Connections):
    large = b"x" * 3_000_000
    answers = await connections.exchange(("SET", "large", large), ("GET", "large"), ("ECHO", "b"))

    assert answers == [b"OK", large, b"b"]
    assert await connections.exchange(("DEL", "large")) == [1]


async def test_a_connection_that_the_server_has_closed_meanwhile_is_reported_as_broken(connections: Connections):
    first, second = await asyncio.gather(
        *(connections.exchange(("BLPOP", "nothing", 0.1), ("CLIENT", "ID")) for _ in "ab")
    )
    await connections.exchange(("CLIENT", "KILL", "ID", first[1]), ("CLIENT", "KILL", "ID", second[1]))
    await asyncio.sleep(0.05)

    answers = await asyncio.gather(*(connections.exchange(("ECHO", "a")) for _ in "ab"), return_exceptions=True)
    assert sorted(map(type, answers), key=str) == [list, ConnectionError]
    assert await connections.exchange(("ECHO", "again")) == [b"again"]


async def test_one_that_is_closed_while_it_connects_is_reported_as_broken(connections: Connections, monkeypatch):
    """As the client library does, whose connection to a sentinel is closed between two commands of its handshake."""

    async def closed_half_way(_: object) -> None:
        await connections.abandon()
        raise AttributeError("'NoneType' object has no attribute 'writelines'")

    monkeypatch.setattr(module._Connection, "connect", closed_half_way)
    with pytest.raises(ConnectionError, match="another server"):
        await connections.exchange(("ECHO", "a"))
