"""Calls that share a connection: the server runs them in order, and each caller gets its own replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError

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


async def test_calls_are_run_in_order_on_one_connection(connections: Connections):
    await connections.exchange(("DEL", "list"))
    answers = await asyncio.gather(
        *(connections.exchange_in_order(("RPUSH", "list", n), ("CLIENT", "ID")) for n in range(50))
    )

    assert [length for length, _ in answers] == list(range(1, 51))
    assert len({number for _, number in answers}) == 1
    assert await connections.exchange(("LRANGE", "list", 0, -1)) == [[str(n).encode() for n in range(50)]]


async def test_the_shared_connection_counts_among_the_others(connections: Connections):
    await connections.exchange_in_order(("CLIENT", "ID"))
    answers = await asyncio.gather(
        *(connections.exchange(("BLPOP", "nothing", 0.1), ("CLIENT", "ID")) for _ in range(6)),
        *(connections.exchange_in_order(("CLIENT", "ID")) for _ in range(6)),
    )

    assert len({answer[-1] for answer in answers}) == MOST


async def test_a_cancelled_call_leaves_its_replies_to_nobody(connections: Connections):
    [before] = await connections.exchange_in_order(("CLIENT", "ID"))
    waiting = asyncio.create_task(connections.exchange_in_order(("BLPOP", "nothing", 0.2), ("ECHO", "old")))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    line = connections._ordered
    assert line is not None and line.reader is not None
    while line.reader.is_busy:
        await asyncio.sleep(0.01)

    assert await connections.exchange_in_order(("ECHO", "mine"), ("CLIENT", "ID")) == [b"mine", before]


async def test_nobody_waits_behind_a_reply_that_takes_long(connections: Connections):
    [before] = await connections.exchange_in_order(("CLIENT", "ID"))
    slow = asyncio.create_task(connections.exchange_in_order(("BLPOP", "nothing", 2)))
    await asyncio.sleep(0.1)

    assert await connections.exchange_in_order(("CLIENT", "ID")) != [before]
    assert not slow.done()
    assert await slow == [None]


async def test_a_broken_connection_fails_all_its_calls_and_is_replaced(connections: Connections):
    [victim] = await connections.exchange_in_order(("CLIENT", "ID"))
    waiting = [asyncio.create_task(connections.exchange_in_order(("BLPOP", "nothing", 5))) for _ in range(3)]
    await asyncio.sleep(0.01)
    await connections.exchange(("CLIENT", "KILL", "ID", victim))
    answers = await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(answer) for answer in answers] == [ConnectionError] * 3
    [after] = await connections.exchange_in_order(("CLIENT", "ID"))
    assert after != victim
    assert await connections.exchange_in_order(("CLIENT", "ID")) == [after]


async def test_a_call_without_a_reply_fails_in_time_and_a_late_reply_is_taken_for_no_other(tmp_path: Path):
    address = RedisAddress.parse(url_for(tmp_path))
    hasty = Connections(address.client(address.options), MOST, 1.0)
    try:
        await hasty.exchange_in_order(("ECHO", "first"))
        answers = await asyncio.gather(
            hasty.exchange_in_order(("BLPOP", "nothing", 3)),
            hasty.exchange_in_order(("ECHO", "behind")),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [TimeoutError] * 2
        assert await hasty.exchange_in_order(("ECHO", "again")) == [b"again"]
    finally:
        await hasty.close()


async def test_an_idle_shared_connection_is_closed_with_the_others(connections: Connections):
    await connections.exchange_in_order(("ECHO", "a"))
    await connections.close()

    with pytest.raises(ConnectionError):
        await connections.exchange(("ECHO", "b"))


async def test_calls_on_their_way_get_their_replies_when_the_store_is_closed(connections: Connections):
    await connections.exchange_in_order(("ECHO", "a"))
    waiting = asyncio.create_task(connections.exchange_in_order(("BLPOP", "nothing", 0.1), ("ECHO", "b")))
    await asyncio.sleep(0.01)
    await connections.close()

    assert await waiting == [None, b"b"]
    with pytest.raises(ConnectionError):
        await connections.exchange_in_order(("ECHO", "c"))
