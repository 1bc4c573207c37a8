"""The faulty store does what its plan says; and what the protocol calls safe to ask again, is."""

from __future__ import annotations

import inspect

import pytest

from millrace.domain.change import Change
from millrace.domain.request import Query, Receipt
from millrace.store.memory import MemoryStore
from millrace.store.protocol import Store
from millrace.testing import Fault, FaultyStore, InjectedFault, VirtualClock, assert_holds, gather, scripted, seeded
from millrace.testing.builders import a_claim, a_reclaim, a_spec, a_worker, an_extension, seconds, specs
from millrace.testing.clock import START


@pytest.fixture
def inner() -> MemoryStore:
    return MemoryStore(clock=VirtualClock())


def test_it_is_a_store_with_every_method_of_the_protocol(inner: MemoryStore) -> None:
    faulty = FaultyStore(inner)

    assert isinstance(faulty, Store)
    assert (faulty.url, faulty.ids) == (inner.url, inner.ids)
    wanted = {name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")}
    assert wanted <= set(vars(FaultyStore))


async def test_without_faults_it_passes_everything_on(inner: MemoryStore) -> None:
    store = FaultyStore(inner)
    await store.connect()
    spec = a_spec()
    assert (await store.enqueue([spec]))[0].status == "queued"
    [job] = await store.claim(a_claim())
    assert await store.extend([an_extension(job)]) == [Receipt.OK]
    assert await store.settle([(job.lease, Change.completed())]) == [Receipt.OK]
    assert await store.reclaim(a_reclaim()) == []
    await store.wait(["default"], None, 0)
    assert [found and found.id for found in await store.get([spec.id])] == [spec.id]
    assert len((await store.find(Query())).jobs) == 1
    assert (await store.count())[0].completed == 1
    assert await store.position(spec.id) is None
    assert await store.lanes("default") == []
    assert len(await store.history(spec.id)) == len((await store.events(None, 9)).events) == 3
    async with store.watch(spec.id) as watch:
        await watch.wait(0)
    [span] = await store.event_spans(None, 1)
    assert [len(events) async for events in store.scan_events(span)] == [3]
    assert await store.events_before(None, 2) == await inner.events_before(None, 2)
    [part] = await store.partitions(1)
    assert [len(batch) async for batch in store.scan(part)] == [1]
    assert [answer.value for answer in await store.cancel([spec.id])] == ["completed"]
    assert [answer.value for answer in await store.archive([spec.id])] == ["done"]
    assert [answer.value for answer in await store.replay([spec.id])] == ["replayed"]
    assert await store.control("queue", "default", {}) == await inner.control("queue", "default", {})
    assert await store.drain("default") == 1
    assert await store.obliterate("default") == 1
    assert (await store.maintain()).pruned == 0
    await store.beat(a_worker(), seconds(9))
    assert len(await store.workers()) == 1
    await store.beat(a_worker(), 0)
    assert await store.workers() == []
    assert await store.now() == await inner.now()
    assert store.for_loop().url == store.url
    await store.close()
    assert store.calls["enqueue"] == store.calls["settle"] == 1
    assert set(store.faults) == set()


async def test_an_error_before_the_effect_does_nothing(inner: MemoryStore) -> None:
    store = FaultyStore(inner, scripted(("enqueue", 1, Fault.BEFORE)))
    with pytest.raises(InjectedFault, match="enqueue, call 1, fails before") as failed:
        await store.enqueue([a_spec()])

    assert (failed.value.method, failed.value.number, failed.value.fault) == ("enqueue", 1, Fault.BEFORE)
    assert await inner.count() == []
    await store.enqueue([a_spec()])
    assert (store.calls["enqueue"], store.faults[Fault.BEFORE]) == (2, 1)


async def test_after_a_lost_reply_an_enqueue_may_be_asked_again(inner: MemoryStore) -> None:
    """BW-14, BO-05."""
    store = FaultyStore(inner, scripted(("enqueue", 1, Fault.AFTER)))
    asked = specs(3)
    with pytest.raises(InjectedFault):
        await store.enqueue(asked)
    answers = await store.enqueue(asked)

    assert [answer.status for answer in answers] == ["queued"] * 3
    assert (await inner.count())[0].waiting == 3


async def test_after_a_lost_reply_a_settle_is_not_written_twice(inner: MemoryStore) -> None:
    store = FaultyStore(inner, scripted(("settle", 1, Fault.AFTER)))
    await store.enqueue([a_spec()])
    [job] = await store.claim(a_claim())
    with pytest.raises(InjectedFault):
        await store.settle([(job.lease, Change.completed(b"1"))])

    assert await store.settle([(job.lease, Change.completed(b"2"))]) == [Receipt.LOST]
    [done] = await inner.get([job.id])
    assert done is not None and done.result == b"1"


@pytest.mark.parametrize("method", ["enqueue", "settle", "extend", "cancel", "replay", "archive", "control", "drain"])
async def test_a_request_that_arrives_twice_happens_once(inner: MemoryStore, method: str) -> None:
    store = FaultyStore(inner, scripted((method, 1, Fault.TWICE)))
    spec = a_spec()
    await store.enqueue([spec, a_spec(id="other")])
    [job] = await store.claim(a_claim())
    await store.extend([an_extension(job)])
    await store.settle([(job.lease, Change.completed())])
    await store.cancel(["other"])
    await store.replay(["other"])
    await store.archive([spec.id])
    await store.control("queue", "default", {"max_depth": 5})
    await store.drain("default")

    assert store.faults == {Fault.TWICE: 1}
    assert len(await inner.history("other")) == 4
    assert len(await inner.history(spec.id)) == 4
    assert_holds(await gather(inner, since=START))


async def test_a_delay_is_only_a_delay(inner: MemoryStore) -> None:
    store = FaultyStore(inner, scripted(("enqueue", 1, Fault.DELAY)), delay=0.001)

    assert (await store.enqueue([a_spec()]))[0].status == "queued"
    assert store.calls["enqueue"] == 1


def test_the_same_seed_gives_the_same_faults() -> None:
    chances = {Fault.BEFORE: 0.2, Fault.AFTER: 0.2, Fault.TWICE: 0.1}
    one, two, other = (seeded(seed, chances) for seed in (7, 7, 8))
    drawn = [[plan("settle", n) for n in range(500)] for plan in (one, two, other)]

    assert drawn[0] == drawn[1] != drawn[2]
    assert 60 < drawn[0].count(Fault.BEFORE) < 140
    assert 20 < drawn[0].count(Fault.TWICE) < 80
    assert 190 < drawn[0].count(None) < 310


def test_methods_that_are_not_named_stay_whole() -> None:
    plan = seeded(1, {Fault.BEFORE: 1.0}, frozenset({"settle"}))

    assert (plan("settle", 1), plan("claim", 1)) == (Fault.BEFORE, None)


async def test_a_faulty_hour_breaks_no_invariant(inner: MemoryStore) -> None:
    store = FaultyStore(inner, seeded(3, {Fault.BEFORE: 0.1, Fault.AFTER: 0.1, Fault.TWICE: 0.1}))
    for _ in range(300):
        try:
            await store.enqueue(specs(2, group="g"))
            jobs = await store.claim(a_claim(3))
            await store.settle([(job.lease, Change.completed()) for job in jobs])
        except InjectedFault:
            continue

    assert_holds(await gather(inner, since=START))
