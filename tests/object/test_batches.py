"""Many jobs in one call: what they need is read together, and they do not make each other fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import pytest

from millrace.domain.change import Change
from millrace.domain.job import Job, Spec
from millrace.domain.request import Claim
from millrace.store.object.blobs import MAX_PAGE
from millrace.store.object.driver import Read, Want
from millrace.store.object.engine.line_table import LONGEST_HEAD
from millrace.store.object.engine.objects import Swap
from millrace.store.object.engine.values import Head, LineValue, encode, value_of
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.testing.builders import a_spec
from tests.narrowing import the

OPTIONS = ObjectOptions(feed_delay=0, look_every=3_600_000, index_mode="index-only")
FEW, MANY = 20, 80


class CountedBlobs(MemoryBlobs):
    """Counts the calls that read, however many objects each of them reads."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def read(self, wants: Sequence[Want]) -> Sequence[Read]:
        self.calls += 1
        return await super().read(wants)


async def opened(driver: MemoryBlobs) -> ObjectStore:
    store = ObjectStore(lambda: driver, options=OPTIONS, place="here")
    await store.connect()
    return store


async def claimed(store: ObjectStore, limit: int) -> list[Job]:
    return await store.claim(Claim(("default",), "worker", limit))


async def settle(store: ObjectStore, jobs: Sequence[Job]) -> None:
    await store.settle([(job.lease, Change.completed()) for job in jobs])


def in_groups(jobs: int) -> list[Spec]:
    """Two members per group."""
    return [a_spec(id=f"j{n}", group=f"g{n // 2}") for n in range(2 * jobs)]


def with_keys(jobs: int) -> list[Spec]:
    return [a_spec(id=f"j{n}", key=f"k{n}") for n in range(jobs)]


def in_pairs(jobs: int) -> list[Spec]:
    parents = [a_spec(id=f"p{n}") for n in range(jobs)]
    return [*parents, *(a_spec(id=f"c{n}", after=(f"p{n}",)) for n in range(jobs))]


async def calls_of_each_step(specs: list[Spec], jobs: int) -> dict[str, int]:
    """Enqueue the specs, then claim and settle `jobs` jobs. Return the calls that read, by step."""
    driver = CountedBlobs()
    store = await opened(driver)
    await store.enqueue([a_spec()])
    await settle(store, await claimed(store, 1))
    calls: dict[str, int] = {}
    taken: list[Job] = []

    async def take() -> None:
        taken.extend(await claimed(store, jobs))

    async def step(name: str, act: Callable[[], Awaitable[object]]) -> None:
        before = driver.calls
        await act()
        calls[name] = driver.calls - before

    await step("enqueue", lambda: store.enqueue(specs))
    await step("claim", take)
    assert len(taken) == jobs
    await step("settle", lambda: settle(store, taken))
    assert len(await claimed(store, 2 * jobs)) == len(specs) - jobs, "the next ones are not claimable"
    await store.close()
    return calls


@pytest.mark.parametrize("specs", [in_groups, with_keys, in_pairs])
async def test_many_jobs_are_read_in_as_many_calls_as_few(specs: Callable[[int], list[Spec]]):
    few = await calls_of_each_step(specs(FEW), FEW)
    many = await calls_of_each_step(specs(MANY), MANY)

    assert few == many


async def test_the_next_members_of_many_groups_are_found_without_a_listing():
    driver = MemoryBlobs()
    store = await opened(driver)
    await store.enqueue(in_groups(MANY))
    jobs = await claimed(store, MANY)
    before = Counter(driver.requests)

    await settle(store, jobs)

    assert (Counter(driver.requests) - before)["list"] == 0
    assert sorted(job.id for job in await claimed(store, MANY)) == sorted(f"j{2 * n + 1}" for n in range(MANY))


async def test_the_next_members_are_found_if_one_page_cannot_hold_all_members():
    store = await opened(MemoryBlobs())
    await store.enqueue([a_spec(id=f"j{n}", group=f"g{n % MANY}") for n in range(MAX_PAGE + 2 * MANY)])

    await settle(store, await claimed(store, MANY))

    assert [job.id for job in await claimed(store, MANY)] == [f"j{MANY + n}" for n in range(MANY)]


async def test_a_group_without_waiting_members_is_not_listed():
    driver = MemoryBlobs()
    store = await opened(driver)
    await store.enqueue([a_spec(id=f"j{n}", group=f"g{n}") for n in range(MANY)])
    jobs = await claimed(store, MANY)
    before = Counter(driver.requests)

    await settle(store, jobs)

    assert (Counter(driver.requests) - before)["list"] == 0


async def test_a_better_member_takes_the_place_of_the_open_one_without_a_listing():
    driver = MemoryBlobs()
    store = await opened(driver)
    await store.enqueue([a_spec(id="first", group="g"), a_spec(id="second", group="g")])
    before = Counter(driver.requests)

    await store.enqueue([a_spec(id=f"urgent-{n}", group="g", priority=n) for n in (3, 7, 5)])

    assert (Counter(driver.requests) - before)["list"] == 0
    order: list[str] = []
    for _ in range(5):
        [job] = await claimed(store, 5)
        order.append(job.id)
        await settle(store, [job])
    assert order == ["urgent-7", "urgent-5", "urgent-3", "first", "second"]


async def test_a_stale_key_at_the_head_of_a_group_does_not_hide_its_next_member():
    driver = MemoryBlobs()
    store = await opened(driver)
    await store.enqueue([a_spec(id=f"j{n}", group="g") for n in range(4)])
    stale = await store.blobs.all_keys("held/default/")
    for _ in range(2):
        await settle(store, await claimed(store, 1))
    await store.blobs.put_many(dict.fromkeys(stale, b""))

    await settle(store, await claimed(store, 1))

    assert [job.id for job in await claimed(store, 4)] == ["j3"]


async def test_a_group_with_more_members_than_its_line_names_is_worked_off_in_order():
    driver = MemoryBlobs()
    store = await opened(driver)
    priorities = [n % 3 for n in range(3 * LONGEST_HEAD)]
    specs = [a_spec(id=f"{n:02}", group="g", priority=priority) for n, priority in enumerate(priorities)]
    for start in range(0, len(specs), 5):
        await store.enqueue(specs[start : start + 5])

    order: list[str] = []
    listings = 0
    for _ in specs:
        [job] = await claimed(store, 5)
        order.append(job.id)
        before = driver.requests["list"]
        await settle(store, [job])
        listings += driver.requests["list"] - before

    assert order == [spec.id for spec in sorted(specs, key=lambda spec: (-spec.priority, spec.id))]
    assert listings < len(specs) / 2


async def test_a_member_that_was_cancelled_is_not_next():
    store = await opened(MemoryBlobs())
    await store.enqueue([a_spec(id=f"j{n}", group="g") for n in range(4)])
    [job] = await claimed(store, 1)
    await store.cancel(["j1", "j2"])

    await settle(store, [job])

    assert [job.id for job in await claimed(store, 4)] == ["j3"]


async def test_the_next_member_of_a_line_that_names_none_is_found_by_listing():
    """Earlier releases stored lines like this."""
    store = await opened(MemoryBlobs())
    await store.enqueue([a_spec(id=f"j{n}", group="g") for n in range(3)])
    [job] = await claimed(store, 1)
    [seen] = await store.engine.objects.read(await store.blobs.all_keys("lines/"))
    value = the(value_of(seen, LineValue))
    assert [member.seq for member in value.head.members], "the line names its members"
    value.head = Head()
    await store.engine.objects.commit([Swap(seen, encode(value))])

    await settle(store, [job])

    assert [job.id for job in await claimed(store, 3)] == ["j1"]


async def test_a_large_batch_with_groups_is_written_once():
    driver = MemoryBlobs()
    store = await opened(driver)
    await store.enqueue([a_spec()])
    before = Counter(driver.requests)

    await store.enqueue([a_spec(group=f"g{n}") for n in range(MANY)])

    jobs, lines, index_keys, manifest, feed = MANY, MANY, MANY, 1, 1
    assert (Counter(driver.requests) - before)["put"] == jobs + lines + index_keys + manifest + feed


async def test_calls_of_one_process_do_not_make_each_other_fail_at_a_queue_that_counts():
    store = await opened(MemoryBlobs())
    await store.control("queue", "default", {"rate": 1_000_000})
    await store.enqueue([a_spec() for _ in range(60)])
    running = await claimed(store, 30)

    async def enqueue() -> None:
        await store.enqueue([a_spec() for _ in range(10)])

    more, *_ = await asyncio.gather(
        claimed(store, 30), settle(store, running[:15]), settle(store, running[15:]), enqueue(), enqueue()
    )

    assert store.engine.tally["lost"] == 0
    [counts] = await store.count()
    assert (counts.waiting, counts.running, counts.completed) == (20, len(more), 30)
    assert len(more) == 30
