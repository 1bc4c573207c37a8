"""Limits: max_running and rates, on queues and on tasks, reserved as one step (part 2: limits; E-14 to E-16)."""

from __future__ import annotations

from millrace.domain.change import Change
from millrace.domain.request import Receipt
from millrace.store.protocol import Store
from millrace.testing.builders import a_burial, a_reclaim, a_retry_change, a_spec, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import complete, control, count, put, retry, settle, take, take_ids


async def test_no_more_jobs_run_than_the_queue_allows(store: Store, clock: VirtualClock) -> None:
    """E-14, E-16, X3: over all workers."""
    await control(store, max_running=2)
    await store.enqueue(specs(5))

    first = [await take(store, worker=f"w-{n}") for n in range(2)]
    assert await take_ids(store, worker="w-3") == []

    await complete(store, first[0])
    assert len(await take_ids(store)) == 1


async def test_a_batch_keeps_to_the_limit_too(store: Store, clock: VirtualClock) -> None:
    await control(store, max_running=3)
    await store.enqueue(specs(5))

    assert len(await take_ids(store, 10)) == 3


async def test_every_way_out_of_running_makes_room(store: Store, clock: VirtualClock) -> None:
    """BE-02: no slot leaks."""
    await control(store, max_running=1)
    await put(store, id="a")
    await retry(store, await take(store))
    await settle(store, await take(store), Change.snooze(0))
    await settle(store, await take(store), Change.release())
    await settle(store, await take(store), a_burial())
    await put(store, id="b")
    await settle(store, await take(store), Change.cancel())
    await put(store, id="c")
    await complete(store, await take(store))
    await put(store, id="d")
    await take(store)
    await store.obliterate("default")
    await put(store, id="e")

    assert await take_ids(store) == ["e"]


async def test_claims_that_find_nothing_leak_no_slot(store: Store, clock: VirtualClock) -> None:
    """BE-02: concurrency is not counted before a job is there."""
    await control(store, max_running=1)
    for _ in range(5):
        assert await take_ids(store) == []
    await put(store, delay=5)
    assert await take_ids(store) == []
    await put(store, id="due")

    assert await take_ids(store) == ["due"]


async def test_a_lost_lease_keeps_its_place_until_it_is_settled(store: Store, clock: VirtualClock) -> None:
    await control(store, max_running=1)
    await store.enqueue(specs(2, lease=10))
    await take(store)
    clock.advance(11)

    assert await take_ids(store) == []
    [rescued] = await store.reclaim(a_reclaim())
    assert await take_ids(store) == []
    await settle(store, rescued, a_retry_change(60))
    assert len(await take_ids(store)) == 1


async def test_a_limit_of_zero_lets_nothing_run(store: Store, clock: VirtualClock) -> None:
    await control(store, max_running=0)
    await put(store)
    assert await take_ids(store) == []

    await control(store, max_running=None)
    assert len(await take_ids(store)) == 1


async def test_a_task_limit_holds_over_all_queues(store: Store, clock: VirtualClock) -> None:
    """Part 2, limits: on a queue and on a task; both apply."""
    await store.control("task", "heavy", {"max_running": 1})
    heavy = [a_spec(task="heavy", queue=queue) for queue in ("a", "b")]
    light = a_spec(task="light", queue="a")
    await store.enqueue([*heavy, light])

    assert await take_ids(store, queues=("a", "b")) == [heavy[0].id, light.id]


async def test_both_limits_apply(store: Store, clock: VirtualClock) -> None:
    await control(store, max_running=2)
    await store.control("task", "heavy", {"max_running": 1})
    await store.enqueue([*specs(3, task="heavy", priority=5), *specs(3, task="light")])

    taken = await take_ids(store)

    assert len(taken) == 2


async def test_a_task_limit_counts_what_ran_before_it_was_set(store: Store, clock: VirtualClock) -> None:
    await store.enqueue(specs(3, task="heavy"))
    running = await take(store)
    await store.control("task", "heavy", {"max_running": 1})
    assert await take_ids(store) == []

    await complete(store, running)
    assert len(await take_ids(store)) == 1


async def test_a_limited_task_does_not_hold_up_the_others(store: Store, clock: VirtualClock) -> None:
    """X3: one tenant's limit is not the others' wait."""
    await store.control("task", "heavy", {"max_running": 0})
    await store.enqueue([*specs(5, task="heavy", priority=15), *specs(2, task="light")])

    assert len(await take_ids(store)) == 2


async def test_a_rate_gives_so_many_jobs_per_second(store: Store, clock: VirtualClock) -> None:
    """E-15: capacity N, N tokens per second."""
    await control(store, rate=5)
    await store.enqueue(specs(20))

    taken = [len(await take_ids(store))]
    for pause in (0.1, 0.1, 0.3, 1.0, 60.0):
        clock.advance(pause)
        taken.append(len(await take_ids(store)))

    assert taken == [5, 0, 1, 1, 5, 5]


async def test_a_burst_sets_the_size_of_the_bucket(store: Store, clock: VirtualClock) -> None:
    await control(store, rate=1, burst=10)
    await store.enqueue(specs(20))

    assert len(await take_ids(store)) == 10
    clock.advance(2)
    assert len(await take_ids(store)) == 2


async def test_a_slow_rate_gives_a_job_every_few_seconds(store: Store, clock: VirtualClock) -> None:
    await control(store, rate=0.1)
    await store.enqueue(specs(3))

    assert len(await take_ids(store)) == 1
    clock.advance(9.9)
    assert await take_ids(store) == []
    clock.advance(0.1)
    assert len(await take_ids(store)) == 1


async def test_a_token_is_spent_only_for_a_delivered_job(store: Store, clock: VirtualClock) -> None:
    """BE-01: not before knowing that a job is there and may run."""
    await control(store, rate=2, max_running=10)
    for _ in range(10):
        assert await take_ids(store) == []
    await store.enqueue(specs(5))

    assert len(await take_ids(store)) == 2


async def test_a_refused_job_spends_no_token_of_its_task(store: Store, clock: VirtualClock) -> None:
    """BE-01."""
    await store.control("task", "work", {"rate": 2})
    await control(store, max_running=1)
    await store.enqueue(specs(3))
    job = await take(store)
    for _ in range(5):
        assert await take_ids(store) == []
    await complete(store, job)

    assert len(await take_ids(store)) == 1


async def test_a_rate_on_a_task_holds_over_all_queues(store: Store, clock: VirtualClock) -> None:
    """R-30: per-type rate limiting."""
    await store.control("task", "call", {"rate": 3})
    await store.enqueue([*specs(5, task="call", queue="a"), *specs(5, task="call", queue="b")])

    assert len(await take_ids(store, queues=("a", "b"))) == 3


async def test_a_clock_that_jumps_forward_gives_one_bucket_at_most(store: Store, clock: VirtualClock) -> None:
    """BE-11."""
    await control(store, rate=3)
    await store.enqueue(specs(20))
    await take_ids(store)
    clock.advance(365 * 24 * 3600)

    assert len(await take_ids(store)) == 3


async def test_a_clock_that_jumps_back_gives_nothing_and_breaks_nothing(store: Store, clock: VirtualClock) -> None:
    """BE-11, X5."""
    await store.enqueue(specs(20))
    clock.advance(3600)
    await control(store, rate=3)
    assert len(await take_ids(store)) == 3

    clock.advance(-1800)
    assert await take_ids(store) == []
    clock.advance(1801)
    assert 1 <= len(await take_ids(store)) <= 3


async def test_rate_refusals_are_not_counted_as_anything(store: Store, clock: VirtualClock) -> None:
    """Part 2, attempts."""
    await control(store, rate=1)
    await store.enqueue(specs(2))
    await take_ids(store)
    assert await take_ids(store) == []
    clock.advance(1)

    assert ((job := await take(store)).attempt, job.failures) == (1, 0)
    assert (await count(store)).running == 2


async def test_a_new_rate_starts_with_a_full_bucket(store: Store, clock: VirtualClock) -> None:
    await control(store, rate=2)
    await store.enqueue(specs(10))
    await take_ids(store)
    await control(store, rate=4)

    assert len(await take_ids(store)) == 4


async def test_a_limit_that_sinks_below_what_runs_waits_until_it_fits(store: Store, clock: VirtualClock) -> None:
    await store.enqueue(specs(4))
    running = [await take(store) for _ in range(3)]
    await control(store, max_running=2)
    await complete(store, running[0])
    assert await take_ids(store) == []

    await complete(store, running[1])
    assert len(await take_ids(store)) == 1


async def test_settling_late_gives_no_second_place(store: Store, clock: VirtualClock) -> None:
    """BE-12 for limits: a stale settle frees nothing."""
    await control(store, max_running=1)
    await store.enqueue(specs(2, lease=10))
    stalled = await take(store)
    clock.advance(11)
    await store.reclaim(a_reclaim())

    assert await settle(store, stalled, a_burial()) is Receipt.LOST
    assert await take_ids(store) == []
