"""Schedules: a scheduler writes a schedule only if its revision has not changed since the scheduler read it.

Such a conditional write is a `Move`. In one step, it enqueues the jobs of due ticks and advances the mark of the
schedule. The mark is the instant up to which all ticks are done.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from millrace.domain.errors import InvalidInput
from millrace.domain.job import HOUR, Spec
from millrace.domain.rules.cron import tick_job
from millrace.domain.schedule import Move, Moved, Schedule
from millrace.store.protocol import Store
from millrace.testing.builders import a_spec
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import bury, control, found, gone, show, take


def a_schedule(clock: VirtualClock, name: str = "nightly", **facts: Any) -> Schedule:
    made = Schedule(name, "0 3 * * *", "UTC", "work", "default", "once", 60_000, "digest", mark=clock())
    return msgspec.structs.replace(made, **facts)


async def advance(store: Store, move: Move) -> Moved:
    [answer] = await store.advance([move])
    return answer


async def declare(store: Store, schedule: Schedule) -> Schedule:
    answer = await advance(store, Move(schedule.name, 0, schedule))
    assert answer.status == "ok" and answer.schedule is not None
    return answer.schedule


def carried_out(schedule: Schedule, tick: int, **spec: Any) -> Move:
    """Return a move that enqueues the job of this tick and advances the schedule's mark to the tick."""
    after = msgspec.structs.replace(schedule, mark=tick, last_tick=tick)
    return Move(schedule.name, schedule.rev, after, (tick_job(a_spec(**spec), schedule.name, tick),))


async def test_a_declared_schedule_is_kept_with_every_fact(store: Store, clock: VirtualClock) -> None:
    wanted = a_schedule(clock, last_tick=5, next_tick=clock() + HOUR, paused=True)
    kept = await declare(store, wanted)

    assert kept.rev > 0
    assert msgspec.structs.replace(kept, rev=0) == wanted
    assert await store.schedules() == [kept]


async def test_a_new_schedule_begins_now_by_the_clock_of_the_store(store: Store, clock: VirtualClock) -> None:
    for name, mark in (("behind", clock() - HOUR), ("ahead", clock() + HOUR)):
        assert (await declare(store, a_schedule(clock, name, mark=mark))).mark == clock()


async def test_schedules_come_in_the_order_of_their_names(store: Store, clock: VirtualClock) -> None:
    for name in ("c", "a", "b"):
        await declare(store, a_schedule(clock, name))

    assert [schedule.name for schedule in await store.schedules()] == ["a", "b", "c"]


async def test_a_tick_enqueues_its_job_and_moves_the_mark(store: Store, clock: VirtualClock) -> None:
    schedule = await declare(store, a_schedule(clock))
    tick = clock.advance(60)

    answer = await advance(store, carried_out(schedule, tick))
    assert answer.status == "ok" and answer.schedule is not None
    assert (answer.schedule.mark, answer.schedule.last_tick) == (tick, tick)
    assert answer.schedule.rev > schedule.rev
    job = await take(store)
    assert job.spec.headers is not None and job.spec.headers["millrace-schedule"] == "nightly"


async def test_of_many_schedulers_one_carries_a_tick_out(store: Store, clock: VirtualClock) -> None:
    schedule = await declare(store, a_schedule(clock))
    move = carried_out(schedule, clock.advance(60))

    answers = await asyncio.gather(*(advance(store, move) for _ in range(10)))

    assert sorted(answer.status for answer in answers) == ["ok"] + ["stale"] * 9
    assert len({answer.schedule for answer in answers if answer.schedule is not None}) == 1
    assert len(await found(store)) == 1


async def test_a_lost_reply_makes_no_second_job(store: Store, clock: VirtualClock) -> None:
    """A move that is sent again is answered `stale`, with the current schedule, and enqueues nothing."""
    schedule = await declare(store, a_schedule(clock))
    move = carried_out(schedule, clock.advance(60))
    await advance(store, move)

    again = await advance(store, move)
    assert again.status == "stale" and again.schedule is not None
    assert again.schedule.mark == clock()
    assert len(await found(store)) == 1


async def test_the_tick_of_a_dead_job_does_not_come_again(store: Store, clock: VirtualClock) -> None:
    """If the job of a tick is dead, a second move for the same tick does not enqueue it again."""
    schedule = await declare(store, a_schedule(clock))
    tick = clock.advance(60)
    moved = await advance(store, carried_out(schedule, tick))
    job = await take(store)
    await bury(store, job)
    assert moved.schedule is not None

    again = await advance(store, carried_out(moved.schedule, tick))
    assert again.status == "ok"
    assert (await show(store, job)).state == "dead"
    assert len(await found(store, archived=None)) == 1


async def test_the_tick_of_a_cancelled_and_pruned_job_does_not_come_again(store: Store, clock: VirtualClock) -> None:
    await control(store, keep_completed=0)
    schedule = await declare(store, a_schedule(clock))
    move = carried_out(schedule, clock.advance(60))
    await advance(store, move)
    await store.cancel([move.jobs[0].id])
    await store.maintain()
    assert await gone(store, move.jobs[0])

    assert (await advance(store, move)).status == "stale"
    [stored] = await store.schedules()
    await advance(store, Move("nightly", stored.rev, stored, move.jobs))
    assert await gone(store, move.jobs[0])


async def test_the_mark_never_moves_back(store: Store, clock: VirtualClock) -> None:
    schedule = await declare(store, a_schedule(clock))
    clock.advance(-3600)

    answer = await advance(store, Move("nightly", schedule.rev, msgspec.structs.replace(schedule, mark=clock())))
    assert answer.status == "ok" and answer.schedule is not None
    assert answer.schedule.mark == schedule.mark


async def test_the_mark_never_passes_the_clock_of_the_store(store: Store, clock: VirtualClock) -> None:
    """A move for a tick in the future is answered `early` and enqueues nothing until the store's clock reaches it."""
    schedule = await declare(store, a_schedule(clock))
    move = carried_out(schedule, clock() + 1)

    assert await advance(store, move) == Moved("early", schedule)
    assert await found(store) == []
    clock.advance(0.001)
    assert (await advance(store, move)).status == "ok"


async def test_a_tick_waits_for_room_in_its_queue(store: Store, clock: VirtualClock) -> None:
    """A move whose job does not fit into its queue is answered `refused`. Other moves in the same call succeed."""
    await control(store, "full", max_depth=0)
    first = await declare(store, a_schedule(clock, "a"))
    second = await declare(store, a_schedule(clock, "b"))
    tick = clock.advance(60)

    refused, done = await store.advance([carried_out(first, tick, queue="full"), carried_out(second, tick)])
    assert (refused.status, refused.schedule, done.status) == ("refused", first, "ok")
    assert "full" in refused.problem
    await control(store, "full", max_depth=1)
    assert (await advance(store, carried_out(first, tick, queue="full"))).status == "ok"
    assert len(await found(store)) == 2


async def test_a_held_key_leaves_a_tick_out(store: Store, clock: VirtualClock) -> None:
    """If another job owns the key of a tick's job, the tick counts as done and no job is enqueued."""
    schedule = await declare(store, a_schedule(clock))
    for expected in (1, 1):
        answer = await advance(store, carried_out(schedule, clock.advance(60), key="one-at-a-time"))
        assert answer.status == "ok" and answer.schedule is not None
        schedule = answer.schedule
        assert len(await found(store)) == expected


async def test_one_that_was_seen_otherwise_is_not_written(store: Store, clock: VirtualClock) -> None:
    schedule = await declare(store, a_schedule(clock))
    paused = await advance(store, Move("nightly", schedule.rev, msgspec.structs.replace(schedule, paused=True)))
    assert paused.status == "ok"

    late = await advance(store, carried_out(schedule, clock.advance(60)))
    assert late == Moved("stale", paused.schedule)
    assert (await advance(store, Move("nightly", 0, schedule))).status == "stale"
    assert (await advance(store, Move("other", 3, schedule))) == Moved("stale", None)
    assert await found(store) == []


async def test_a_removed_schedule_is_gone_and_its_revisions_do_not_come_back(store: Store, clock: VirtualClock) -> None:
    old = await declare(store, a_schedule(clock))
    clock.advance(60)
    assert await advance(store, Move("nightly", old.rev, None)) == Moved("ok", None)
    assert await store.schedules() == []
    assert (await advance(store, Move("nightly", old.rev, None))).status == "stale"

    new = await declare(store, a_schedule(clock))
    assert new.rev != old.rev
    assert (await advance(store, carried_out(old, clock()))).status == "stale"


async def test_a_bad_move_is_refused_before_anything_is_written(store: Store, clock: VirtualClock) -> None:
    good = a_schedule(clock)
    with pytest.raises(InvalidInput, match="schedule name"):
        await store.advance([Move("nightly", 0, good), Move("no spaces", 0, good)])
    with pytest.raises(InvalidInput, match="priority"):
        await store.advance([Move("nightly", 0, good, (Spec("i", "work", priority=16),))])

    assert await store.schedules() == []
    assert await found(store) == []
