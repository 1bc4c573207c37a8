"""Unique keys: while a job owns a key, other jobs with this key are not enqueued.

An enqueue whose key is owned by another job is called a hit; the option `on_hit` decides what happens then.
"""

from __future__ import annotations

import pytest

from millrace.domain.errors import DuplicateKey
from millrace.domain.job import State
from millrace.domain.request import Replayed
from millrace.store.protocol import Store
from millrace.testing.builders import a_spec
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    bury,
    complete,
    control,
    count,
    found,
    kinds,
    put,
    put_completed,
    retry,
    show,
    take,
    take_ids,
)


async def test_a_key_stands_for_its_live_owner(store: Store, clock: VirtualClock) -> None:
    """By default, if an unfinished job owns the key, an enqueue with this key is answered as a duplicate of that
    job.
    """
    owner = await put(store, key="k")
    other = a_spec(key="k")
    [answer] = await store.enqueue([other])

    assert (answer.status, answer.by, answer.id, answer.state) == ("duplicate", "key", owner.id, State.WAITING)
    assert await store.get([other.id]) == [None]


@pytest.mark.parametrize("scope", ["live", "window", "retained"])
async def test_a_hit_by_key_tells_whether_the_payload_differs(store: Store, clock: VirtualClock, scope: str) -> None:
    window = 60 if scope == "window" else 0
    await put(store, key="k", scope=scope, window=window, payload=b"1")
    in_one_call = [a_spec(key="l", payload=b"1"), a_spec(key="l", payload=b"1"), a_spec(key="l", payload=b"2")]
    _, same_call, other_call = await store.enqueue(in_one_call)
    [same] = await store.enqueue([a_spec(key="k", payload=b"1")])
    await take_ids(store)
    [other] = await store.enqueue([a_spec(key="k", payload=b"2")])

    answers = (same, other, same_call, other_call)
    assert {answer.by for answer in answers} == {"key"}
    assert [answer.payload_differs for answer in answers] == [False, True, False, True]


async def test_a_key_is_held_while_its_owner_runs_or_is_in_backoff(store: Store, clock: VirtualClock) -> None:
    """A key stays taken while its owner runs or waits for a retry."""
    await put(store, key="k")
    job = await take(store)
    [running] = await store.enqueue([a_spec(key="k")])
    await retry(store, job, delay=60)
    await store.maintain()
    [retrying] = await store.enqueue([a_spec(key="k")])

    assert (running.status, retrying.status) == ("duplicate", "duplicate")


@pytest.mark.parametrize("end", ["completed", "dead", "cancelled", "expired", "drained", "obliterated"])
async def test_a_live_key_is_freed_by_the_end_of_its_owner(store: Store, clock: VirtualClock, end: str) -> None:
    """A key of scope `live` is free again as soon as its owner has ended, in any way."""
    spec = await put(store, key="k", expires=60)
    if end == "completed":
        await complete(store, await take(store))
    elif end == "dead":
        await bury(store, await take(store))
    elif end == "cancelled":
        await store.cancel([spec.id])
    elif end == "expired":
        clock.advance(61)
        await store.maintain()
    elif end == "drained":
        await store.drain("default")
    else:
        await store.obliterate("default")

    await put(store, key="k")


async def test_only_the_owner_frees_its_key(store: Store, clock: VirtualClock) -> None:
    """If another job owns the key now, pruning a former owner does not free the key."""
    first = await put(store, key="k")
    await store.cancel([first.id])
    await put(store, key="k")
    clock.advance(8 * 24 * 3600)
    await store.maintain()  # the first job's record is removed; it no longer owns the key

    assert await found(store, state="cancelled") == []
    [answer] = await store.enqueue([a_spec(key="k")])
    assert answer.status == "duplicate"


async def test_the_same_key_in_another_queue_is_another_key(store: Store, clock: VirtualClock) -> None:
    await put(store, key="k", queue="a")
    await put(store, key="k", queue="b")


async def test_a_window_holds_for_its_time_whatever_becomes_of_its_owner(store: Store, clock: VirtualClock) -> None:
    """A key of scope `window` is taken until the end of its window, even if its owner has ended."""
    spec = await put_completed(store, key="k", scope="window", window=60)
    clock.advance(59.999)
    [inside] = await store.enqueue([a_spec(key="k", scope="window", window=60)])
    clock.advance(0.001)
    [outside] = await store.enqueue([a_spec(key="k", scope="window", window=60)])

    assert (inside.status, inside.id, inside.state) == ("duplicate", spec.id, State.COMPLETED)
    assert outside.status == "queued"


async def test_a_window_outlives_the_record_of_its_owner(store: Store, clock: VirtualClock) -> None:
    await control(store, keep_completed=0)
    spec = await put_completed(store, key="k", scope="window", window=60)
    [answer] = await store.enqueue([a_spec(key="k")])

    assert (answer.status, answer.by, answer.id) == ("duplicate", "key", spec.id)


async def test_a_window_ends_though_its_owner_still_waits(store: Store, clock: VirtualClock) -> None:
    await put(store, key="k", scope="window", window=60)
    clock.advance(60)
    await put(store, key="k", scope="window", window=60)

    assert (await count(store)).waiting == 2


async def test_upkeep_forgets_lapsed_windows_and_no_others(store: Store, clock: VirtualClock) -> None:
    await put(store, key="short", scope="window", window=10)
    await put(store, key="long", scope="window", window=100)
    clock.advance(50)
    await store.maintain()
    short, long = await store.enqueue([a_spec(key="short"), a_spec(key="long")])

    assert (short.status, long.status) == ("queued", "duplicate")


async def test_a_retained_key_is_held_as_long_as_the_record(store: Store, clock: VirtualClock) -> None:
    """A key of scope `retained` is taken until the record of its owner is pruned."""
    spec = await put_completed(store, key="k", scope="retained")
    [held] = await store.enqueue([a_spec(key="k")])
    clock.advance(24 * 3600)
    await store.maintain()
    [freed] = await store.enqueue([a_spec(key="k")])

    assert (held.status, held.id) == ("duplicate", spec.id)
    assert freed.status == "queued"


async def test_a_hit_may_raise(store: Store, clock: VirtualClock) -> None:
    owner = await put(store, key="k")
    fine = a_spec()
    with pytest.raises(DuplicateKey) as refusal:
        await store.enqueue([fine, a_spec(key="k", on_hit="raise")])

    assert (refusal.value.queue, refusal.value.key, refusal.value.owner) == ("default", "k", owner.id)
    assert await store.get([fine.id]) == [None]


async def test_a_hit_may_replace_an_owner_that_waits(store: Store, clock: VirtualClock) -> None:
    owner = await put(store, key="k", payload=b"old", delay=5)
    newer = a_spec(key="k", payload=b"new", on_hit="replace")
    [answer] = await store.enqueue([newer])

    assert answer.status == "queued"
    old = await show(store, owner)
    assert (old.state, old.reason) == (State.CANCELLED, "replaced")
    assert await kinds(store, owner) == ["enqueued", "cancelled"]
    assert await take_ids(store) == [newer.id]
    [third] = await store.enqueue([a_spec(key="k")])
    assert third.id == newer.id


async def test_an_owner_that_runs_is_not_replaced(store: Store, clock: VirtualClock) -> None:
    owner = await put(store, key="k")
    await take(store)
    [answer] = await store.enqueue([a_spec(key="k", on_hit="replace")])

    assert (answer.status, answer.id, answer.state) == ("duplicate", owner.id, State.RUNNING)


async def test_a_replacement_fits_into_a_full_queue(store: Store, clock: VirtualClock) -> None:
    await control(store, max_depth=1)
    await put(store, key="k")
    [answer] = await store.enqueue([a_spec(key="k", on_hit="replace")])

    assert (answer.status, answer.depth) == ("queued", 1)


async def test_a_hit_may_extend_the_window(store: Store, clock: VirtualClock) -> None:
    """With on_hit="extend", a hit restarts the window of the key."""
    await put(store, key="k", scope="window", window=60)
    clock.advance(50)
    [extended] = await store.enqueue([a_spec(key="k", scope="window", window=60, on_hit="extend")])
    clock.advance(50)
    [still] = await store.enqueue([a_spec(key="k", scope="window", window=60)])
    clock.advance(10)
    [free] = await store.enqueue([a_spec(key="k", scope="window", window=60)])

    assert [a.status for a in (extended, still, free)] == ["duplicate", "duplicate", "queued"]


async def test_extending_a_live_key_changes_nothing(store: Store, clock: VirtualClock) -> None:
    await put(store, key="k")
    await store.enqueue([a_spec(key="k", scope="window", window=5, on_hit="extend")])
    clock.advance(60)
    [answer] = await store.enqueue([a_spec(key="k")])

    assert answer.status == "duplicate"


async def test_a_key_used_twice_in_one_call_is_hit_within_it(store: Store, clock: VirtualClock) -> None:
    first, second, third = await store.enqueue([a_spec(key="k"), a_spec(key="k"), a_spec(key="j")])

    assert (first.status, second.status, second.id, third.status) == ("queued", "duplicate", first.id, "queued")


async def test_a_replacement_within_one_call_replaces(store: Store, clock: VirtualClock) -> None:
    first, second = a_spec(key="k"), a_spec(key="k", on_hit="replace")
    await store.enqueue([first, second])

    assert await take_ids(store) == [second.id]
    assert (await show(store, first)).state is State.CANCELLED


async def test_asking_again_for_the_owner_is_no_hit(store: Store, clock: VirtualClock) -> None:
    """Repeating the enqueue of the owner returns its original answer, because the store checks the id before the
    key.
    """
    spec = await put(store, key="k", on_hit="raise")
    [again] = await store.enqueue([spec])

    assert (again.status, again.id) == ("queued", spec.id)


@pytest.mark.parametrize("scope", ["live", "retained", "window"])
async def test_a_replay_never_makes_two_live_owners(store: Store, clock: VirtualClock, scope: str) -> None:
    window = 60 if scope == "window" else 0
    first = await put(store, key="k", scope=scope, window=window)
    second = await put(store, key="k", scope=scope, window=window, on_hit="replace")
    assert await store.replay([first.id]) == [Replayed.KEY_TAKEN]

    await store.cancel([second.id])
    clock.advance(25 * 3600)
    assert await store.replay([first.id]) == [Replayed.KEY_TAKEN if scope == "retained" else Replayed.REPLAYED]


async def test_a_replayed_owner_holds_its_key_again(store: Store, clock: VirtualClock) -> None:
    first = await put_completed(store, key="k")
    await store.replay([first.id])
    [answer] = await store.enqueue([a_spec(key="k")])

    assert (answer.status, answer.id) == ("duplicate", first.id)
