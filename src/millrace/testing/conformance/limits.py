"""Limits on queues and tasks: the number of running jobs (`max_running`) and the rate at which jobs start.

A rate is a token bucket: each claimed job takes one token, and the bucket is refilled at the configured rate.
"""

from __future__ import annotations

from typing import Literal

import pytest

from millrace.domain.change import Change
from millrace.domain.request import Receipt
from millrace.store.protocol import Store
from millrace.testing.builders import a_burial, a_claim, a_reclaim, a_retry_change, a_spec, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import complete, control, count, put, retry, settle, take, take_ids


async def test_no_more_jobs_run_than_the_queue_allows(store: Store, clock: VirtualClock) -> None:
    """`max_running` of a queue counts the jobs of all workers."""
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
    """Every way in which a run can end lets another job start under `max_running`."""
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
    """A claim that returns no job does not count towards `max_running`."""
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
    """`max_running` of a task counts its running jobs in all queues, and does not limit other tasks."""
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
    """Jobs of a task that has reached its limit do not block jobs of other tasks in the same queue."""
    await store.control("task", "heavy", {"max_running": 0})
    await store.enqueue([*specs(5, task="heavy", priority=15), *specs(2, task="light")])

    assert len(await take_ids(store)) == 2


async def test_a_rate_gives_so_many_jobs_per_second(store: Store, clock: VirtualClock) -> None:
    """With rate=5, at most 5 jobs start at once, and 5 more can start every second."""
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
    """A claim that returns no job takes no token."""
    await control(store, rate=2, max_running=10)
    for _ in range(10):
        assert await take_ids(store) == []
    await store.enqueue(specs(5))

    assert len(await take_ids(store)) == 2


@pytest.mark.parametrize("target", ["queue", "task"])
async def test_a_claim_that_comes_back_short_spends_only_what_it_delivered(
    store: Store, clock: VirtualClock, target: Literal["queue", "task"]
) -> None:
    """A claim takes one token for each job that it returns, even if it asked for more jobs."""
    await store.control(target, "default" if target == "queue" else "work", {"rate": 1, "burst": 5})
    await store.enqueue(specs(2))
    assert len(await take_ids(store, limit=50)) == 2
    await store.enqueue(specs(5))

    assert len(await take_ids(store, limit=50)) == 3


async def test_a_refused_job_spends_no_token_of_its_task(store: Store, clock: VirtualClock) -> None:
    await store.control("task", "work", {"rate": 2})
    await control(store, max_running=1)
    await store.enqueue(specs(3))
    job = await take(store)
    for _ in range(5):
        assert await take_ids(store) == []
    await complete(store, job)

    assert len(await take_ids(store)) == 1


async def test_a_rate_on_a_task_holds_over_all_queues(store: Store, clock: VirtualClock) -> None:
    """The rate of a task limits its jobs in all queues together."""
    await store.control("task", "call", {"rate": 3})
    await store.enqueue([*specs(5, task="call", queue="a"), *specs(5, task="call", queue="b")])

    assert len(await take_ids(store, queues=("a", "b"))) == 3


async def test_a_clock_that_jumps_forward_gives_one_bucket_at_most(store: Store, clock: VirtualClock) -> None:
    await control(store, rate=3)
    await store.enqueue(specs(20))
    await take_ids(store)
    clock.advance(365 * 24 * 3600)

    assert len(await take_ids(store)) == 3


async def test_a_clock_that_is_set_back_gives_no_token_and_stops_no_queue(store: Store, clock: VirtualClock) -> None:
    """If the clock is set back, the bucket gets no extra tokens, and its refill continues from the new time."""
    await control(store, rate=5)
    assert await _spent_before_the_clock_went_back(store, clock) == 5

    assert await take_ids(store) == []
    clock.advance(0.2)
    assert len(await take_ids(store)) == 1
    clock.advance(1)
    assert len(await take_ids(store)) == 5


async def test_a_clock_that_is_set_back_stops_no_task_with_a_rate(store: Store, clock: VirtualClock) -> None:
    await store.control("task", "work", {"rate": 5})
    assert await _spent_before_the_clock_went_back(store, clock) == 5

    assert await take_ids(store) == []
    clock.advance(0.2)
    assert len(await take_ids(store)) == 1
    clock.advance(1)
    assert len(await take_ids(store)) == 5


async def test_what_is_left_in_a_bucket_outlives_a_clock_that_is_set_back(store: Store, clock: VirtualClock) -> None:
    await control(store, rate=5)
    await store.enqueue(specs(20))
    clock.advance(3600)
    assert len(await take_ids(store, 3)) == 3
    clock.advance(-1800)

    assert len(await take_ids(store)) == 2
    clock.advance(0.4)
    assert len(await take_ids(store)) == 2


async def _spent_before_the_clock_went_back(store: Store, clock: VirtualClock) -> int:
    """Claim jobs, set the clock back by an hour, and enqueue 10 more jobs.

    Return how many jobs were claimed before the clock was set back.
    """
    await store.enqueue(specs(5))
    clock.advance(3600)
    taken = len(await take_ids(store))
    clock.advance(-3600)
    await store.enqueue(specs(10))
    return taken


async def test_rate_refusals_are_not_counted_as_anything(store: Store, clock: VirtualClock) -> None:
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
    """A settle under a reclaimed lease does not let another job start under `max_running`."""
    await control(store, max_running=1)
    await store.enqueue(specs(2, lease=10))
    stalled = await take(store)
    clock.advance(11)
    await store.reclaim(a_reclaim())

    assert await settle(store, stalled, a_burial()) is Receipt.LOST
    assert await take_ids(store) == []


async def test_a_task_limit_holds_for_a_worker_that_names_its_tasks(store: Store, clock: VirtualClock) -> None:
    await store.control("task", "work", {"max_running": 1})
    await store.enqueue(specs(2))

    assert len(await store.claim(a_claim(2, tasks=frozenset({"work"})))) == 1
