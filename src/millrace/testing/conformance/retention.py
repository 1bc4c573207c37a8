"""Retention: how long records and results of finished jobs are kept."""

from __future__ import annotations

from msgspec import UNSET

from millrace.domain.change import Change
from millrace.domain.job import State
from millrace.domain.request import Maintained, Query, Receipt
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    complete,
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
    take,
)


async def test_records_are_kept_for_their_time(store: Store, clock: VirtualClock) -> None:
    """By default, completed and cancelled jobs are pruned after 24 hours; dead jobs are kept longer."""
    done, away, dead = await put_completed(store), await put_cancelled(store), await put_dead(store)
    live = await put(store)
    clock.advance(24 * 3600 - 0.001)
    assert (await store.maintain()).pruned == 0

    clock.advance(0.001)
    assert (await store.maintain()).pruned == 2
    assert [await gone(store, spec) for spec in (done, away, dead, live)] == [True, True, False, False]


async def test_a_worker_may_say_how_long_a_result_is_kept(store: Store, clock: VirtualClock) -> None:
    """`keep_result` of a change replaces the value of the job: a time, 0, or None for no limit."""
    kept = {}
    for keep in (10, 0, None, UNSET):
        kept[keep] = await put(store, keep_result=20_000 if keep is None else 30_000)
        change = Change.completed(b"1", keep_result=keep)
        assert await store.settle([((await take(store)).lease, change)]) == [Receipt.OK]
    after = clock() + 10
    jobs = {keep: await show(store, spec) for keep, spec in kept.items()}
    assert {keep: job.result for keep, job in jobs.items()} == {10: b"1", 0: None, None: b"1", UNSET: b"1"}
    assert (jobs[10].result_until, jobs[None].result_until) == (after, None)
    assert jobs[0].result_expired
    assert jobs[UNSET].result_until == clock() + 30_000_000


async def test_pruning_is_announced_and_counted(store: Store, clock: VirtualClock) -> None:
    """A pruned job gets a `pruned` event, and the queue's total of processed jobs still includes it."""
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


async def test_jobs_that_ended_at_different_times_are_pruned_together(store: Store, clock: VirtualClock) -> None:
    await control(store, keep_completed=10)
    for _ in range(3):
        await put_completed(store)
        clock.advance(1)
    clock.advance(10)

    done = await store.maintain()

    assert (done.pruned, done.more) == (3, False)


async def test_of_jobs_that_ended_at_the_same_time_the_first_to_be_enqueued_is_pruned_first(
    store: Store, clock: VirtualClock
) -> None:
    await control(store, keep_completed=10)
    first, second = await put(store), await put(store)
    for job in reversed(await store.claim(a_claim(2))):
        await store.settle([(job.lease, Change.completed())])
    clock.advance(10)
    await store.maintain(limit=1)

    assert [await gone(store, spec) for spec in (first, second)] == [True, False]


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
    """Get, find and scan do not return an expired result, even if upkeep has not removed it yet."""
    spec = await put_completed(store, result=b"1", keep_result=10)
    clock.advance(10)

    [part] = await store.partitions(1)
    [page] = [page async for page in store.scan(part)]
    from_find = (await store.find(Query())).jobs[0]
    for job in (await show(store, spec), from_find, page[0]):
        assert (job.result, job.result_expired) == (None, True)


async def test_a_result_is_kept_for_a_child_that_comes_with_the_same_settle(store: Store, clock: VirtualClock) -> None:
    """A settle completes parents and also enqueues their child. The results of the parents are kept for this child."""
    await put(store, keep_result=10)
    await put(store, keep_result=10)
    first, second = await store.claim(a_claim(2))
    child = a_spec(after=(first.id, second.id), delay=3_600)
    ends = [(first.lease, Change.completed(b"1", jobs=(child,))), (second.lease, Change.completed(b"2"))]
    assert await store.settle(ends) == [Receipt.OK, Receipt.OK]

    clock.advance(100)
    await store.maintain()

    assert [(await show(store, job.id)).result for job in (first, second)] == [b"1", b"2"]


async def test_a_parents_result_outlives_its_time_while_a_child_is_open(store: Store, clock: VirtualClock) -> None:
    """The result of a parent is kept until its children have ended, even if `keep_result` has passed."""
    first = await put(store, keep_result=10, priority=1)
    slow = await put(store)
    child = await put(store, after=(first.id, slow.id))
    await complete(store, await take(store), b"1")
    for _ in range(3):
        clock.advance(100)
        assert (await store.maintain()).results == 0
        assert (await show(store, first)).result == b"1"
    await complete(store, await take(store))
    run = await take(store)
    clock.advance(1_000)
    await store.maintain()
    assert (run.id, (await show(store, first)).result) == (child.id, b"1")

    await complete(store, await show(store, child))
    clock.advance(1_000)
    assert (await store.maintain()).results == 1
    ended = await show(store, first)
    assert (ended.result, ended.result_expired) == (None, True)


async def test_the_record_of_a_parent_is_kept_while_a_child_needs_its_result(store: Store, clock: VirtualClock) -> None:
    """The record of a completed parent is not pruned before its children have ended, whatever `keep_completed` says."""
    await control(store, keep_completed=60)
    parent = await put(store, keep_result=10, priority=1)
    other = await put(store, keep_result=10)
    child = await put(store, after=(parent.id,), delay=1_000)
    for _ in range(2):
        await complete(store, await take(store), b"1")
    clock.advance(900)
    await store.maintain()

    assert (await show(store, parent)).result == b"1"
    assert await store.get([other.id]) == [None]

    clock.advance(101)
    await complete(store, await take(store))
    clock.advance(3_600)
    for _ in range(2):  # the first round deletes the result
        await store.maintain()
    assert await store.get([parent.id, child.id]) == [None, None]


async def test_a_result_that_is_kept_as_long_as_its_record_is_kept_for_a_child_too(
    store: Store, clock: VirtualClock
) -> None:
    """With `keep_result=None`, neither record nor result is removed while a child waits; then both stay until they are
    pruned, and a later child keeps them again.
    """
    parent = await put(store, keep_result=None, priority=1)
    await put(store, after=(parent.id,), delay=1_000)
    await complete(store, await take(store), b"1")
    await control(store, keep_completed=60)
    clock.advance(900)
    for _ in range(2):
        await store.maintain()
        assert (await show(store, parent)).result == b"1"

    await control(store, keep_completed=20_000)
    clock.advance(101)
    await complete(store, await take(store))
    clock.advance(3_600)
    assert (await store.maintain()).results == 0
    assert ((await show(store, parent)).result, (await show(store, parent)).result_until) == (b"1", None)

    later = await put(store, after=(parent.id,), delay=20_000)
    clock.advance(19_900)
    for _ in range(2):
        await store.maintain()
    assert (await show(store, parent)).result == b"1"

    await store.cancel([later.id])
    clock.advance(3_600)
    for _ in range(2):
        await store.maintain()
    assert await store.get([parent.id]) == [None]


async def test_the_record_of_a_parent_is_kept_even_if_records_are_deleted_at_once(
    store: Store, clock: VirtualClock
) -> None:
    await control(store, keep_completed=0)
    parent = await put(store, keep_result=10)
    await put(store, after=(parent.id,))
    await complete(store, await take(store), b"1")

    assert (await show(store, parent)).result == b"1"


async def test_records_kept_for_children_do_not_keep_others_from_being_pruned(
    store: Store, clock: VirtualClock
) -> None:
    await control(store, keep_completed=60)
    needed = [await put_completed(store, result=b"1", keep_result=10) for _ in range(30)]
    await put(store, after=tuple(spec.id for spec in needed), delay=10_000)
    plain = [await put_completed(store, result=b"1", keep_result=10, queue="default") for _ in range(3)]
    clock.advance(100)
    rounds = [await store.maintain(limit=5) for _ in range(2)]

    assert sum(done.pruned for done in rounds) == 3
    assert await store.get([spec.id for spec in plain]) == [None] * 3


async def test_a_result_past_its_time_goes_with_the_next_upkeep_once_no_child_is_open(
    store: Store, clock: VirtualClock
) -> None:
    parent = await put(store, keep_result=10)
    child = await put(store, after=(parent.id,))
    await complete(store, await take(store), b"1")
    await store.cancel([child.id])
    clock.advance(10)
    assert (await store.maintain()).results == 1

    assert (await show(store, parent)).result_expired


async def test_a_child_that_comes_after_its_parents_end_keeps_the_result_too(store: Store, clock: VirtualClock) -> None:
    parent = await put_completed(store, result=b"1", keep_result=10)
    await put(store, after=(parent.id,), delay=3_600)
    clock.advance(60)
    assert (await store.maintain()).results == 0

    assert (await show(store, parent)).result == b"1"
    [again] = await store.enqueue([a_spec(id=parent.id)])
    assert (again.status, again.result) == ("completed", b"1")


async def test_a_child_that_is_replayed_keeps_the_results_it_will_ask_for(store: Store, clock: VirtualClock) -> None:
    parent = await put(store, keep_result=10)
    child = await put(store, after=(parent.id,))
    await store.cancel([child.id])
    await complete(store, await take(store), b"1")
    await store.replay([child.id])
    clock.advance(60)
    assert (await store.maintain()).results == 0

    assert (await show(store, parent)).result == b"1"


async def test_results_without_dependents_are_not_kept_back_by_those_with_some(
    store: Store, clock: VirtualClock
) -> None:
    """Results that must be kept for children do not stop upkeep from removing other expired results."""
    needed = [await put_completed(store, result=b"1", keep_result=10) for _ in range(3)]
    await put(store, after=tuple(spec.id for spec in needed), delay=3_600)
    plain = [await put_completed(store, result=b"1", keep_result=10) for _ in range(2)]
    clock.advance(10)

    rounds = [await store.maintain(limit=2) for _ in range(3)]
    assert sum(done.results for done in rounds) == 2
    assert [done.more for done in rounds] == [True, True, False]
    assert all([(await show(store, spec)).result_expired for spec in plain])


async def test_a_round_with_nothing_to_do_does_nothing(store: Store, clock: VirtualClock) -> None:
    await put(store)
    await put_completed(store)

    assert await store.maintain() == Maintained()


async def test_generations_are_forgotten_with_the_events_and_not_before(store: Store, clock: VirtualClock) -> None:
    """An id begins again with its first generation once the events of its deleted jobs are gone."""
    await store.control("store", "", {"keep_events": 10_000})
    old = await put_completed(store)
    await store.delete([old.id])
    clock.advance(8)
    recent = await put_completed(store)
    await store.delete([recent.id])
    clock.advance(5)
    await store.maintain()

    answers = await store.enqueue([a_spec(id=old.id), a_spec(id=recent.id)])

    assert [answer.generation for answer in answers] == [1, 2]
