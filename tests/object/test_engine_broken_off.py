"""Two clients, one of them cut off, standing still for long or without its answers; the feed and the sweep meanwhile.

Each test is one interleaving, as in test_engine_adversary.py.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import StoreError
from millrace.domain.job import State
from millrace.domain.request import Query, Receipt
from millrace.store.object.engine.values import JobValue, decode
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.store import ObjectStore
from millrace.store.object.sweep.index import FAMILIES
from millrace.testing.builders import a_burial, a_claim, a_reclaim, a_retry_change, a_spec, specs
from millrace.testing.clock import START
from tests.object.stopping import Client, World, crashed, meanwhile, world

__all__ = ["world"]


# cut off in the middle


async def test_a_claim_that_is_cut_off_keeps_nobody_from_the_job_for_longer_than_its_lease(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="one", group="g"), a_spec(id="two")])
    await crashed(a.store.claim(a_claim(2)), a.stop("write", "feed/"))

    assert await b.store.claim(a_claim(2)) == []
    world.clock.advance(3_600)
    assert {job.id for job in await b.store.reclaim(a_reclaim())} == {"one", "two"}
    a.blobs.stops[-1].go()  # it was slow, not dead: its part of the feed is still written


async def test_what_is_cancelled_after_it_was_decided_is_carried_through(world: World) -> None:
    """A worker that is told to stop while it claims leaves no half-written step behind."""
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="one", group="g")])
    stop = a.stop("write", "lines/")
    claiming = asyncio.ensure_future(a.store.claim(a_claim()))
    await stop.reached()
    claiming.cancel()
    stop.go()
    with pytest.raises(asyncio.CancelledError):
        await claiming

    assert (await b.job("one")).state is State.RUNNING
    assert [event.kind.value for event in (await b.store.events(None, 10)).events] == ["enqueued", "claimed"]


async def test_a_group_that_cannot_be_written_does_not_hide_what_was(world: World) -> None:
    """One job of a settle cannot be reached; the other's end is told and filed all the same."""
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="one", group="g"), a_spec(id="two")])
    held = {job.id: job for job in await a.store.claim(a_claim(2))}
    a.blobs.broken = lambda key: key.startswith("lines/")

    with pytest.raises(StoreError):
        await a.store.settle([(held[name].lease, Change.completed(b"1")) for name in ("one", "two")])
    a.blobs.broken = None

    assert (await b.job("two")).state is State.COMPLETED
    page = await b.store.events(None, 100)
    assert [event.n for event in page.events if event.job == "two"] == [1, 2, 3]
    receipts = await a.store.settle([(held["one"].lease, Change.completed(b"1"))])
    assert receipts == [Receipt.OK]


# answers that are lost


@pytest.mark.parametrize("change", [Change.completed(b"1"), a_retry_change()])
async def test_an_end_whose_answer_was_lost_is_known_though_others_have_gone_on_from_it(change) -> None:
    """The write landed, nobody said so, and before it could be looked at somebody else had written over it. (Its event
    may reach the feed behind what came after it.)"""
    world = World()
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="job")])
    [job] = await a.store.claim(a_claim())

    receipts = await meanwhile(
        a.store.settle([(job.lease, change)]),
        a.stop("write", "tasks/", after=True, cut=True),
        lambda: b.store.archive(["job"]),
        lambda: b.store.cancel(["job"]),
    )

    assert receipts == [Receipt.OK]
    assert [event.lease for event in await b.store.history("job")].count(job.lease.id) == 2
    world.clock.advance(20)
    await b.store.sweep(full=True)
    told = [event.n for event in (await b.store.events(None, 100)).events]
    assert sorted(told) == [1, 2, 3, 4]


async def test_an_end_that_was_lost_with_its_answer_is_told_as_lost(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="job")])
    [job] = await a.store.claim(a_claim())

    async def somebody_takes_over() -> None:
        world.clock.advance(120)
        [taken] = await b.store.reclaim(a_reclaim())
        await b.store.settle([(taken.lease, a_retry_change())])

    receipts = await meanwhile(
        a.store.settle([(job.lease, Change.completed(b"1"))]), a.stop("write", "tasks/", cut=True), somebody_takes_over
    )

    assert receipts == [Receipt.LOST]


async def index_keys_are_those_of_the_records(world: World, client: Client) -> None:
    """Without a sweep: nobody has crashed."""
    listed = [key for family in FAMILIES for key in await world.keys(family)]
    found = await client.store.engine.objects.read(await world.keys("tasks/"))
    named = [decode(seen.value, JobValue).index_key for seen in found if seen.value is not None]
    assert sorted(listed) == sorted(key for key in named if key)


@pytest.mark.parametrize("reaper", ["worker-1", "another"])
async def test_a_key_put_ahead_of_a_write_that_got_lost_goes_when_somebody_else_was_faster(
    world: World, reaper: str
) -> None:
    """The request was lost, not only its answer: the key is about what never was, whoever took the job over."""
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="job")])
    [job] = await a.store.claim(a_claim(worker="worker-1"))

    async def somebody_takes_over() -> None:
        world.clock.advance(120)
        [taken] = await b.store.reclaim(a_reclaim(worker=reaper))
        await b.store.settle([(taken.lease, a_burial())])

    receipts = await meanwhile(
        a.store.settle([(job.lease, a_retry_change())]), a.stop("write", "tasks/", cut=True), somebody_takes_over
    )

    assert receipts == [Receipt.LOST]
    await index_keys_are_those_of_the_records(world, b)


async def test_a_key_put_ahead_of_an_enqueue_that_got_lost_goes_when_somebody_else_was_faster(world: World) -> None:
    a, b = await world.client(), await world.client()

    [answer] = await meanwhile(
        a.store.enqueue([a_spec(id="job", queue="mine")]),
        a.stop("write", "tasks/", cut=True),
        lambda: b.store.enqueue([a_spec(id="job", queue="theirs")]),
    )

    assert answer.status == "duplicate"
    await index_keys_are_those_of_the_records(world, b)


@pytest.mark.parametrize("late", [0, 8])
@pytest.mark.parametrize("limits", [{}, {"max_running": 5}])
async def test_a_write_whose_answer_was_lost_is_finished_though_others_have_gone_on_from_it(
    world: World, limits: dict[str, int], late: int
) -> None:
    """Its old key goes and its event is told, also where an object of many jobs decides and is written over."""
    a, b = await world.client(), await world.client()
    await a.store.control("queue", "default", limits or {"paused": False})
    await a.store.enqueue([a_spec(id="job"), a_spec(id="other")])
    job, other = await a.store.claim(a_claim(2))

    async def others_go_on() -> None:
        await b.store.settle([(other.lease, Change.completed())])
        await b.store.archive(["job"] if not limits else ["other"])
        world.clock.advance(late)

    receipts = await meanwhile(
        a.store.settle([(job.lease, Change.completed(b"1"))]),
        a.stop("write", "control/" if limits else "tasks/", after=True, cut=True),
        others_go_on,
    )

    assert receipts == [Receipt.OK]
    assert "completed" in [event.kind.value for event in (await b.store.events(None, 100)).events if event.job == "job"]
    await index_keys_are_those_of_the_records(world, b)


async def test_a_claim_whose_answer_was_lost_is_handed_out_though_others_have_written_over_it(world: World) -> None:
    """Else nobody runs the job until its lease is over."""
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="job")])

    claimed = await meanwhile(
        a.store.claim(a_claim()),
        a.stop("write", "tasks/", after=True, cut=True),
        lambda: b.store.cancel(["job"], running="request"),
    )

    assert [job.id for job in claimed] == ["job"]
    assert await a.store.settle([(claimed[0].lease, Change.completed())]) == [Receipt.OK]
    await index_keys_are_those_of_the_records(world, b)


# the feed and a writer that stood still


@pytest.mark.parametrize(("late", "times"), [(1.0, 1), (2.5, 2)])
async def test_events_of_a_writer_that_stood_still_reach_a_reader_that_has_passed_their_place(late, times) -> None:
    """A reader stays behind the clock; who is later than that tells its events once more, further on."""
    world = World(feed_delay=2_000)
    a, b = await world.client(), await world.client()
    cursor: str | None = None

    async def others_go_on_and_are_read() -> None:
        nonlocal cursor
        await b.store.enqueue([a_spec(id="other")])
        world.clock.advance(late)
        cursor = (await b.store.events(None, 100)).cursor

    await meanwhile(a.store.enqueue([a_spec(id="slow")]), a.stop("write", "feed/"), others_go_on_and_are_read)
    world.clock.advance(10)

    everything = (await b.store.events(None, 100)).events
    assert [event.job for event in everything].count("slow") == times
    rest = (await b.store.events(cursor, 100)).events
    assert "slow" in [event.job for event in rest]


async def test_a_store_slower_than_its_feed_waits_does_not_stop_whoever_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MILLRACE_FEED_DELAY_MS may be set to less than what a write takes: every publisher is late."""
    world = World(feed_delay=20)
    a = await world.client()
    write, parts = a.store.blobs.driver.write, 0

    async def slowly(writes):
        nonlocal parts
        world.clock.advance(0.05)
        parts += any(one.key.startswith("feed/") for one in writes)
        return await write(writes)

    monkeypatch.setattr(a.store.blobs.driver, "write", slowly)
    await asyncio.wait_for(a.store.enqueue([a_spec(id="a")]), 60)

    assert parts == 1
    assert (await a.store.get(["a"]))[0] is not None


# the feed is cut


async def test_a_cut_of_the_feed_that_lost_against_new_settings_cuts_nothing(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.control("store", "", {"keep_events": 1_000})
    await a.store.enqueue(specs(3))
    world.clock.advance(2)

    await meanwhile(
        a.store.maintain(),
        a.stop("write", "control/store"),
        lambda: b.store.control("store", "", {"keep_events": None}),
    )

    assert len((await b.store.events(None, 100)).events) == 3


# lines


async def test_a_drain_of_a_lane_sees_who_has_just_come_in(world: World) -> None:
    """The line is read before its members are listed; the other way round, the newest would be forgotten in it."""
    a, b = await world.client(), await world.client()
    await a.store.control("queue", "default", {"lanes": 1})
    await a.store.enqueue([a_spec(id="one")])

    await meanwhile(
        a.store.drain("default", 1, 0),
        a.stop("list", "held/", after=True),
        lambda: b.store.enqueue([a_spec(id="two")]),
    )

    live = [job.id for job in (await b.store.find(Query(state="waiting"))).jobs]
    assert [job.id for job in await b.store.claim(a_claim(5))] == live


# a process that stands still for long


async def test_a_writer_that_stood_still_keeps_its_promise_to_look_again(world: World) -> None:
    """Others took what it had written before its swap for the leftover of a crash."""
    a, b = await world.client(), await world.client()

    async def much_later() -> None:
        world.clock.advance(300)
        await b.store.claim(a_claim())
        await b.store.maintain()

    await meanwhile(
        a.store.enqueue([a_spec(id="expired", expires=20), a_spec(id="late", group="g", delay=20)]),
        a.stop("write", "tasks/"),
        much_later,
    )

    world.clock.advance(1)
    await b.store.maintain()
    assert (await b.job("expired")).state is State.DEAD
    assert [job.id for job in await b.store.claim(a_claim(5))] == ["late"]


async def test_an_expired_job_at_the_head_stops_nobody_behind_it(world: World) -> None:
    """Even if nothing is left that tells of its end: the sweep finds it, and until then others run."""
    a = await world.client()
    await a.store.enqueue([a_spec(id="expired", expires=20), a_spec(id="behind")])
    await world.bucket.delete(await world.keys("due/"))
    world.clock.advance(30)

    assert [job.id for job in await a.store.claim(a_claim(5))] == ["behind"]


# the sweep among the living


async def test_a_recount_does_not_miss_a_job_whose_key_is_just_being_written(world: World) -> None:
    """The job and the counter are written, its ready key is not there yet: a listing knows less than the counter."""
    a, b = await world.client(), await world.client()
    await a.store.control("queue", "default", {"max_depth": 10})
    await a.store.enqueue(specs(2))

    await meanwhile(
        a.store.enqueue(specs(1)),
        a.stop("write", "ready/"),
        lambda: b.store.sweep(100_000, full=True),
    )

    [answer] = await b.store.enqueue(specs(1))
    assert answer.depth == 4


async def test_a_sweep_leaves_alone_what_has_just_been_begun(world: World) -> None:
    """Somebody's keys and pending writes are young: taking them for leftovers would only make trouble."""
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="one", group="g")])
    [job] = await a.store.claim(a_claim())

    receipts = await meanwhile(
        a.store.settle([(job.lease, Change.completed(b"1"))]),
        a.stop("write", "lines/"),
        lambda: b.store.sweep(100_000, full=True),
    )

    assert receipts == [Receipt.OK]
    assert (await b.job("one")).result == b"1"
    assert (await b.store.sweep(100_000, full=True)).abandoned == 0


async def test_an_operation_that_takes_long_to_decide_is_dated_anew_once_and_not_for_ever() -> None:
    """Thousands of jobs in one call take more than a second to decide: that must not look like standing still."""
    instants = itertools.count(START, 2_000)
    bucket = MemoryBlobs()
    store = ObjectStore(lambda: bucket, clock=lambda: next(instants), place="slow to decide")
    await store.connect()
    try:
        answers = await store.enqueue(specs(20))

        assert [answer.status for answer in answers] == ["queued"] * 20
        assert await store.drain("default") == 20
    finally:
        await store.close()
