"""The feed under crashes and clocks that are set: a reader misses nothing, and hears of a job in order."""

from __future__ import annotations

import asyncio

import pytest

from millrace.domain.change import Change
from millrace.domain.event import Event
from millrace.domain.job import Job, Lease
from millrace.domain.request import Extension, Receipt
from millrace.store.object.engine import numbers
from millrace.store.object.store import ObjectStore
from millrace.testing.builders import a_claim, a_spec
from tests.object.stopping import Client, World, crashed, meanwhile, world

__all__ = ["world"]

DELAY = 2_000


@pytest.fixture
def late() -> World:
    """Readers stay two seconds behind, as in a directory."""
    return World(feed_delay=DELAY)


async def told(store: ObjectStore, cursor: str | None = None) -> list[Event]:
    return [*(await store.events(cursor, 1_000)).events]


async def run(client: Client) -> None:
    [job] = await client.store.claim(a_claim())
    await client.store.settle([(job.lease, Change.completed())])


# the end of the feed


async def test_a_write_under_way_comes_after_the_end_of_the_feed(late: World) -> None:
    slow, quick = await late.client(own_numbers=True), await late.client(own_numbers=True)
    stop = slow.stop("write", "feed/")
    cursors: list[str] = []

    async def others() -> None:
        late.clock.advance(0.5)
        await quick.store.enqueue([a_spec(id="quick")])
        cursors.append((await quick.store.events("end", 10)).cursor)

    await meanwhile(slow.store.enqueue([a_spec(id="slow")]), stop, others)

    late.clock.advance(10)
    assert "slow" in [event.job for event in await told(quick.store, cursors[0])]


async def test_the_end_of_the_feed_is_the_clock_less_the_delay(late: World) -> None:
    client = await late.client()
    await client.store.enqueue([a_spec(id="before")])
    late.clock.advance(10)
    end = (await client.store.events("end", 10)).cursor
    await client.store.enqueue([a_spec(id="after")])
    late.clock.advance(10)

    assert [event.job for event in await told(client.store, end)] == ["after"]


# order after a crash


@pytest.mark.parametrize("waited", [0.1, 1.5, 30.0])
async def test_events_of_a_job_whose_enqueuer_died_come_in_order(late: World, waited: float) -> None:
    """Between the job and its part of the feed; then a worker takes the job, and a sweep comes by."""
    dead, worker = await late.client(own_numbers=True), await late.client(own_numbers=True)
    await crashed(dead.store.enqueue([a_spec(id="only")]), dead.stop("write", "feed/"))
    late.clock.advance(waited)
    await run(worker)
    late.clock.advance(60)
    await worker.store.sweep(full=True)
    late.clock.advance(60)

    assert [event.n for event in await told(worker.store)] == [1, 2, 3]


@pytest.mark.parametrize("waited", [0.1, 30.0])
async def test_a_reader_who_follows_hears_of_the_job_in_order(late: World, waited: float) -> None:
    dead, worker = await late.client(own_numbers=True), await late.client(own_numbers=True)
    heard: list[Event] = []
    cursor = (await worker.store.events("end", 1)).cursor

    async def read() -> None:
        nonlocal cursor
        page = await worker.store.events(cursor, 1_000)
        heard.extend(page.events)
        cursor = page.cursor

    await crashed(dead.store.enqueue([a_spec(id="only")]), dead.stop("write", "feed/"))
    late.clock.advance(waited)
    await read()
    await run(worker)
    for _ in range(5):
        late.clock.advance(1)
        await read()
    await worker.store.sweep(full=True)
    late.clock.advance(60)
    await read()

    assert [event.n for event in heard] == [1, 2, 3]


async def test_two_crashes_in_a_row_keep_the_order_of_a_job(late: World) -> None:
    """Neither the enqueue nor the claim told its event; the sweep finds both."""
    dead, worker = await late.client(own_numbers=True), await late.client(own_numbers=True)
    other = await late.client(own_numbers=True)
    await crashed(dead.store.enqueue([a_spec(id="only")]), dead.stop("write", "feed/"))
    late.clock.advance(30)
    await crashed(worker.store.claim(a_claim()), worker.stop("write", "feed/", skip=1))
    late.clock.advance(1)
    await other.store.sweep(full=True)
    late.clock.advance(60)
    await other.store.sweep(full=True)
    late.clock.advance(60)

    assert [event.n for event in await told(other.store)] == [1, 2]


async def test_an_enqueuer_who_is_only_slow_tells_nothing_twice(late: World) -> None:
    """The worker was faster than the last write of the enqueue, and has told its event for it."""
    slow, worker = await late.client(own_numbers=True), await late.client(own_numbers=True)

    await meanwhile(
        slow.store.enqueue([a_spec(id="one"), a_spec(id="two")]), slow.stop("write", "feed/"), lambda: run(worker)
    )

    late.clock.advance(60)
    events = await told(worker.store)
    assert sorted((event.job, event.n) for event in events) == [("one", 1), ("one", 2), ("one", 3), ("two", 1)]
    assert [event.n for event in events if event.job == "one"] == [1, 2, 3]


# a client that is suspended between the swap of the record and the feed


async def followed(late: World, reader: Client, cursor: str) -> list[int]:
    """The numbers of the events that a reader hears of in the next minute, after it has read up to `cursor`."""
    late.clock.advance(60)
    return [event.n for event in await told(reader.store, cursor)]


async def test_a_client_that_was_suspended_after_its_swap_publishes_its_event_once_and_a_reader_hears_it(
    late: World,
) -> None:
    slow, reader = await late.client(own_numbers=True), await late.client(own_numbers=True)
    cursors: list[str] = []

    async def others() -> None:
        await reader.store.enqueue([a_spec(id="other", queue="else")])
        late.clock.advance(5)
        cursors.append((await reader.store.events(None, 10)).cursor)

    await meanwhile(slow.store.enqueue([a_spec(id="slow")]), slow.stop("write", "tasks/", after=True), others)

    assert await followed(late, reader, cursors[0]) == [1]
    assert sorted(event.job for event in await told(reader.store)) == ["other", "slow"]
    assert [event.n for event in await reader.store.history("slow")] == [1]
    assert (await reader.store.sweep(full=True)).repairs == {}


async def test_an_event_that_another_client_has_published_for_a_suspended_one_is_not_published_again(
    late: World,
) -> None:
    """The worker found the enqueue missing in the feed, and ran the job."""
    slow, worker = await late.client(own_numbers=True), await late.client(own_numbers=True)

    async def others() -> None:
        late.clock.advance(5)
        await run(worker)

    await meanwhile(slow.store.enqueue([a_spec(id="slow")]), slow.stop("write", "tasks/", after=True), others)

    assert await followed(late, worker, "0-0-0") == [1, 2, 3]


async def test_of_the_jobs_of_a_suspended_client_only_those_that_nobody_has_published_are_published_late(
    late: World,
) -> None:
    slow, worker = await late.client(own_numbers=True), await late.client(own_numbers=True)

    async def others() -> None:
        late.clock.advance(5)
        [job] = await worker.store.claim(a_claim(1))
        await worker.store.settle([(job.lease, Change.completed())])

    jobs = [a_spec(id="one"), a_spec(id="two")]
    await meanwhile(slow.store.enqueue(jobs), slow.stop("write", "tasks/", skip=1, after=True), others)  # the primary

    late.clock.advance(60)
    events = [(event.job, event.n) for event in await told(worker.store)]
    assert sorted(events) == [("one", 1), ("one", 2), ("one", 3), ("two", 1)]


async def test_a_job_that_is_changed_while_its_late_event_moves_keeps_both_changes(late: World) -> None:
    """An extension writes no event, and wins against the first attempt to move the event of the claim."""
    worker = await late.client(own_numbers=True)
    await worker.store.enqueue([a_spec(id="only", lease=60_000)])
    extending = worker.stop("write", "tasks/", skip=1)

    async def suspended() -> None:
        late.clock.advance(5)

    async def claim() -> list[Job]:
        return await meanwhile(worker.store.claim(a_claim()), worker.stop("write", "tasks/", after=True), suspended)

    claiming = asyncio.create_task(claim())
    await extending.reached()
    other = await late.client(own_numbers=True)
    [held] = await other.store.get(["only"])
    assert held is not None and held.lease_id is not None
    lease = Lease("only", held.seq, held.lease_id)
    assert await other.store.extend([Extension(lease, 120_000)]) == [Receipt.OK]
    extending.go()
    [job] = await claiming

    assert (await worker.job("only")).lease_until == late.clock() + 120_000
    await worker.store.settle([(job.lease, Change.completed())])
    assert await followed(late, worker, "0-0-0") == [1, 2, 3]


async def test_a_job_whose_events_were_cut_off_the_feed_is_not_told_of_again(late: World) -> None:
    client, other = await late.client(own_numbers=True), await late.client(own_numbers=True)
    await client.store.control("store", "", {"keep_events": 60_000})
    await client.store.enqueue([a_spec(id="old")])
    late.clock.advance(3_600)
    while (await client.store.maintain()).more:
        pass
    assert await told(client.store) == []
    await run(other)
    late.clock.advance(60)

    assert [event.n for event in await told(client.store)] == [2, 3]


async def test_a_claim_reads_nothing_more_of_what_this_process_has_told_itself(world: World) -> None:
    client = await world.client()
    await client.store.enqueue([a_spec()])
    reads: list[str] = []
    read = client.blobs.read

    async def noted(wants):
        reads.extend(want.key for want in wants)
        return await read(wants)

    client.blobs.read = noted  # type: ignore[method-assign]
    await run(client)
    assert not [key for key in reads if key.startswith("feed/")]


# clocks that are set


async def test_a_clock_set_back_after_the_writers_were_killed_hides_nothing_from_a_reader(late: World) -> None:
    """The new writer knows nothing of the old one but what stands in the feed."""
    old = await late.client(own_numbers=True)
    await old.store.enqueue([a_spec(id="before")])
    late.clock.advance(10)
    page = await old.store.events(None, 10)
    assert [event.job for event in page.events] == ["before"]

    late.clock.advance(-3_600)
    new = await late.client(own_numbers=True)
    await new.store.enqueue([a_spec(id="after")])
    late.clock.advance(7_200)

    assert [event.job for event in await told(new.store, page.cursor)] == ["after"]


async def test_a_process_that_lived_through_a_clock_set_back_stays_behind_nobody(late: World) -> None:
    """It holds a number and drew nothing while another one, dead by now, went on."""
    idle, dead = await late.client(own_numbers=True), await late.client(own_numbers=True)
    await idle.store.enqueue([a_spec(id="first")])
    late.clock.advance(50)
    await idle.store.cancel(["nobody"])
    await dead.store.enqueue([a_spec(id="second")])
    late.clock.advance(5)
    page = await idle.store.events(None, 10)
    assert [event.job for event in page.events] == ["first", "second"]
    idle.store.engine.numbers.usable(late.clock())

    late.clock.advance(-30)
    await idle.store.enqueue([a_spec(id="third")])
    late.clock.advance(3_600)

    assert [event.job for event in await told(idle.store, page.cursor)] == ["third"]


async def test_a_clock_that_nobody_sets_shows_what_the_other_hid(late: World) -> None:
    """Set back to a moment after this process last looked: only the time that has passed tells."""
    passed = 0
    idle, dead = await late.client(own_numbers=True), await late.client(own_numbers=True)
    idle.store.engine.numbers.steady = lambda: passed
    await idle.store.enqueue([a_spec(id="first")])
    late.clock.advance(50)
    passed += 50_000
    await dead.store.enqueue([a_spec(id="second")])
    late.clock.advance(5)
    passed += 5_000
    page = await dead.store.events(None, 10)

    late.clock.advance(-30)
    await idle.store.enqueue([a_spec(id="third")])
    late.clock.advance(3_600)

    assert [event.job for event in await told(dead.store, page.cursor)] == ["third"]


async def test_a_clock_that_goes_back_by_little_costs_nothing(late: World) -> None:
    client = await late.client()
    await client.store.enqueue([a_spec()])
    before = client.store.engine.numbers.held
    late.clock.advance(-numbers.LEAST_STEP_BACK / 1000)
    await client.store.enqueue([a_spec()])

    assert client.store.engine.numbers.held is before
