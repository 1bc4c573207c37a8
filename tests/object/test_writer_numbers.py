"""Writer numbers: a lease each, so that no two processes ever draw the same seq or stamp."""

from __future__ import annotations

import asyncio

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import StoreError
from millrace.store.object.engine import numbers
from millrace.store.object.engine.numbers import COUNT, WRITERS
from millrace.store.object.engine.objects import Swap
from millrace.store.object.engine.values import WriterValue, decode, encode
from millrace.store.object.keys import Layout, stamp_of
from millrace.testing.builders import a_claim, a_spec, specs
from tests.narrowing import the
from tests.object.stopping import Client, World, meanwhile, world

__all__ = ["world"]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """A store with four writer numbers."""
    monkeypatch.setattr(numbers, "WRITERS", 4)
    return 4


@pytest.fixture
def forged() -> World:
    """What happens here no store does by itself, and no invariant allows for it."""
    return World()


async def records(world: World) -> dict[int, WriterValue]:
    judge = await world.client()
    keys = await world.keys("writers/")
    seen = await judge.store.engine.objects.read(keys)
    return {int(one.key[8:13]): decode(one.value or b"", WriterValue) for one in seen}


def writer(client: Client) -> int:
    held = client.store.engine.numbers.held
    assert held is not None
    return held.writer


async def enqueued(client: Client, number: int = 1) -> list[int]:
    return [answer.seq for answer in await client.store.enqueue(specs(number))]


async def test_processes_that_never_close_take_no_number_from_one_that_lives(world: World, few: int) -> None:
    """The worker lives longest; four times as many as there are numbers come and go without a word."""
    worker = await world.client(own_numbers=True)
    drawn = await enqueued(worker, 5)
    for _ in range(4 * few):
        world.clock.advance(40)
        drawn += await enqueued(worker, 5)
        gone = await world.client(own_numbers=True)
        drawn += await enqueued(gone, 5)
        assert writer(gone) != writer(worker)

    assert len(drawn) == len(set(drawn))
    page = await worker.store.events(None, 1_000)
    assert sorted(event.seq for event in page.events) == sorted(drawn)


async def test_thousands_of_unclosed_numbers_leave_everybody_one_of_their_own(world: World) -> None:
    worker = await world.client(own_numbers=True)
    drawn = await enqueued(worker, 3)
    objects = worker.store.engine.objects
    keys = [Layout.writer(number) for number in range(WRITERS) if number != writer(worker)]
    now = world.clock()
    for start in range(0, len(keys) - 100, 1_000):  # all but a hundred of them left by processes that were killed
        some = await objects.read(keys[start : min(start + 1_000, len(keys) - 100)])
        lapsed = encode(WriterValue(now - numbers.MARGIN))
        await objects.commit_all([([Swap(seen, lapsed)], None) for seen in some])

    for _ in range(20):
        short = await world.client(own_numbers=True)
        drawn += await enqueued(short, 3)
        assert writer(short) != writer(worker)
    drawn += await enqueued(worker, 3)

    assert len(drawn) == len(set(drawn))


async def test_when_every_number_is_held_the_next_process_is_told_so(world: World, few: int) -> None:
    holders = [await world.client(own_numbers=True) for _ in range(few)]
    for holder in holders:
        await enqueued(holder)
    assert sorted(map(writer, holders)) == [*range(few)]
    late = await world.client(own_numbers=True)

    with pytest.raises(StoreError, match=r"no writer number is free.*close the app"):
        await late.store.enqueue([a_spec()])

    assert await late.store.count()  # reading takes none
    await holders[0].store.close()
    assert await enqueued(late)
    for holder in holders[1:]:
        assert await enqueued(holder)


async def test_a_number_is_not_taken_over_before_its_lease_and_a_margin_are_over(world: World, few: int) -> None:
    for _ in range(few):
        await enqueued(await world.client(own_numbers=True))
    late = await world.client(own_numbers=True)
    world.clock.advance((numbers.LEASE + numbers.MARGIN) / 1000 - 1)

    with pytest.raises(StoreError, match="no writer number is free"):
        await late.store.enqueue([a_spec()])
    world.clock.advance(2)
    assert await enqueued(late)


async def test_a_process_that_could_not_renew_in_time_draws_another_number(world: World, few: int) -> None:
    frozen = await world.client(own_numbers=True)
    drawn = await enqueued(frozen, 3)
    before = writer(frozen)
    world.clock.advance(numbers.LEASE / 1000 + 6)
    others = [await world.client(own_numbers=True) for _ in range(few)]
    for other in others:
        drawn += await enqueued(other, 3)
    assert before in map(writer, others)
    world.clock.advance(1)

    with pytest.raises(StoreError, match="no writer number is free"):
        await frozen.store.enqueue([a_spec()])
    await others[0].store.close()
    drawn += await enqueued(frozen, 3)

    assert writer(frozen) == writer_of_the_closed(others[0], await records(world), others[1:])
    assert len(drawn) == len(set(drawn))


def writer_of_the_closed(closed: Client, kept: dict[int, WriterValue], others: list[Client]) -> int:
    assert closed.store.engine.numbers.held is None
    [free] = set(kept) - set(map(writer, others))
    return free


async def test_a_live_process_keeps_its_number_as_long_as_it_writes(world: World) -> None:
    worker = await world.client(own_numbers=True)
    await enqueued(worker)
    first = writer(worker)
    for _ in range(10):
        world.clock.advance(50)
        await enqueued(worker)
        assert writer(worker) == first
        assert (await records(world))[first].until > world.clock()


async def test_a_new_holder_begins_after_the_last_ones_lease_whatever_the_clock_says(forged: World, few: int) -> None:
    """The clock was set back by a minute: the numbers of the one before are not drawn again."""
    drawn: list[int] = []
    for _ in range(3 * few):
        client = await forged.client(own_numbers=True)
        drawn += await enqueued(client, 200)
        await client.store.close()
        forged.clock.advance(-1)

    assert len(drawn) == len(set(drawn))


async def test_connecting_and_reading_write_nothing_and_do_not_depend_on_how_many_came_before(world: World) -> None:
    first = await world.client(own_numbers=True)
    await first.store.enqueue([a_spec(id="there")])
    for _ in range(50):
        await enqueued(await world.client(own_numbers=True))
    before = world.bucket.requests.copy()

    reader = await world.client(own_numbers=True)
    connected = world.bucket.requests - before
    await reader.store.get(["there"])
    await reader.store.events(None, 10)
    await reader.store.close()

    assert connected == {"get": 1}
    assert (world.bucket.requests - before)["put"] == 0


async def test_a_first_write_costs_the_same_however_many_came_before(world: World) -> None:
    async def cost() -> int:
        client = await world.client(own_numbers=True)
        before = world.bucket.requests.copy()
        await client.store.enqueue([a_spec()])
        return sum((world.bucket.requests - before).values())

    first = await cost()
    costs = [await cost() for _ in range(60)]
    assert max(costs) <= first + 6  # a number that is held by another is met now and then, and another one drawn


# parts of the feed


async def test_a_collision_of_stamps_overwrites_nothing(forged: World, few: int) -> None:
    """Two processes that hold one number, as nothing but a forged record makes possible: all is told."""
    a, b = await forged.client(own_numbers=True), await forged.client(own_numbers=True)
    seqs = await enqueued(a, 3)
    b.store.engine.numbers.begin(the(a.store.engine.numbers.held), 0)
    b.store.engine.numbers.seqs.seen(a.store.engine.numbers.seqs.last + 1_000_000)
    for _ in range(20):
        seqs += await enqueued(b, 2)
        seqs += await enqueued(a, 2)

    page = await a.store.events(None, 1_000)
    assert b.store.blobs.tally["lost"] + a.store.blobs.tally["lost"] > 0  # they did meet
    assert sorted({event.seq for event in page.events}) == sorted(set(seqs))


async def test_a_part_of_the_feed_that_is_there_is_never_written_over(forged: World) -> None:
    a, b = await forged.client(own_numbers=True), await forged.client(own_numbers=True)
    await b.store.enqueue([a_spec(id="other")])
    [there] = await forged.keys("feed/")
    part = await b.store.blobs.get(there)
    assert part is not None

    async def take_its_place() -> None:
        stamp = a.store.engine.numbers.stamps.last
        foreign = part.body.replace(b'"stamp":%d' % stamp_of(there), b'"stamp":%d' % stamp)
        await b.store.blobs.create(Layout.feed(stamp), foreign)

    await meanwhile(a.store.enqueue([a_spec(id="mine")]), a.stop("write", "feed/"), take_its_place)

    page = await b.store.events(None, 100)
    assert [event.job for event in page.events] == ["other", "other", "mine"]


async def test_handles_of_one_process_share_a_number_and_renew_it_together(world: World) -> None:
    handles = [await world.client() for _ in range(3)]
    drawn: list[int] = []
    for _ in range(4):
        found = await asyncio.gather(*(enqueued(handle, 5) for handle in handles))
        drawn += [seq for some in found for seq in some]
        world.clock.advance(70)

    assert len(drawn) == len(set(drawn))
    [job] = await handles[0].store.claim(a_claim())
    await handles[1].store.settle([(job.lease, Change.completed())])
    assert len((await handles[2].store.events(None, 1_000)).events) == len(drawn) + 2


def test_numbers_of_one_writer_stay_within_its_milliseconds() -> None:
    drawn = numbers.Numbers()
    with pytest.raises(numbers.NumberNeeded):
        drawn.seqs.draw(5)
    drawn.begin(numbers.Holding(7, 10, 13, None, 5), 0)  # type: ignore[arg-type]
    found = [drawn.seqs.draw(5) for _ in range(3 << numbers.BLOCK)]
    with pytest.raises(numbers.NumberNeeded):
        drawn.seqs.draw(5)

    assert {seq >> COUNT for seq in found} == {10, 11, 12}
    assert {(seq >> numbers.BLOCK) % WRITERS for seq in found} == {7}
    assert found == sorted(set(found))
