"""Every operation happens once and answers right, also when its first answer is lost on the way (BW-14, BO-05)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.errors import StoreClosed, StoreError
from millrace.domain.job import Spec
from millrace.domain.request import Extension, WorkerInfo
from millrace.domain.schedule import Move, Schedule
from millrace.domain.settings import StoreSettings
from millrace.store.redis import RedisStore
from millrace.testing import builders
from millrace.testing.builders import a_claim, a_reclaim, a_retry_change
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.transfer_scenes import SOURCE, close
from tests.servers.redis_server import url_for
from tests.servers.tcp_proxy import Fate, TcpProxy, script_call, tcp_proxy

Operation = Callable[[RedisStore, VirtualClock], Awaitable[Any]]


def a_spec(id: str = "a", **more: Any) -> Spec:
    """The same for the same id, so that twins are."""
    return builders.a_spec(id=id, **{"token": f"token of {id}", **more})


async def prepared(store: RedisStore, clock: VirtualClock) -> None:
    """Something of everything: waiting, running, lapsed, completed, dead, grouped, keyed, blocked."""
    await store.control("queue", "pool", {"lanes": 2})
    await store.enqueue([a_spec(id=f"old-{n}", queue="old") for n in range(4)])
    for job in await store.claim(a_claim(4, queue="old", lease=1)):
        change = {"old-0": Change.completed(b"1"), "old-1": Change.bury(None, "explicit_fail")}.get(job.id)
        if change is not None:
            await store.settle([(job.lease, change)])
    clock.advance(2)  # the other two leases have lapsed
    await store.enqueue([a_spec(id=f"new-{n}") for n in range(3)])
    await store.enqueue([a_spec(id="grouped", group="g"), a_spec(id="keyed", key="k", scope="window", window=1000)])
    await store.enqueue([a_spec(id="child", after=("new-2",)), a_spec(id="laned", queue="pool")])


async def claim_and(store: RedisStore, change: Change) -> Any:
    jobs = await store.claim(a_claim(2))
    return [job.id for job in jobs], await store.settle([(job.lease, change) for job in jobs])


async def extended(store: RedisStore, clock: VirtualClock) -> Any:
    jobs = await store.claim(a_claim(2))
    return await store.extend([Extension(job.lease, 5_000, b"half") for job in jobs])


async def scheduled(store: RedisStore, clock: VirtualClock) -> Any:
    plan = Schedule("nightly", "0 3 * * *", "UTC", "work", "default", "skip", 0, "d", clock())
    return await store.advance([Move("nightly", 0, plan, (a_spec(id="tick"),))])


async def maintained(store: RedisStore, clock: VirtualClock) -> Any:
    clock.advance(8 * 86_400)
    return await store.maintain()


OPERATIONS: dict[str, Operation] = {
    "enqueue": lambda store, _: store.enqueue([a_spec(id="a"), a_spec(id="b", delay=5)]),
    "enqueue new jobs without a token": lambda store, _: store.enqueue([a_spec(id=id, token="") for id in "ab"]),
    "enqueue without a token": lambda store, _: store.enqueue([a_spec(id="a", token=""), a_spec(id="new-0", token="")]),
    "enqueue what is special": lambda store, _: store.enqueue(
        [a_spec(id="a", group="g"), a_spec(id="b", key="k"), a_spec(id="c", queue="pool"), a_spec(id="d", after=("a",))]
    ),
    "claim": lambda store, _: store.claim(a_claim(3)),
    "claim of a line": lambda store, _: store.claim(a_claim(10)),
    "complete": lambda store, _: claim_and(store, Change.completed(b"done")),
    "retry": lambda store, _: claim_and(store, a_retry_change(5)),
    "carry": lambda store, _: claim_and(store, Change.completed(b"x", jobs=(a_spec(id="carried"),))),
    "extend": extended,
    "reclaim": lambda store, _: store.reclaim(a_reclaim(10)),
    "cancel": lambda store, _: store.cancel(["new-0", "new-2", "old-0", "nobody"]),
    "replay": lambda store, _: store.replay(["old-0", "old-1", "new-0"]),
    "archive": lambda store, _: store.archive(["old-0", "old-1", "new-0"]),
    "set a queue": lambda store, _: store.control("queue", "default", {"max_running": 3, "rate": 2.5}),
    "set a task": lambda store, _: store.control("task", "work", {"max_running": 3}),
    "set the store": lambda store, _: store.control("store", "", {"keep_events": 5}),
    "drain": lambda store, _: store.drain("default", 3),
    "obliterate": lambda store, _: store.obliterate("old", 3),
    "maintain": maintained,
    "beat": lambda store, _: store.beat(WorkerInfo("w"), 1_000),
    "advance": scheduled,
}


class Twins:
    """The same store twice, under one clock: one on a good line, one behind the proxy."""

    def __init__(self, good: RedisStore, bad: RedisStore, proxy: TcpProxy, clock: VirtualClock) -> None:
        self.good, self.bad, self.proxy, self.clock = good, bad, proxy, clock

    async def both(self, operation: Operation) -> tuple[Any, Any]:
        begun = self.clock()
        good = await operation(self.good, self.clock)
        self.clock.set(begun)
        return good, await operation(self.bad, self.clock)


@pytest.fixture
async def twins(tmp_path: Path) -> AsyncIterator[Twins]:
    clock = VirtualClock()
    good = RedisStore(url_for(tmp_path / "good"), clock=clock, salt="twin")
    async with tcp_proxy(url_for(tmp_path / "bad", timeout=0.5), script_call) as (proxy, url):
        bad = RedisStore(url, clock=clock, salt="twin")
        pair = Twins(good, bad, proxy, clock)
        for store in (good, bad):
            await store.connect()
        await pair.both(prepared)
        yield pair
        for store in (good, bad):
            await store.close()


async def everything(store: RedisStore) -> Any:
    jobs = [job async for part in _parts(store) for job in part]
    return jobs, (await store.events(None, 10_000)).events, await store.count(), await store.schedules()


async def _parts(store: RedisStore) -> AsyncIterator[list[Any]]:
    for partition in await store.partitions(1):
        async for batch in store.scan(partition):
            yield batch


@pytest.mark.parametrize("fate", ["swallow", "cut"])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_whose_answer_is_lost_happens_once(twins: Twins, name: str, fate: Fate):
    twins.proxy.calls = 0
    twins.proxy.fate = lambda call: fate if call % 2 else "pass"  # the first sending of every call, and no other

    good, bad = await twins.both(OPERATIONS[name])

    assert bad == good
    if name != "set the store":  # a plain command
        assert twins.proxy.calls >= 2, "nothing was lost at all"
    twins.proxy.fate = lambda _: "pass"
    assert await everything(twins.bad) == await everything(twins.good)


@pytest.mark.parametrize("name", ["enqueue", "claim", "complete"])
async def test_an_operation_that_gets_no_answer_at_all_is_sent_again(twins: Twins, name: str):
    twins.proxy.calls = 0
    twins.proxy.fate = lambda call: "hang" if call == 1 else "pass"

    good, bad = await twins.both(OPERATIONS[name])

    assert bad == good
    assert await everything(twins.bad) == await everything(twins.good)


async def test_a_call_that_happened_before_the_store_was_closed_is_answered_again(twins: Twins):
    """Its reply was lost, and it is sent again after `millrace move` has closed the store."""
    wire = twins.good._wire
    answers = await twins.good.cancel(["new-0"])
    await close(twins.good, SOURCE)
    wire._calls -= 1
    assert await twins.good.cancel(["new-0"]) == answers
    with pytest.raises(StoreClosed):
        await twins.good.cancel(["new-1"])
    await close(twins.good, None)


async def test_a_change_of_the_settings_does_not_overwrite_one_that_it_has_not_read(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
):
    """So an operator who sets the retention of events does not open a store that is closed at this moment."""
    wire, ask = twins.good._wire, twins.good._wire.ask
    late_change = [SOURCE]

    async def late(name: str, *more: Any, **options: Any) -> Any:
        if name == "control_store" and late_change:
            await close(twins.good, late_change.pop())
        return await ask(name, *more, **options)

    monkeypatch.setattr(wire, "ask", late)
    await twins.good.control("store", "", {"keep_events": 5})
    settings = await twins.good.control("store", "", {})
    assert settings == StoreSettings(keep_events=5, closed=SOURCE)
    await close(twins.good, None)


async def test_a_call_that_was_long_on_its_way_does_nothing_when_its_caller_has_gone_on(twins: Twins):
    """Its connection was given up, the call sent again and answered; then the first sending arrives after all."""
    wire = twins.good._wire
    wire._calls += 10
    await twins.good.cancel(["new-0"])
    before = await everything(twins.good)
    wire._calls -= 5

    with pytest.raises(StoreError, match="SUPERSEDED"):
        await twins.good.cancel(["new-1"])

    assert await everything(twins.good) == before


async def test_a_server_that_was_never_there_is_told_in_words_after_patience(tmp_path: Path):
    store = RedisStore("redis://:s3cret@127.0.0.1:1/0?patience=0.2")

    with pytest.raises(StoreError, match=r"could not be reached within .*that the URL is right") as caught:
        await store.enqueue([a_spec()])

    assert "s3cret" not in str(caught.value)
    await store.close()


async def test_calls_side_by_side_do_not_take_each_others_answers(twins: Twins):
    """Each call under way has a slot of its own; a lost answer is looked for in that one only."""
    twins.proxy.calls = 0
    twins.proxy.fate = lambda call: "swallow" if call % 3 == 1 else "pass"

    answers = await asyncio.gather(*(twins.bad.enqueue([a_spec(id=f"n-{n}")]) for n in range(40)))

    assert [answer[0].id for answer in answers] == [f"n-{n}" for n in range(40)]
    assert len({answer[0].seq for answer in answers}) == 40
    assert all(msgspec.structs.asdict(answer[0])["status"] == "queued" for answer in answers)
