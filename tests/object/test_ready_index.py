"""One listing serves many claims (BO-15): when it is used again, when the next is fetched, and what is kept up with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from millrace.domain.errors import StoreError
from millrace.domain.request import Extension, Receipt
from millrace.domain.rules import transition
from millrace.store.object.blobs import Blobs
from millrace.store.object.claims.ready import STALE, ReadyIndex
from millrace.store.object.driver import Expect, Write
from millrace.store.object.keys import Layout
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.testing.builders import a_claim, a_spec, specs
from millrace.testing.clock import VirtualClock

QUEUES = frozenset({"q"})
NOW = 1_700_000_000_000


class Watched(Blobs):
    """Blobs whose listings are counted, and held or refused on demand."""

    def __init__(self) -> None:
        super().__init__(MemoryBlobs())
        self.listings = 0
        self.held: asyncio.Event | None = None
        self.refuses = False

    async def list(self, *args, **kwargs):
        self.listings += 1
        page = await super().list(*args, **kwargs)  # as it is when it is asked for
        if self.held is not None:
            await self.held.wait()
        if self.refuses:
            raise StoreError("no answer")
        return page


@pytest.fixture
def blobs() -> Watched:
    return Watched()


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """Seconds, moved by hand."""
    seconds = [100.0]
    monkeypatch.setattr("millrace.store.object.claims.ready.time.monotonic", lambda: seconds[0])
    return seconds


def key(number: int, layout: Layout | None = None) -> str:
    job, _ = transition.enqueue(a_spec(id=f"job-{number}", queue="q"), number, 1, NOW)
    job.open = True
    return (layout or Layout()).state_key(job, 1, "nonce")


async def put(blobs: Blobs, numbers: Iterable[int], layout: Layout | None = None) -> None:
    await blobs.write_many([Write(key(number, layout), b"", Expect.ANYTHING, False) for number in numbers])


@pytest.fixture
def index(blobs: Watched, clock: list[float]) -> ReadyIndex:
    return ReadyIndex(blobs, Layout(), ObjectOptions(listing_reuse=1_000))


async def names(index: ReadyIndex, limit: int = 2) -> list[str]:
    return [entry.name for entry in await index.look(QUEUES, None, NOW, limit, ())]


async def rounds() -> None:
    """Let what runs beside come to where it waits."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_a_fresh_listing_serves_again(index: ReadyIndex, blobs: Watched, clock: list[float]):
    await put(blobs, range(1, 5))

    assert await names(index) == ["job-1", "job-2"]
    clock[0] += 0.9
    assert await names(index) == ["job-1", "job-2"]
    await rounds()
    assert blobs.listings == 1


async def test_one_that_has_too_little_is_listed_anew_at_once(index: ReadyIndex, blobs: Watched):
    await put(blobs, [1])
    assert await names(index) == ["job-1"]
    await put(blobs, [2])

    assert await names(index) == ["job-1", "job-2"]
    assert blobs.listings == 2


async def test_an_older_one_still_serves_while_the_next_is_fetched_beside(
    index: ReadyIndex, blobs: Watched, clock: list[float]
):
    await put(blobs, range(2, 6))
    await names(index)
    await put(blobs, [1])
    clock[0] += 1.1
    blobs.held = asyncio.Event()

    assert await names(index) == ["job-2", "job-3"], "a claim does not wait for it"
    assert await names(index) == ["job-2", "job-3"]
    await rounds()
    assert blobs.listings == 2, "one is fetched, however many claims come"
    blobs.held.set()
    await rounds()
    assert await names(index) == ["job-1", "job-2"]
    assert blobs.listings == 2


async def test_a_claim_after_a_pause_waits_for_a_listing(index: ReadyIndex, blobs: Watched, clock: list[float]):
    await put(blobs, range(2, 6))
    await names(index)
    await put(blobs, [1])
    clock[0] += STALE

    assert await names(index) == ["job-1", "job-2"]


async def test_what_comes_and_goes_while_a_listing_is_fetched_is_not_lost_to_it(
    index: ReadyIndex, blobs: Watched, clock: list[float]
):
    await put(blobs, range(2, 8))
    await names(index)
    clock[0] += 1.1
    blobs.held = asyncio.Event()
    await names(index)
    await rounds()  # the listing was taken, and has not arrived
    index.added([key(1)])
    index.removed([key(2)])
    blobs.held.set()
    await rounds()

    assert await names(index, limit=3) == ["job-1", "job-3", "job-4"]
    assert blobs.listings == 2


async def test_a_listing_that_was_under_way_when_all_was_forgotten_does_not_count_as_fresh(
    index: ReadyIndex, blobs: Watched, clock: list[float]
):
    await put(blobs, range(2, 6))
    await names(index)
    clock[0] += 1.1
    blobs.held = asyncio.Event()
    await names(index)
    await rounds()
    index.forget()
    await put(blobs, [1])
    blobs.held.set()
    await rounds()

    assert await names(index) == ["job-1", "job-2"]


async def test_trouble_with_a_listing_beside_is_told_to_the_claim_that_needs_one(
    index: ReadyIndex, blobs: Watched, clock: list[float]
):
    await put(blobs, range(1, 5))
    await names(index)
    blobs.refuses = True
    clock[0] += 1.1

    assert await names(index) == ["job-1", "job-2"]
    await rounds()
    clock[0] += 1.0
    with pytest.raises(StoreError, match="no answer"):
        await names(index)


async def test_a_listing_that_takes_long_serves_for_longer(blobs: Watched, clock: list[float]):
    """So that a worker spends a share of its time on listings, not all of it."""
    index = ReadyIndex(blobs, Layout(), ObjectOptions(listing_reuse=250))
    await put(blobs, range(1, 5))
    blobs.held = asyncio.Event()
    asking = asyncio.create_task(names(index))
    await rounds()
    clock[0] += 0.15
    blobs.held.set()
    await asking
    clock[0] += 0.5

    await names(index)
    await rounds()
    assert blobs.listings == 1
    clock[0] += 0.25
    await names(index)
    await rounds()
    assert blobs.listings == 2


async def test_a_listing_that_comes_late_does_not_replace_a_newer_one(
    index: ReadyIndex, blobs: Watched, clock: list[float]
):
    await put(blobs, range(2, 6))
    await names(index)
    clock[0] += 1.1
    late = blobs.held = asyncio.Event()
    await names(index)
    await rounds()
    blobs.held = None
    await put(blobs, [1])
    clock[0] += 1.5
    assert await names(index) == ["job-1", "job-2"], "a claim that could not wait"
    late.set()
    await rounds()

    assert await names(index) == ["job-1", "job-2"]
    assert blobs.listings == 3


async def test_what_is_in_a_listing_and_told_as_well_counts_once(index: ReadyIndex, blobs: Watched, clock: list[float]):
    await put(blobs, range(1, 9))
    await names(index)
    clock[0] += 1.1
    blobs.held = asyncio.Event()
    await names(index)
    await rounds()
    index.added([key(1), key(2)])
    blobs.held.set()
    await rounds()

    assert await names(index, limit=4) == ["job-1", "job-2", "job-3", "job-4"]
    assert blobs.listings == 2


@pytest.mark.parametrize(("digits", "at_once"), [(1, 1), (2, 16)])
async def test_beside_claims_a_few_shards_are_listed_one_by_one_and_many_side_by_side(
    blobs: Watched, clock: list[float], digits, at_once
):
    """Else the next listing of 256 shards would come when it is too old to serve."""
    layout = Layout(digits)
    index = ReadyIndex(blobs, layout, ObjectOptions(listing_reuse=1_000))
    await put(blobs, range(1, 1_201), layout)
    await names(index)
    clock[0] += 1.1
    before = blobs.listings
    blobs.held = asyncio.Event()
    await names(index)
    await rounds()

    assert blobs.listings - before == at_once
    await index.close()


async def test_a_listing_that_is_on_its_way_for_long_is_waited_for_by_nobody(blobs: Watched, clock: list[float]):
    index = ReadyIndex(blobs, Layout(), ObjectOptions(listing_reuse=250))
    await put(blobs, range(1, 5))
    await names(index)
    clock[0] += 0.3
    blobs.held = asyncio.Event()
    await names(index)
    await rounds()
    clock[0] += STALE * 0.25

    assert await names(index) == ["job-1", "job-2"]
    assert blobs.listings == 2
    await index.close()


async def test_beside_claims_listings_leave_most_of_the_time_to_them_but_not_for_ever(
    blobs: Watched, clock: list[float], monkeypatch
):
    """A listing of everything and one of each of 16 shards, each of which takes 10 ms."""
    index = ReadyIndex(blobs, Layout(), ObjectOptions(listing_reuse=1_000))
    await put(blobs, range(1, 1_201))
    await names(index)
    clock[0] += 1.1
    before, pauses = blobs.listings, []
    plain, at_once = blobs.list, asyncio.sleep

    async def slowly(*args, **kwargs):
        clock[0] += 0.01
        return await plain(*args, **kwargs)

    async def counted(seconds):
        pauses.append(seconds)
        clock[0] += seconds
        await at_once(0)

    monkeypatch.setattr(blobs, "list", slowly)
    await names(index)
    monkeypatch.setattr("millrace.store.object.claims.ready.asyncio.sleep", counted)
    while blobs.listings < before + 16:
        await at_once(0)
    await index.close()

    assert pauses[0] == pytest.approx(0.04), "a fifth of the time is spent on listings …"
    assert 10 <= len(pauses) < 15, "… until the next has been long enough on its way"


async def test_a_swap_that_was_lost_by_who_runs_a_job_says_nothing_of_those_that_wait():
    """Heartbeats and ends race all the time; a claim after each of them would list anew."""
    clock, memory = VirtualClock(), MemoryBlobs()
    options = ObjectOptions(look_every=0, listing_reuse=60_000, feed_delay=0, lock_patience=1)
    store, other = (ObjectStore(lambda: memory, clock=clock, options=options) for _ in range(2))
    await store.connect()
    await other.connect()
    await store.enqueue(specs(4))
    [job] = await store.claim(a_claim(limit=1))
    await other.cancel([job.id], "request")  # the record is no longer as this process remembers it

    before = memory.requests["list"]
    assert await store.extend([Extension(job.lease, 1_000)]) == [Receipt.CANCELLING]
    assert store.engine.tally["lost"] == 1
    assert len(await store.claim(a_claim(limit=1))) == 1
    assert memory.requests["list"] == before + 1, "a look for what has become due, and no other"
