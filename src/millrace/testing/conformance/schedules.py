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
from millrace.domain.schedule import DueSchedules, Move, Moved, Schedule
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


# ── schedules that the store runs ─────────────────────────────────────────────────────────────


def stored(clock: VirtualClock, name: str, due_in: float | None, **facts: Any) -> Schedule:
    """Return a schedule with the spec of its jobs, which is due in so many seconds."""
    due_at = None if due_in is None else clock() + round(due_in * 1000)
    return a_schedule(clock, name, template=a_spec(id="tick", token=""), next_tick=due_at, **facts)


async def names_due(store: Store, limit: int = 100) -> list[str]:
    return [schedule.name for schedule in (await store.due_schedules([], limit)).due]


async def test_a_stored_schedule_is_kept_with_the_spec_of_its_jobs(store: Store, clock: VirtualClock) -> None:
    spec = a_spec(
        payload=b'{"customer": "acme"}', id="tick", token="", priority=7, headers={"a": "b"}, key="k", lease=9_000
    )
    wanted = a_schedule(clock, template=spec, next_tick=clock() + HOUR)
    kept = await declare(store, wanted)

    assert kept.template == spec
    assert await store.schedules() == [kept]
    assert (await store.due_schedules(["nightly"], 0)).named == [kept]


async def test_schedules_are_read_in_pages_by_name(store: Store, clock: VirtualClock) -> None:
    names = [f"n{number:02}" for number in range(7)] + ["Upper", "with.dots", "x" * 128]
    await store.advance([Move(name, 0, a_schedule(clock, name)) for name in names])

    pages: list[str] = []
    while page := await store.schedules(pages[-1] if pages else "", 3):
        assert len(page) <= 3
        pages += [schedule.name for schedule in page]
    assert pages == sorted(names)
    assert [schedule.name for schedule in await store.schedules("n04")] == sorted(names)[6:]


async def test_schedules_are_read_by_name_in_the_order_asked_for(store: Store, clock: VirtualClock) -> None:
    kept = [await declare(store, a_schedule(clock, name)) for name in ("a", "b")]

    seen = await store.due_schedules(["b", "missing", "a"], 10)
    assert seen == DueSchedules(clock(), [kept[1], None, kept[0]], [], None)


async def test_due_schedules_come_first_to_last_and_the_next_instant_is_known(
    store: Store, clock: VirtualClock
) -> None:
    for name, due_in in (("late", 30), ("soon", 10), ("next", 60), ("never", None)):
        await declare(store, stored(clock, name, due_in))
    await declare(store, a_schedule(clock, "in-code", next_tick=clock() + 1))
    assert (await store.due_schedules([], 10)).due == []
    assert (await store.due_schedules([], 10)).next_at == clock() + 10_000

    began = clock()
    clock.advance(30)
    assert await names_due(store) == ["soon", "late"]
    assert (await store.due_schedules([], 10)).next_at == began + 60_000
    assert await names_due(store, limit=1) == ["soon"]
    assert (await store.due_schedules([], 1)).next_at == clock()
    assert await store.due_schedules([], 0) == DueSchedules(clock(), [], [], None)


async def test_the_first_due_schedules_can_be_skipped(store: Store, clock: VirtualClock) -> None:
    names = [f"n{number}" for number in range(7)]
    await store.advance([Move(name, 0, stored(clock, name, 1 + int(name[1:]))) for name in names])
    await declare(store, stored(clock, "later", 60))
    clock.advance(30)

    first, second, third = [await store.due_schedules([], 3, skip) for skip in (0, 3, 6)]
    assert [schedule.name for seen in (first, second, third) for schedule in seen.due] == names
    assert [seen.next_at for seen in (first, second, third)] == [clock(), clock(), clock() + 30_000]
    assert await store.due_schedules([], 3, 9) == DueSchedules(clock(), [], [], clock() + 30_000)


async def test_a_schedule_that_ticked_is_due_at_its_next_tick(store: Store, clock: VirtualClock) -> None:
    schedule = await declare(store, stored(clock, "often", 60))
    tick = clock.advance(60)
    [seen] = (await store.due_schedules([], 10)).due
    assert seen == schedule

    move = carried_out(schedule, tick)
    assert move.schedule is not None
    after = msgspec.structs.replace(move.schedule, next_tick=tick + 60_000)
    assert (await advance(store, msgspec.structs.replace(move, schedule=after))).status == "ok"
    assert await names_due(store) == []
    assert (await store.due_schedules([], 10)).next_at == tick + 60_000
    clock.advance(60)
    assert await names_due(store) == ["often"]


async def test_a_paused_or_removed_schedule_is_not_due(store: Store, clock: VirtualClock) -> None:
    paused, removed = await declare(store, stored(clock, "a", 10)), await declare(store, stored(clock, "b", 10))
    clock.advance(20)
    assert await names_due(store) == ["a", "b"]

    off = await advance(store, Move("a", paused.rev, msgspec.structs.replace(paused, paused=True)))
    await advance(store, Move("b", removed.rev, None))
    assert await store.due_schedules([], 10) == DueSchedules(clock(), [], [], None)

    assert off.schedule is not None
    await advance(store, Move("a", off.schedule.rev, msgspec.structs.replace(off.schedule, paused=False)))
    assert await names_due(store) == ["a"]


async def test_a_removed_schedule_that_is_stored_again_is_due_once(store: Store, clock: VirtualClock) -> None:
    for _ in range(3):
        schedule = await declare(store, stored(clock, "again", 10))
        clock.advance(20)
        assert await names_due(store) == ["again"]
        await advance(store, Move("again", schedule.rev, None))
        assert await names_due(store) == []


async def test_of_two_writers_of_a_schedule_the_index_has_what_the_first_wrote(
    store: Store, clock: VirtualClock
) -> None:
    schedule = await declare(store, stored(clock, "raced", 1_000))
    moves = [
        Move("raced", schedule.rev, msgspec.structs.replace(schedule, next_tick=clock() + seconds * 1_000))
        for seconds in range(10, 20)
    ]
    answers = await asyncio.gather(*(advance(store, move) for move in moves))

    assert sorted(answer.status for answer in answers) == ["ok"] + ["stale"] * 9
    [written] = [answer.schedule for answer in answers if answer.status == "ok"]
    assert written is not None and written.next_tick is not None
    clock.set(written.next_tick - 1)
    assert await names_due(store) == []
    clock.set(written.next_tick)
    assert await names_due(store) == ["raced"]
    clock.advance(100)
    assert await names_due(store) == ["raced"]


async def test_the_jobs_of_many_ticks_are_enqueued_by_one_call(store: Store, clock: VirtualClock) -> None:
    made = await store.advance([Move(f"s{n}", 0, stored(clock, f"s{n}", 60)) for n in range(20)])
    tick = clock.advance(60)
    schedules = [answer.schedule for answer in made if answer.schedule is not None]
    assert len(schedules) == 20

    answers = await store.advance(
        [carried_out(schedule, tick, queue=f"q{n % 3}") for n, schedule in enumerate(schedules)]
    )
    assert [answer.status for answer in answers] == ["ok"] * 20
    assert len(await found(store)) == 20


async def test_one_tick_that_is_refused_leaves_the_others_of_its_call(store: Store, clock: VirtualClock) -> None:
    await control(store, "small", max_depth=1)
    made = await store.advance([Move(f"s{n}", 0, stored(clock, f"s{n}", 60)) for n in range(4)])
    tick = clock.advance(60)
    moves = [carried_out(answer.schedule, tick, queue="small") for answer in made if answer.schedule is not None]
    stale = msgspec.structs.replace(moves[3], seen=1)

    *answers, last = await store.advance([*moves[:3], stale])  # each is a step of its own, in any order
    assert last.status == "stale"
    assert sorted(answer.status for answer in answers) == ["ok", "refused", "refused"]
    [done] = [move for move, answer in zip(moves[:3], answers, strict=True) if answer.status == "ok"]
    assert await found(store) == [done.jobs[0].id]


async def test_a_bad_spec_of_a_schedule_is_refused_before_anything_is_written(
    store: Store, clock: VirtualClock
) -> None:
    bad = a_schedule(clock, template=Spec("tick", "work", priority=16))
    with pytest.raises(InvalidInput, match="priority"):
        await store.advance([Move("good", 0, a_schedule(clock, "good")), Move("nightly", 0, bad)])
    assert await store.schedules() == []
