"""Dead letters: what is recorded about them, how long they are kept, the cap on their number, and auto-retry.

Auto-retry is a setting of a queue: upkeep replays a dead job after a delay, a limited number of times.
"""

from __future__ import annotations

import pytest

from millrace.domain.errors import DeadLettersFull
from millrace.domain.job import State
from millrace.store.protocol import Store
from millrace.testing.builders import a_spec, days, seconds
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    bury,
    complete,
    control,
    count,
    gone,
    kinds,
    put,
    put_dead,
    show,
    take,
    take_ids,
)


async def test_a_dead_job_is_kept_for_a_week(store: Store, clock: VirtualClock) -> None:
    """By default, upkeep prunes a dead job 7 days after its end."""
    spec = await put_dead(store)
    clock.set(clock() + days(7) - 1)
    assert (await store.maintain()).pruned == 0

    clock.advance(0.001)
    assert (await store.maintain()).pruned == 1
    assert await gone(store, spec)


async def test_by_default_nothing_comes_back_by_itself(store: Store, clock: VirtualClock) -> None:
    """Auto-retry is off by default: a dead job stays dead."""
    spec = await put_dead(store)
    clock.advance(6 * 24 * 3600)

    assert (await store.maintain()).retried == 0
    assert (await show(store, spec)).next_retry_at is None


async def test_with_auto_retry_a_dead_job_comes_back_so_many_times(store: Store, clock: VirtualClock) -> None:
    """Upkeep replays a dead job `auto_retries` times, each time after `auto_retry_delay`."""
    await control(store, auto_retries=2, auto_retry_delay=600)
    spec = await put_dead(store)
    assert (await show(store, spec)).next_retry_at == clock() + seconds(600)

    for again in (1, 2):
        clock.advance(599)
        assert (await store.maintain()).retried == 0
        clock.advance(1)
        assert (await store.maintain()).retried == 1
        job = await take(store)
        assert (job.id, job.auto_retries, job.failures, job.replays) == (spec.id, again, 0, again)
        await bury(store, job)

    assert (await show(store, spec)).next_retry_at is None
    clock.advance(3600)
    assert (await store.maintain()).retried == 0
    assert (await kinds(store, spec)).count("replayed") == 2


async def test_expiry_wins_over_auto_retry(store: Store, clock: VirtualClock) -> None:
    await control(store, auto_retries=5, auto_retry_delay=60, keep_dead=60)
    spec = await put_dead(store)
    clock.advance(60)

    done = await store.maintain()

    assert (done.pruned, done.retried) == (1, 0)
    assert await gone(store, spec)


async def test_over_the_cap_the_oldest_are_evicted_and_announced(store: Store, clock: VirtualClock) -> None:
    """By default, the oldest dead jobs above `dead_cap` are deleted, with an `evicted` event for each."""
    await control(store, dead_cap=2)
    dead = []
    for _ in range(4):
        dead.append(await put_dead(store))
        clock.advance(1)

    assert (await store.maintain()).evicted == 2
    assert [await gone(store, spec) for spec in dead] == [True, True, False, False]
    assert (await kinds(store, dead[0]))[-1] == "evicted"
    assert (await count(store)).dead == 2


async def test_over_the_cap_the_oldest_may_be_archived_instead(store: Store, clock: VirtualClock) -> None:
    """With dead_overflow="archive", the oldest dead jobs above the cap are archived."""
    await control(store, dead_cap=1, dead_overflow="archive")
    old = await put_dead(store)
    clock.advance(1)
    new = await put_dead(store)

    assert (await store.maintain()).archived == 1
    assert [(await show(store, spec)).archived for spec in (old, new)] == [True, False]
    assert (await store.maintain()).archived == 0


async def test_over_the_cap_new_jobs_may_be_refused_instead(store: Store, clock: VirtualClock) -> None:
    """With dead_overflow="reject", a queue that has reached its cap refuses new jobs, and no dead job is evicted."""
    await control(store, dead_cap=1, dead_overflow="reject")
    await put_dead(store)

    with pytest.raises(DeadLettersFull) as refusal:
        await store.enqueue([a_spec()])

    assert (refusal.value.depth, refusal.value.max_depth) == (1, 1)
    assert (await store.maintain()).evicted == 0
    assert (await count(store)).dead == 1


async def test_archived_dead_jobs_do_not_count_towards_the_cap(store: Store, clock: VirtualClock) -> None:
    await control(store, dead_cap=1, dead_overflow="reject")
    spec = await put_dead(store)
    await store.archive([spec.id])

    await put(store)


async def test_the_cap_of_one_queue_is_not_that_of_another(store: Store, clock: VirtualClock) -> None:
    await control(store, "small", dead_cap=0)
    small = await put_dead(store, queue="small")
    other = await put_dead(store, queue="other")
    await store.maintain()

    assert (await gone(store, small), await gone(store, other)) == (True, False)


async def test_eviction_works_in_bounded_rounds(store: Store, clock: VirtualClock) -> None:
    await control(store, dead_cap=0)
    for _ in range(3):
        await put_dead(store)

    done = [await store.maintain(limit=2) for _ in range(2)]

    assert [(each.evicted, each.more) for each in done] == [(2, True), (1, False)]


async def test_a_dead_job_tells_everything_about_its_death(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, payload=b"[1]")
    job = await take(store)
    clock.advance(2)
    await bury(store, job, "payload_invalid")

    dead = await show(store, spec)
    assert (dead.state, dead.payload, dead.reason) == (State.DEAD, b"[1]", "payload_invalid")
    assert (dead.finished_at, dead.attempt, dead.failures) == (clock(), 1, 1)
    event = (await store.history(spec.id))[-1]
    assert (event.kind.value, event.reason, event.state, event.failures) == ("buried", "payload_invalid", "dead", 1)


async def test_an_auto_retry_that_finds_its_key_taken_gives_way_within_its_tries(
    store: Store, clock: VirtualClock
) -> None:
    """A dead job is not replayed if another job has taken its key. Each such try still counts as one of its
    auto-retries.
    """
    await control(store, auto_retries=2, auto_retry_delay=60)
    spec = await put_dead(store, key="k")
    owner = await put(store, key="k")
    clock.advance(60)
    assert (await store.maintain()).retried == 0
    assert (await show(store, spec)).next_retry_at == clock() + seconds(60)
    clock.advance(60)
    assert (await store.maintain()).retried == 0
    assert (await show(store, spec)).next_retry_at is None

    assert await take_ids(store) == [owner.id]


async def test_an_auto_retried_job_that_completes_is_completed(store: Store, clock: VirtualClock) -> None:
    await control(store, auto_retries=1, auto_retry_delay=60)
    spec = await put_dead(store)
    clock.advance(60)
    await store.maintain()
    await complete(store, await take(store), b"1")

    job = await show(store, spec)
    assert (job.state, job.reason, job.result) == (State.COMPLETED, None, b"1")
    counts = await count(store)
    assert (counts.dead, counts.died, counts.completed, counts.processed) == (0, 1, 1, 1)


async def test_a_manual_replay_renews_the_budget_of_auto_retries(store: Store, clock: VirtualClock) -> None:
    await control(store, auto_retries=1, auto_retry_delay=60)
    spec = await put_dead(store)
    clock.advance(60)
    await store.maintain()
    await bury(store, await take(store))
    used = await show(store, spec)
    assert (used.auto_retries, used.next_retry_at) == (1, None)

    await store.replay([spec.id])
    assert (await show(store, spec)).auto_retries == 0
    await bury(store, await take(store))
    assert (await show(store, spec)).next_retry_at == clock() + seconds(60)
    clock.advance(60)
    assert (await store.maintain()).retried == 1


async def test_auto_retry_that_is_switched_on_later_reaches_jobs_that_are_dead_already(
    store: Store, clock: VirtualClock
) -> None:
    old = await put_dead(store)
    clock.advance(3_600)
    young = await put_dead(store)
    other = await put_dead(store, queue="other")
    await control(store, auto_retries=1, auto_retry_delay=60)
    assert (await store.maintain()).retried == 1

    assert await take_ids(store) == [old.id]
    assert (await show(store, young)).next_retry_at == clock() + seconds(60)
    clock.advance(60)
    assert (await store.maintain()).retried == 1
    assert await take_ids(store) == [young.id]
    assert (await show(store, other)).next_retry_at is None


async def test_many_dead_jobs_come_back_in_bounded_rounds_once_auto_retry_is_on(
    store: Store, clock: VirtualClock
) -> None:
    for _ in range(5):
        await put_dead(store)
    await control(store, auto_retries=1, auto_retry_delay=0)
    rounds = [await store.maintain(limit=2) for _ in range(4)]

    assert [done.retried for done in rounds] == [2, 2, 1, 0]
    assert [done.more for done in rounds] == [True, True, False, False]
    assert (await count(store)).waiting == 5


async def test_auto_retry_that_is_switched_off_brings_nothing_back(store: Store, clock: VirtualClock) -> None:
    await control(store, auto_retries=1, auto_retry_delay=60)
    spec = await put_dead(store)
    await control(store, auto_retries=0)
    clock.advance(60)
    assert (await store.maintain()).retried == 0

    dead = await show(store, spec)
    assert (dead.state, dead.next_retry_at, dead.auto_retries) == (State.DEAD, None, 0)


async def test_more_auto_retries_reach_jobs_that_have_used_up_the_old_number(store: Store, clock: VirtualClock) -> None:
    await control(store, auto_retries=1, auto_retry_delay=60)
    spec = await put_dead(store)
    clock.advance(60)
    await store.maintain()
    await bury(store, await take(store))
    await control(store, auto_retries=2)
    await store.maintain()

    assert (await show(store, spec)).next_retry_at == clock() + seconds(60)
