"""Groups, keys, parents and expiry on the fast path: the same jobs, events and counts as by the general scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.domain.job import Job, Spec
from millrace.domain.request import Enqueued
from millrace.store.redis import RedisStore
from millrace.store.redis import store as module
from millrace.testing import builders
from millrace.testing.builders import a_claim
from millrace.testing.clock import VirtualClock
from tests.servers.redis_server import url_for

GENERAL_CLAIM = 1_001  # a claim of more than 1,000 jobs does not use the fast path


def spec(id: str, **more: Any) -> Spec:
    return builders.a_spec(id=id, **{"token": f"token of {id}", **more})


def members(count: int, group: Callable[[int], str], **more: Any) -> list[Spec]:
    return [spec(f"{group(n)}-{n}", group=group(n), **more) for n in range(count)]


CALLS: dict[str, list[list[Spec]]] = {
    "one group": [members(5, lambda n: "g"), [spec("late", group="g")]],
    "many groups": [members(30, lambda n: f"g{n % 4}")],
    "a group each": [members(30, lambda n: f"g{n}")],
    "an urgent member after others": [[spec("a", group="g")], [spec("b", group="g", priority=5)]],
    "an urgent member among others": [[spec("a", group="g"), spec("b", group="g", priority=5), spec("c", group="g")]],
    "members of two tasks": [[spec("a", group="h"), spec("b", group="g", task="other"), spec("c", group="g")]],
    "urgent members of two tasks": [
        [spec("a", group="h", priority=5), spec("b", group="g"), spec("c", group="g", priority=5)]
    ],
    "equally urgent members": [[spec("a", group="g", priority=5)], [spec("b", group="g", priority=5)]],
    "a member that is due later": [[spec("a", group="g", delay=5_000), spec("b", group="g")]],
    "members that expire": [members(3, lambda n: "g", expires=60_000)],
    "keys": [[spec("a", key="k"), spec("b", key="l")], [spec("c", key="k"), spec("d", key="m")]],
    "keys with a window": [[spec("a", key="k", scope="window", window=60_000)], [spec("b", key="k")]],
    "keys that are retained": [[spec("a", key="k", scope="retained")], [spec("b", key="k")]],
    "the same key twice": [[spec("a", key="k"), spec("b", key="k")]],
    "a key and a group": [[spec("a", key="k", group="g"), spec("b", key="l", group="g")]],
    "parents before children": [[spec("a"), spec("b", after=("a",)), spec("c", after=("a", "b"))]],
    "parents after children": [[spec("b", after=("a",)), spec("a")]],
    "a stored parent": [[spec("a")], [spec("b", after=("a",))]],
    "a missing parent": [[spec("b", after=("a",), allow_missing=True)], [spec("a")]],
    "a child that is awaited": [[spec("a", after=("b",), allow_missing=True)], [spec("b", after=("c",)), spec("c")]],
    "a child with a key": [[spec("a"), spec("b", after=("a",), key="k", expires=60_000, delay=100)]],
    "a child in a group": [[spec("a", group="g"), spec("b", group="g", after=("a",))]],
    "all in turn": [
        [spec("a"), spec("b", group="g"), spec("c", key="k"), spec("d", after=("a",)), spec("e", priority=3)],
        [spec("f", group="g"), spec("g", after=("d",)), spec("h", expires=60_000), spec("i", priority=3, group="g")],
    ],
}


class Pair:
    """Two stores with one clock: `fast` uses the fast path, `general` never does."""

    def __init__(self, fast: RedisStore, general: RedisStore, clock: VirtualClock) -> None:
        self.fast, self.general, self.clock = fast, general, clock

    def number_calls_alike(self) -> None:
        """Give the next claims of both stores the same id, which is part of their lease ids."""
        wires = self.fast._wire, self.general._wire
        calls = max(wire._calls for wire in wires)
        for wire in wires:
            wire._calls = calls


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    clock = VirtualClock()
    fast = RedisStore(url_for(tmp_path / "fast"), clock=clock, salt="pair")
    general = RedisStore(url_for(tmp_path / "general"), clock=clock, salt="pair")

    async def to_none(specs: Sequence[Spec], **_: bool) -> list[int]:
        return list(range(len(specs)))

    monkeypatch.setattr(general._here().enqueues, "on_fast_path", to_none)
    yield Pair(fast, general, clock)
    await fast.close()
    await general.close()


async def everything(store: RedisStore) -> Any:
    jobs: list[Job] = []
    for partition in await store.partitions(1):
        async for batch in store.scan(partition):
            jobs += batch
    return jobs, (await store.events(None, 10_000)).events, await store.count()


async def enqueued(store: RedisStore, calls: list[list[Spec]]) -> list[list[Enqueued]]:
    return [await store.enqueue(specs) for specs in calls]


async def settled(store: RedisStore, jobs: list[Job]) -> None:
    await store.settle([(job.lease, Change.completed(b"1")) for job in jobs])


@pytest.mark.parametrize("name", CALLS)
async def test_the_fast_path_of_an_enqueue_writes_what_the_general_script_writes(pair: Pair, name: str):
    assert await enqueued(pair.fast, CALLS[name]) == await enqueued(pair.general, CALLS[name])

    assert await everything(pair.fast) == await everything(pair.general)


@pytest.mark.parametrize("name", CALLS)
async def test_the_fast_paths_of_claims_and_settles_write_what_the_general_scripts_write(
    pair: Pair, name: str, monkeypatch: pytest.MonkeyPatch
):
    await enqueued(pair.fast, CALLS[name])
    await enqueued(pair.general, CALLS[name])
    found = True
    while found:
        pair.clock.advance(1)
        pair.number_calls_alike()
        fast = await pair.fast.claim(a_claim(1_000))
        general = await pair.general.claim(a_claim(GENERAL_CLAIM))
        assert fast == general
        await settled(pair.fast, fast)
        with monkeypatch.context() as patch:
            patch.setattr(module, "fast_path_completions", lambda items, bodies: None)
            await settled(pair.general, general)
        assert await everything(pair.fast) == await everything(pair.general)
        found = bool(fast)


async def test_a_group_that_was_processed_leaves_nothing_behind(pair: Pair):
    store = pair.fast
    await store.enqueue(members(4, lambda n: f"g{n % 2}"))
    while jobs := await store.claim(a_claim(10)):
        await settled(store, jobs)

    prefix = store._wire.prefix
    left = [key.decode() for key in await store._wire.command("KEYS", f"{prefix}*")]
    gone = {f"{prefix}{name}" for name in ("line", "aside:default", "m:default:g:g0", "m:default:g:g1", "lease")}
    assert not gone & set(left)
