"""Operations on whole queues: pause, resume, drain, obliterate, and changes of settings."""

from __future__ import annotations

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput
from millrace.domain.job import State
from millrace.domain.request import Receipt
from millrace.domain.settings import Limits, QueueSettings, StoreSettings
from millrace.store.protocol import Store
from millrace.testing.builders import a_spec, an_extension, days, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    complete,
    control,
    count,
    finish,
    found,
    gone,
    kinds,
    put,
    put_completed,
    put_dead,
    retry,
    settle,
    show,
    take,
    take_ids,
)


async def test_nothing_is_claimed_from_a_paused_queue(store: Store, clock: VirtualClock) -> None:
    """Once the pause is confirmed, no claim returns a job of the queue until it is resumed."""
    spec = await put(store)
    assert (await control(store, paused=True)).paused
    assert await take_ids(store) == []
    assert (await count(store)).paused

    await control(store, paused=False)
    assert await take_ids(store) == [spec.id]


async def test_a_paused_queue_still_accepts_jobs(store: Store, clock: VirtualClock) -> None:
    await control(store, paused=True)
    await put(store)

    assert (await count(store)).ready == 1


async def test_running_jobs_go_on_in_a_paused_queue(store: Store, clock: VirtualClock) -> None:
    await put(store)
    job = await take(store)
    await control(store, paused=True)

    assert await store.extend([an_extension(job)]) == [Receipt.OK]
    await complete(store, job)


async def test_resuming_skips_no_backoff(store: Store, clock: VirtualClock) -> None:
    """A pause does not change when a job in backoff is due."""
    spec = await put(store)
    await retry(store, await take(store), delay=60)
    await control(store, paused=True)
    clock.advance(30)
    await control(store, paused=False)
    assert await take_ids(store) == []

    clock.advance(30)
    assert await take_ids(store) == [spec.id]


async def test_a_pause_holds_one_queue_only(store: Store, clock: VirtualClock) -> None:
    await control(store, "a", paused=True)
    await put(store, queue="a")
    other = await put(store, queue="b")

    assert await take_ids(store, queues=("a", "b")) == [other.id]


async def test_drain_cancels_what_waits_and_nothing_else(store: Store, clock: VirtualClock) -> None:
    """A drain cancels the waiting jobs of one queue. Running and finished jobs, settings and totals do not change."""
    await control(store, paused=False, max_running=5)
    await put_completed(store)
    await put_dead(store)
    await put(store)
    running = await take(store)
    waiting = [await put(store), await put(store, delay=60)]
    other = await put(store, queue="other")

    assert await store.drain("default") == 2

    counts = await count(store)
    assert (counts.waiting, counts.running, counts.completed, counts.dead, counts.cancelled) == (0, 1, 1, 1, 2)
    assert (counts.processed, counts.died) == (1, 1)
    assert (await control(store)).max_running == 5
    assert [(await show(store, spec)).reason for spec in waiting] == ["drained", "drained"]
    assert await take_ids(store, queue="other") == [other.id]
    await complete(store, running)


async def test_drain_works_in_bounded_rounds(store: Store, clock: VirtualClock) -> None:
    await store.enqueue(specs(5))

    assert [await store.drain("default", 2) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_drained_queue_is_paused_if_it_was(store: Store, clock: VirtualClock) -> None:
    """A drain does not resume a paused queue."""
    await control(store, paused=True)
    await put(store)
    await store.drain("default")

    assert (await count(store)).paused


async def test_draining_takes_blocked_and_retrying_jobs_too(store: Store, clock: VirtualClock) -> None:
    parent = await put(store, queue="other")
    await put(store, after=(parent.id,))
    await put(store)
    await retry(store, await take(store), delay=60)

    assert await store.drain("default") == 2
    await complete(store, await take(store, queue="other"))
    assert await take_ids(store) == []


async def test_draining_an_unknown_queue_drains_nothing(store: Store, clock: VirtualClock) -> None:
    assert await store.drain("nowhere") == 0
    assert await store.obliterate("nowhere") == 0


async def test_obliterate_removes_everything_and_makes_settles_lost(store: Store, clock: VirtualClock) -> None:
    """Obliterate deletes all jobs of a queue, including running ones. Settling a deleted job returns LOST."""
    await put_completed(store)
    await put_dead(store)
    await put(store)
    running = await take(store)
    await put(store)
    other = await put(store, queue="other")

    assert await store.obliterate("default") == 4

    assert await found(store, archived=None) == [other.id]
    assert await settle(store, running, Change.completed()) is Receipt.LOST
    assert await store.extend([an_extension(running)]) == [Receipt.LOST]
    counts = await count(store)
    assert (counts.waiting, counts.running, counts.completed, counts.dead, counts.cancelled) == (0, 0, 0, 0, 0)


async def test_obliterate_leaves_a_trace_in_the_history(store: Store, clock: VirtualClock) -> None:
    """Obliterated jobs get events, so that an audit can account for every job."""
    spec = await put(store)
    await take(store)
    await store.obliterate("default")

    assert await kinds(store, spec) == ["enqueued", "claimed", "cancelled", "pruned"]


async def test_obliterate_works_in_bounded_rounds(store: Store, clock: VirtualClock) -> None:
    await store.enqueue(specs(5))

    assert [await store.obliterate("default", 3) for _ in range(3)] == [3, 2, 0]


async def test_dependents_of_an_obliterated_job_die_by_their_policy(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    child = await put(store, after=(parent.id,), queue="other")
    await store.obliterate("default")

    assert (await show(store, child)).reason == "dependency_failed"


async def test_after_an_obliteration_the_queue_works_on(store: Store, clock: VirtualClock) -> None:
    """An obliterated job that was running does not block its lane for later jobs."""
    await control(store, lanes=1)
    await store.enqueue(specs(3))
    running = await take(store)
    await store.obliterate("default")
    later = await put(store)
    assert await settle(store, running, Change.completed()) is Receipt.LOST

    assert await take_ids(store) == [later.id]


async def test_settings_are_kept_and_answered(store: Store, clock: VirtualClock) -> None:
    new = await control(store, max_depth=7, rate=2.5, on_empty="notify")
    assert (new.max_depth, new.rate, new.on_empty) == (7, 2.5, "notify")

    assert await control(store) == new
    assert await control(store, max_depth=None) == QueueSettings(rate=2.5, on_empty="notify")


async def test_settings_have_their_defaults(store: Store, clock: VirtualClock) -> None:
    """Without changes, queues, tasks and the store have the documented default settings."""
    queue = await control(store)
    assert (queue.keep_completed, queue.keep_dead, queue.dead_cap) == (days(1), days(7), 10_000)
    assert (queue.auto_retries, queue.fair_share, queue.paused) == (0, 0, False)
    assert await store.control("task", "any", {}) == Limits()
    assert await store.control("store", "", {}) == StoreSettings(keep_events=days(7))


async def test_task_and_store_settings_are_kept_too(store: Store, clock: VirtualClock) -> None:
    await store.control("task", "heavy", {"max_running": 2, "rate": 1.5})
    await store.control("store", "", {"keep_events": None})

    assert await store.control("task", "heavy", {}) == Limits(max_running=2, rate=1.5)
    assert await store.control("store", "", {}) == StoreSettings(keep_events=None)


@pytest.mark.parametrize(
    "changes",
    [
        {"colour": "red"},
        {"max_running": -1},
        {"max_running": "many"},
        {"rate": 0},
        {"rate": float("nan")},
        {"rate": float("inf")},
        {"burst": 0},
        {"lanes": 0},
        {"fair_share": 1.5},
        {"fair_share": float("nan")},
        {"keep_completed": -1},
        {"dead_overflow": "burn"},
        {"auto_retries": -1},
        {"paused": "maybe"},
        {"paused_lanes": [0]},
        {"on_empty": "no such name!"},
        {"keep_dead": 10**30},
    ],
    ids=lambda changes: "-".join(f"{k}={v}" for k, v in changes.items()),
)
async def test_a_bad_setting_is_refused_and_changes_nothing(
    store: Store, clock: VirtualClock, changes: dict[str, object]
) -> None:
    before = await control(store)
    with pytest.raises(InvalidInput):
        await store.control("queue", "default", {"max_depth": 5, **changes})

    assert await control(store) == before


async def test_a_bad_name_is_refused_by_control(store: Store, clock: VirtualClock) -> None:
    with pytest.raises(InvalidInput, match="queue name"):
        await store.control("queue", "no such name!", {})
    with pytest.raises(InvalidInput, match="task name"):
        await store.control("task", "no such name!", {})


async def test_a_cancelled_run_is_not_drained(store: Store, clock: VirtualClock) -> None:
    await put(store)
    await finish(store, await take(store), Change.cancel())

    assert await store.drain("default") == 0


async def test_an_obliterated_id_may_be_enqueued_again(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    await store.obliterate("default")
    assert await gone(store, spec)
    await store.enqueue([a_spec(id=spec.id)])

    assert (await show(store, spec)).state is State.WAITING
