"""Confirmation by WAITAOF and WAIT: asked for in the same round trip, and its count is believed, not its coming.

The wheel's server has no WAITAOF, so a stand-in answers here; `make test-valkey` runs all of it on a server that has.
"""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError

from millrace.domain.errors import StoreError
from millrace.store.redis import lines
from millrace.store.redis.options import RedisOptions
from millrace.store.redis.wire import Wire


class StandIn:
    """A server whose scripts answer `done` and whose confirmations answer as told, the last one again and again."""

    def __init__(self, *confirmations: Any) -> None:
        self._left = list(confirmations)
        self.sent: list[list[tuple[Any, ...]]] = []  # by round trip
        self.connection_pool = self
        self.is_connected = True

    def make_connection(self) -> StandIn:
        return self

    async def send_packed_command(self, trip: list[tuple[Any, ...]], check_health: bool) -> None:
        assert not check_health
        self.sent.append(trip)
        self._answers = [b"done", *(self.answer() for _ in trip[1:])]

    async def read_response(self) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def disconnect(self, nowait: bool) -> None:
        assert nowait

    def answer(self) -> Any:
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]


@pytest.fixture(autouse=True)
def words_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_packed", lambda _, commands: list(commands))


def wire(client: StandIn, **options: Any) -> Wire:
    made = Wire(lambda _: client, RedisOptions(**{"timeout": 2.0, "patience": 0.3, **options}), None, "salt")  # type: ignore[arg-type,return-value]
    made.has_met = True
    return made


def confirmations(client: StandIn) -> list[tuple[Any, ...]]:
    return [words for trip in client.sent for words in trip if words[0] in ("WAIT", "WAITAOF")]


async def test_a_change_and_its_confirmation_are_one_round_trip():
    client = StandIn([1, 0])

    assert await wire(client, durability="disk").change("cancel", [[], False]) == b"done"

    [[call, confirmation]] = client.sent
    assert call[0] == "EVALSHA"
    assert confirmation == ("WAITAOF", 1, 0, 1_000)


async def test_what_need_not_be_durable_is_not_waited_for():
    """A claim that is lost is a lease that is lost, and a question changes nothing."""
    client = StandIn([0, 0])
    made = wire(client, durability="disk")

    await made.change("claim", [], durable=False)
    await made.ask("count", [])

    assert confirmations(client) == []


async def test_a_disk_that_is_late_is_asked_again_and_the_change_is_the_same_one():
    client = StandIn([0, 0], [0, 0], [1, 0])

    await wire(client, durability="disk", patience=5.0).change("cancel", [[], False])

    assert len(confirmations(client)) == 3
    assert len({(call[4], call[5]) for [call, _] in client.sent}) == 1, "another number would be another change"


async def test_a_disk_that_never_comes_is_told_as_done_but_not_durable():
    client = StandIn([0, 0])

    with pytest.raises(StoreError, match=r"has done it, but it is not as durable as asked.*disk within 1 s.*safe"):
        await wire(client, durability="disk").change("cancel", [[], False])


async def test_a_server_whose_log_was_switched_off_meanwhile_is_told_in_its_words():
    client = StandIn(ResponseError("WAITAOF cannot be used when numlocal is set but appendonly is disabled."))

    with pytest.raises(StoreError, match="appendonly is disabled"):
        await wire(client, durability="disk").change("cancel", [[], False])


async def test_a_line_that_breaks_before_the_confirmation_is_taken_up_again():
    client = StandIn(ConnectionError("gone"), [1, 0])

    assert await wire(client, durability="disk", patience=5.0).change("cancel", [[], False]) == b"done"
    assert len(client.sent) == 2


@pytest.mark.parametrize(("count", "enough"), [(0, False), (1, False), (2, True), (3, True)])
async def test_replicas_are_counted(count: int, enough: bool):
    client = StandIn(count)
    made = wire(client, durability="replicated", replicas=2)

    if enough:
        assert await made.change("cancel", [[], False]) == b"done"
    else:
        with pytest.raises(StoreError, match=f"{count} of 2 replicas"):
            await made.change("cancel", [[], False])
    assert set(confirmations(client)) == {("WAIT", 2, 1_000)}


async def test_where_the_server_writes_before_it_answers_nothing_is_confirmed():
    """`appendfsync always` on a server without WAITAOF; connect has made sure of it."""
    client = StandIn([0, 0])
    made = wire(client, durability="disk")
    made.syncs_disk = False

    assert await made.change("cancel", [[], False]) == b"done"
    assert confirmations(client) == []
