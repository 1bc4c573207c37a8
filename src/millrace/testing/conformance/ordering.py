"""The order of claims: by priority, due time and seq. With a fair share, some claims take the job that has been due
longest.
"""

from __future__ import annotations

from millrace.store.protocol import Store
from millrace.testing.builders import a_spec, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import control, put, put_completed, retry, take, take_ids


async def test_equal_priorities_are_first_in_first_out(store: Store, clock: VirtualClock) -> None:
    asked = specs(20)
    await store.enqueue(asked)

    taken = [await take(store) for _ in asked]

    assert [job.id for job in taken] == [spec.id for spec in asked]


async def test_higher_priorities_go_first(store: Store, clock: VirtualClock) -> None:
    low, high, middle = [await put(store, priority=p) for p in (0, 15, 7)]

    assert await take_ids(store) == [high.id, middle.id, low.id]


async def test_a_batch_comes_in_the_same_order_as_single_claims(store: Store, clock: VirtualClock) -> None:
    asked = [a_spec(priority=p, task=t) for p in (1, 5, 0) for t in ("x", "y") for _ in range(3)]
    await store.enqueue(asked)

    batch = await take_ids(store, 6)
    singles = [(await take(store)).id for _ in range(12)]

    order = sorted(asked, key=lambda spec: (-spec.priority, asked.index(spec)))
    assert batch + singles == [spec.id for spec in order]


async def test_among_equals_the_one_that_became_due_first_goes_first(store: Store, clock: VirtualClock) -> None:
    """Jobs of the same priority are claimed in the order in which they became due."""
    late = await put(store, delay=10)
    early = await put(store, delay=5)
    now = await put(store)
    clock.advance(10)

    assert await take_ids(store) == [now.id, early.id, late.id]


async def test_priority_outweighs_due_time(store: Store, clock: VirtualClock) -> None:
    old = await put(store)
    clock.advance(100)
    urgent = await put(store, priority=1)

    assert await take_ids(store) == [urgent.id, old.id]


async def test_a_retried_job_takes_its_place_by_its_new_due_time(store: Store, clock: VirtualClock) -> None:
    """A job that was retried is claimed after jobs that became due earlier."""
    first = await put(store)
    second = await put(store)
    await retry(store, await take(store), delay=1)
    clock.advance(1)

    assert await take_ids(store) == [second.id, first.id]


async def test_a_claim_over_queues_merges_their_orders(store: Store, clock: VirtualClock) -> None:
    """A claim on several queues returns their jobs in one common order."""
    a1 = await put(store, queue="a")
    b1 = await put(store, queue="b")
    a2 = await put(store, queue="a")
    b2 = await put(store, queue="b", priority=1)

    assert await take_ids(store, queues=("a", "b")) == [b2.id, a1.id, b1.id, a2.id]


async def test_naming_a_queue_twice_claims_nothing_twice(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)

    assert await take_ids(store, queues=("default", "default")) == [spec.id]


async def test_with_a_fair_share_the_oldest_goes_first_now_and_then(store: Store, clock: VirtualClock) -> None:
    """With fair_share=0.25, every fourth claimed job is the one that has been due the longest, regardless of its
    priority.
    """
    await control(store, fair_share=0.25)
    low = [await put(store) for _ in range(3)]
    high = [await put(store, priority=9) for _ in range(9)]

    taken = [(await take(store)).id for _ in range(12)]

    assert [taken[i] for i in (3, 7, 11)] == [spec.id for spec in low]
    assert [job for job in taken if job not in {spec.id for spec in low}] == [spec.id for spec in high]


async def test_the_fair_share_counts_over_batches(store: Store, clock: VirtualClock) -> None:
    await control(store, fair_share=0.25)
    low = [await put(store) for _ in range(2)]
    for _ in range(10):
        await put(store, priority=9)

    taken = [*await take_ids(store, 3), *await take_ids(store, 3), *await take_ids(store, 6)]

    assert [taken.index(spec.id) for spec in low] == [3, 7]


async def test_only_a_change_of_the_fair_share_starts_its_count_again(store: Store, clock: VirtualClock) -> None:
    await control(store, fair_share=0.25)
    low = [await put(store) for _ in range(2)]
    for _ in range(10):
        await put(store, priority=9)
    taken = await take_ids(store, 3)

    await control(store, max_depth=100)
    taken += await take_ids(store, 2)
    await control(store, fair_share=0.2)
    taken += await take_ids(store, 6)

    assert [taken.index(spec.id) for spec in low] == [3, 9]


async def test_without_a_fair_share_low_priorities_wait(store: Store, clock: VirtualClock) -> None:
    low = await put(store)
    high = [await put(store, priority=1) for _ in range(30)]

    assert await take_ids(store, 30) == [spec.id for spec in high]
    assert await take_ids(store) == [low.id]


async def test_a_fair_share_of_one_is_first_in_first_out(store: Store, clock: VirtualClock) -> None:
    await control(store, fair_share=1)
    asked = [await put(store, priority=p) for p in (0, 9, 3)]

    assert await take_ids(store) == [spec.id for spec in asked]


async def test_a_fair_turn_does_not_take_what_is_not_due(store: Store, clock: VirtualClock) -> None:
    await control(store, fair_share=1)
    later = await put(store, delay=1)
    await put_completed(store, priority=5)
    clock.advance(1)

    assert await take_ids(store) == [later.id]


async def test_a_thousand_jobs_of_mixed_priority_leave_sorted(store: Store, clock: VirtualClock) -> None:
    asked = [a_spec(priority=(7 * n) % 16) for n in range(1_000)]
    await store.enqueue(asked)

    taken = [job for _ in range(10) for job in await take_ids(store, 100)]

    order = sorted(range(1_000), key=lambda n: (-asked[n].priority, n))
    assert taken == [asked[n].id for n in order]
