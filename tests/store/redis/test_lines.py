"""Connections that are kept at hand: what is read on one is the answer to what was asked on it, and broken ones go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError, ResponseError

from millrace.store.redis import talk
from millrace.store.redis.address import Address
from millrace.store.redis.lines import Lines
from tests.servers.redis_server import url_for

MOST = 3


@pytest.fixture
async def lines(tmp_path: Path) -> AsyncIterator[Lines]:
    address = Address.parse(url_for(tmp_path))
    made = Lines(address.client(address.options), MOST, 5.0)
    try:
        yield made
    finally:
        await made.close()


async def test_a_line_is_used_again(lines):
    first = [await lines.exchange(("CLIENT", "ID")) for _ in range(3)]

    assert first[0] == first[1] == first[2]


async def test_calls_side_by_side_have_lines_of_their_own_and_no_more_than_allowed(lines):
    answers = await asyncio.gather(*(lines.exchange(("ECHO", str(n)), ("CLIENT", "ID")) for n in range(20)))

    assert [echo for echo, _ in answers] == [str(n).encode() for n in range(20)]
    assert 1 < len({line for _, line in answers}) <= MOST


async def test_a_refusal_is_an_answer_and_the_next_one_is_read_too(lines):
    refusal, echo = await lines.exchange(("NO-SUCH-COMMAND",), ("ECHO", "b"))

    assert isinstance(refusal, ResponseError)
    assert echo == b"b"
    assert await lines.exchange(("ECHO", "c")) == [b"c"]


async def test_whoever_gives_up_leaves_no_answer_behind_for_the_next(lines):
    [before] = await lines.exchange(("CLIENT", "ID"))
    waiting = asyncio.create_task(lines.exchange(("BLPOP", "nothing", 1)))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert await lines.exchange(("ECHO", "mine")) == [b"mine"]
    assert await lines.exchange(("CLIENT", "ID")) != [before]


async def test_a_server_that_does_not_answer_in_time_is_given_up(tmp_path):
    address = Address.parse(url_for(tmp_path))
    hasty = Lines(address.client(address.options), 1, 0.1)

    with pytest.raises(TimeoutError):
        await hasty.exchange(("BLPOP", "nothing", 2))
    assert await hasty.exchange(("ECHO", "again")) == [b"again"]
    await hasty.close()


async def all_at_once(lines: Lines) -> set[int]:
    """The numbers that the server gives to the lines, each of them in use."""
    answers = await asyncio.gather(*(lines.exchange(("BLPOP", "nothing", 0.1), ("CLIENT", "ID")) for _ in range(MOST)))
    return {number for _, number in answers}


async def test_one_that_broke_takes_the_idle_ones_along(lines):
    before = await all_at_once(lines)
    [victim] = await lines.exchange(("CLIENT", "ID"))
    with pytest.raises(ConnectionError):
        await lines.exchange(("CLIENT", "KILL", "ID", victim, "SKIPME", "no"), ("ECHO", "lost"))
    after = await all_at_once(lines)

    assert len(before) == len(after) == MOST
    assert not before & after


async def test_without_hiredis_the_library_packs_and_reads(lines, monkeypatch):
    monkeypatch.setattr(talk, "hiredis", None)

    refusal, *echoes = await lines.exchange(("NO-SUCH-COMMAND",), ("ECHO", "ä"), ("ECHO", b"\0\xff"))
    assert isinstance(refusal, ResponseError)
    assert echoes == ["ä".encode(), b"\0\xff"]


async def test_an_answer_in_many_pieces_is_read_whole(lines):
    large = b"x" * 3_000_000
    answers = await lines.exchange(("SET", "large", large), ("GET", "large"), ("ECHO", "b"))

    assert answers == [b"OK", large, b"b"]
    assert await lines.exchange(("DEL", "large")) == [1]


async def test_a_line_that_the_server_has_closed_meanwhile_is_told_as_broken(lines):
    first, second = await asyncio.gather(*(lines.exchange(("BLPOP", "nothing", 0.1), ("CLIENT", "ID")) for _ in "ab"))
    await lines.exchange(("CLIENT", "KILL", "ID", first[1]), ("CLIENT", "KILL", "ID", second[1]))
    await asyncio.sleep(0.05)

    answers = await asyncio.gather(*(lines.exchange(("ECHO", "a")) for _ in "ab"), return_exceptions=True)
    assert sorted(map(type, answers), key=str) == [list, ConnectionError]
    assert await lines.exchange(("ECHO", "again")) == [b"again"]
