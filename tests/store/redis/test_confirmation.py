"""Confirmation by WAITAOF and WAIT: asked for in the same round trip, and its count is believed, not its coming.

The wheel's server has no WAITAOF, so a stand-in answers here; `make test-valkey` runs all of it on a server that has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millrace.domain.errors import StoreError
from millrace.store.redis.address import RedisAddress
from millrace.store.redis.options import RedisOptions
from millrace.store.redis.wire import RedisWire

GONE = None  # instead of an answer, the line breaks
SYNCED, NOT_SYNCED = b"*2\r\n:1\r\n:0\r\n", b"*2\r\n:0\r\n:0\r\n"
LOG_IS_OFF = b"-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n"


class StandIn:
    """A server whose scripts answer `done` and whose confirmations answer as told, the last one again and again."""

    def __init__(self, *confirmations: bytes | None) -> None:
        self._left = list(confirmations)
        self.sent: list[list[list[str]]] = []  # by what came in one go: words of commands

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                commands = _commands(data)
                if any(words[0] in ("EVALSHA", "WAIT", "WAITAOF") for words in commands):
                    self.sent.append(commands)
                for words in commands:
                    answer = self._answer(words[0])
                    if answer is GONE:
                        return
                    writer.write(answer)
        finally:
            writer.close()

    def _answer(self, command: str) -> bytes | None:
        if command == "EVALSHA":
            return b"$4\r\ndone\r\n"
        if command in ("WAIT", "WAITAOF"):
            return self._left.pop(0) if len(self._left) > 1 else self._left[0]
        return b"+OK\r\n"


def _commands(data: bytes) -> list[list[str]]:
    """What is asked here is short and comes whole."""
    parts, found, at = data.split(b"\r\n"), [], 0
    while parts[at]:
        size = int(parts[at][1:])
        found.append([part.decode("latin-1") for part in parts[at + 2 : at + 2 + 2 * size : 2]])
        at += 1 + 2 * size
    return found


@asynccontextmanager
async def wire(client: StandIn, **options: Any) -> AsyncIterator[RedisWire]:
    listener = await asyncio.start_server(client.serve, "127.0.0.1", 0)
    async with listener:
        address = RedisAddress.parse(f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        chosen = RedisOptions(**{"timeout": 2.0, "patience": 0.3, **options})
        made = RedisWire(lambda place: address.client(chosen, place), chosen, None, "salt")
        made.has_replied = True
        try:
            yield made
        finally:
            await made.close()


def confirmations(client: StandIn) -> list[list[str]]:
    return [words for trip in client.sent for words in trip if words[0] in ("WAIT", "WAITAOF")]


async def test_a_change_and_its_confirmation_are_one_round_trip():
    client = StandIn(SYNCED)

    async with wire(client, durability="disk") as made:
        assert await made.change("cancel", [[], False]) == b"done"

    [[call, confirmation]] = client.sent
    assert call[0] == "EVALSHA"
    assert confirmation == ["WAITAOF", "1", "0", "1000"]


async def test_what_need_not_be_durable_is_not_waited_for():
    """A claim that is lost is a lease that is lost, and a question changes nothing."""
    client = StandIn(NOT_SYNCED)

    async with wire(client, durability="disk") as made:
        await made.change("claim", [], durable=False)
        await made.ask("count", [])

    assert len(client.sent) == 2
    assert confirmations(client) == []


async def test_a_disk_that_is_late_is_asked_again_and_the_change_is_the_same_one():
    client = StandIn(NOT_SYNCED, NOT_SYNCED, SYNCED)

    async with wire(client, durability="disk", patience=5.0) as made:
        await made.change("cancel", [[], False])

    assert len(confirmations(client)) == 3
    assert len({tuple(call) for [call, _] in client.sent}) == 1, "another number would be another change"


async def test_a_disk_that_never_comes_is_told_as_done_but_not_durable():
    async with wire(StandIn(NOT_SYNCED), durability="disk") as made:
        with pytest.raises(
            StoreError, match=r"has run the call, but its durability is not confirmed.*disk within 1 s.*safe"
        ):
            await made.change("cancel", [[], False])


async def test_a_server_whose_log_was_switched_off_meanwhile_is_told_in_its_words():
    async with wire(StandIn(LOG_IS_OFF), durability="disk") as made:
        with pytest.raises(StoreError, match="appendonly is disabled"):
            await made.change("cancel", [[], False])


async def test_a_line_that_breaks_before_the_confirmation_is_taken_up_again():
    client = StandIn(GONE, SYNCED)

    async with wire(client, durability="disk", patience=5.0) as made:
        assert await made.change("cancel", [[], False]) == b"done"

    assert len(client.sent) == 2


@pytest.mark.parametrize(("count", "enough"), [(0, False), (1, False), (2, True), (3, True)])
async def test_replicas_are_counted(count: int, enough: bool):
    client = StandIn(b":%d\r\n" % count)

    async with wire(client, durability="replicated", replicas=2) as made:
        if enough:
            assert await made.change("cancel", [[], False]) == b"done"
        else:
            with pytest.raises(StoreError, match=f"{count} of 2 replicas"):
                await made.change("cancel", [[], False])

    assert set(map(tuple, confirmations(client))) == {("WAIT", "2", "1000")}


async def test_where_the_server_writes_before_it_answers_nothing_is_confirmed():
    """`appendfsync always` on a server without WAITAOF; connect has made sure of it."""
    client = StandIn(NOT_SYNCED)

    async with wire(client, durability="disk") as made:
        made.syncs_disk = False
        assert await made.change("cancel", [[], False]) == b"done"

    assert confirmations(client) == []


async def test_a_plain_command_may_be_confirmed_too():
    client = StandIn(SYNCED)

    async with wire(client, durability="disk") as made:
        await made.command("HSET", "key", "field", "value", durable=True)

    assert [[words[0] for words in trip] for trip in client.sent] == [["HSET", "WAITAOF"]]
