"""Retention of records and results (part 2: retention, results; BR-14)."""

from __future__ import annotations

from millrace.domain.job import State
from millrace.domain.request import Maintained, Query
from millrace.store.protocol import Store
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    control,
    count,
    found,
    gone,
    kinds,
    put,
    put_cancelled,
    put_completed,
    put_dead,
    show,
)


async def test_records_are_kept_for_their_time(store: Store, clock: VirtualClock) -> None:
    """Completed and cancelled 24 h, dead 7 days."""
    done, away, dead = await put_completed(store), await put_cancelled(store), await put_dead(store)
    live = await put(store)
    clock.advance(24 * 3600 - 0.001)
    assert (await store.maintain()).pruned == 0

    clock.advance(0.001)
    assert (await store.maintain()).pruned == 2
    assert [await gone(store, spec) for spec in (done, away, dead, live)] == [True, True, False, False]


async def test_pruning_is_announced_and_counted(store: Store, clock: VirtualClock) -> None:
    """Conservation can be audited: accepted = live + finished + pruned."""
    spec = await put_completed(store)
    clock.advance(24 * 3600)
    await store.maintain()

    assert (await kinds(store, spec))[-1] == "pruned"
    counts = await count(store)
    assert (counts.completed, counts.processed) == (0, 1)


async def test_zero_deletes_at_once(store: Store, clock: VirtualClock) -> None:
    await control(store, keep_completed=0, keep_dead=0)
    asked = [await put_completed(store), await put_dead(store), await put_cancelled(store)]

    assert await found(store, archived=None) == []
    assert [(await kinds(store, spec))[-1] for spec in asked] == ["pruned"] * 3
    counts = await count(store)
    assert (counts.completed, counts.dead, counts.cancelled) == (0, 0, 0)


async def test_none_keeps(store: Store, clock: VirtualClock) -> None:
    await control(store, keep_completed=None, keep_dead=None)
    asked = [await put_completed(store), await put_dead(store)]
    clock.advance(10 * 365 * 24 * 3600)
    await store.maintain()

    assert [await gone(store, spec) for spec in asked] == [False, False]


async def test_each_queue_has_its_own_retention(store: Store, clock: VirtualClock) -> None:
    await control(store, "short", keep_completed=10)
    short, long = await put_completed(store, queue="short"), await put_completed(store, queue="long")
    clock.advance(10)
    await store.maintain()

    assert (await gone(store, short), await gone(store, long)) == (True, False)


async def test_pruning_works_in_bounded_rounds(store: Store, clock: VirtualClock) -> None:
    await control(store, keep_completed=10)
    for _ in range(5):
        await put_completed(store)
    clock.advance(10)

    done = [await store.maintain(limit=2) for _ in range(3)]

    assert [(each.pruned, each.more) for each in done] == [(2, True), (2, True), (1, False)]


async def test_upkeep_drops_results_past_their_time(store: Store, clock: VirtualClock) -> None:
    short = await put_completed(store, result=b"1", keep_result=10)
    long = await put_completed(store, result=b"2", keep_result=100)
    clock.advance(10)
    assert (await store.maintain()).results == 1

    dropped, kept = await show(store, short), await show(store, long)
    assert (dropped.state, dropped.result, dropped.result_expired) == (State.COMPLETED, None, True)
    assert (kept.result, kept.result_expired) == (b"2", False)
    assert (await store.maintain()).results == 0


async def test_an_expired_result_is_never_shown_even_before_upkeep(store: Store, clock: VirtualClock) -> None:
    """BR-14: by get, find and scan alike."""
    spec = await put_completed(store, result=b"1", keep_result=10)
    clock.advance(10)

    [part] = await store.partitions(1)
    [page] = [page async for page in store.scan(part)]
    from_find = (await store.find(Query())).jobs[0]
    for job in (await show(store, spec), from_find, page[0]):
        assert (job.result, job.result_expired) == (None, True)


async def test_a_round_with_nothing_to_do_does_nothing(store: Store, clock: VirtualClock) -> None:
    await put(store)
    await put_completed(store)

    assert await store.maintain() == Maintained()
