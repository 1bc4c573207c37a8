"""Ticks, clock changes and missed runs. The calendar is compared with cronsim's own walk where that can be trusted."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

import msgspec
import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.app.schedules.timetable import timetable
from millrace.domain.job import DAY, HOUR, MINUTE, SECOND, Spec
from millrace.domain.rules.cron import MOST_MISSED, STEP, Every, Missed, due, instant_text, tick_job
from millrace.domain.schedule import TAKEOVER, Plan, Schedule, next_move, overdue, with_pause
from tests.narrowing import the

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def at(text: str, tz: str = "UTC", fold: int = 0) -> int:
    """An instant, from what a wall clock shows."""
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz), fold=fold).timestamp() * 1000)


def shown(instant: int, tz: str) -> str:
    return datetime.fromtimestamp(instant / 1000, ZoneInfo(tz)).strftime("%m-%d %H:%M %Z")


def ticks(expression: str, tz: str, after: str, until: str) -> list[str]:
    found = timetable(expression, tz).recent(at(after, tz), at(until, tz), 10_000)
    return [shown(tick, tz) for tick in found]


# ── clock changes ─────────────────────────────────────────────────────────────────────────────


def test_a_time_that_the_clock_leaves_out_comes_right_after_the_gap():
    assert ticks("30 2 * * *", BERLIN, "2026-03-28T00:00", "2026-03-31T00:00") == [
        "03-28 02:30 CET",
        "03-29 03:00 CEST",
        "03-30 02:30 CEST",
    ]
    assert ticks("15,45 2 * * *", NEW_YORK, "2026-03-07T12:00", "2026-03-09T00:00") == ["03-08 03:00 EDT"]


def test_a_time_that_the_clock_shows_twice_comes_once():
    assert ticks("30 2 * * *", BERLIN, "2026-10-24T12:00", "2026-10-26T12:00") == [
        "10-25 02:30 CEST",
        "10-26 02:30 CET",
    ]
    assert ticks("30 1 * * *", NEW_YORK, "2026-10-31T12:00", "2026-11-01T12:00") == ["11-01 01:30 EDT"]


def test_every_half_hour_follows_the_clock_over_its_changes():
    assert ticks("*/30 * * * *", BERLIN, "2026-03-29T00:59", "2026-03-29T03:30") == [
        "03-29 01:00 CET",
        "03-29 01:30 CET",
        "03-29 03:00 CEST",
        "03-29 03:30 CEST",
    ]
    assert ticks("0 * * * *", NEW_YORK, "2026-11-01T00:00", "2026-11-01T02:00") == [
        "11-01 01:00 EDT",
        "11-01 01:00 EST",
        "11-01 02:00 EST",
    ]


def test_a_clock_that_is_changed_by_half_an_hour_loses_no_tick():
    """Lord Howe Island goes from 02:00 to 02:30, and from 02:00 back to 01:30. Walking by hours loses ticks there."""
    assert ticks("0 */2 * * *", LORD_HOWE, "2026-04-05T00:00", "2026-04-05T04:00") == [
        "04-05 02:00 +1030",
        "04-05 04:00 +1030",
    ]
    assert ticks("45 1 * * *", LORD_HOWE, "2026-04-04T12:00", "2026-04-05T12:00") == ["04-05 01:45 +11"]
    assert ticks("*/15 * * * *", LORD_HOWE, "2026-10-04T01:40", "2026-10-04T03:00") == [
        "10-04 01:45 +1030",
        "10-04 02:30 +11",
        "10-04 02:45 +11",
        "10-04 03:00 +11",
    ]
    assert ticks("10 2 * * *", LORD_HOWE, "2026-10-03T12:00", "2026-10-05T00:00") == ["10-04 02:30 +11"]


def test_a_zone_with_half_an_hour_in_its_offset():
    assert ticks("0 9 * * MON-FRI", "Asia/Kolkata", "2026-05-01T10:00", "2026-05-04T10:00") == ["05-04 09:00 IST"]
    assert timetable("0 9 * * *", "Asia/Kolkata").next(at("2026-05-01")) == at("2026-05-01T03:30")


def test_a_day_that_begins_an_hour_late_has_its_midnight_tick():
    """In Cairo the clock goes from 00:00 to 01:00."""
    assert ticks("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00", "2026-04-24T12:00") == ["04-24 01:00 EEST"]
    assert ticks("0 0 30 12 *", "Pacific/Apia", "2011-12-29T12:00", "2012-01-01T00:00") == ["12-31 00:00 +14"]


ZONES = [BERLIN, NEW_YORK, LORD_HOWE, "Africa/Cairo", "America/Havana", "Pacific/Apia", "Asia/Kolkata", "UTC"]
TIMES = ["30 2 * * *", "0 0 * * *", "*/15 * * * *", "*/20 2 * * *", "0 */2 * * *", "5 1-3 * * SUN", "*/10 * 1 L * *"]
CHANGES = [
    at(day)
    for day in ("2011-12-30", "2026-03-08", "2026-03-29", "2026-04-05", "2026-10-04", "2026-10-25", "2026-11-01")
]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(ZONES),
    st.sampled_from(TIMES),
    st.sampled_from(CHANGES),
    st.lists(st.integers(-2 * DAY, 2 * DAY), min_size=3, max_size=8),
)
def test_ticks_do_not_depend_on_where_one_begins_to_look(tz, expression, change, offsets):
    table = timetable(expression, tz)
    points = sorted(change + offset for offset in offsets)
    whole = table.recent(points[0], points[-1], 10**6)

    pieces = [tick for start, end in pairwise(points) for tick in table.recent(start, end, 10**6)]
    assert pieces == whole == sorted(set(whole))
    for point in points:
        later = [tick for tick in whole if tick > point]
        if later:
            assert table.next(point) == later[0]
    assert table.recent(points[0], points[-1], 3) == whole[-3:]


@pytest.mark.parametrize("tz", [BERLIN, NEW_YORK, "UTC"])
@pytest.mark.parametrize("expression", ["30 2 * * *", "0 * * * *", "*/7 3-5 * * 1,3", "0 4 L * *", "0 6 * * MON#2"])
def test_a_year_of_ticks_is_the_one_that_cronsim_walks(expression, tz):
    start = datetime(2026, 1, 1, tzinfo=ZoneInfo(tz))
    end = datetime(2027, 1, 1, tzinfo=ZoneInfo(tz))
    walked = [
        round(tick.timestamp() * 1000) for tick in takewhile(lambda tick: tick <= end, CronSim(expression, start))
    ]
    begin = round(start.timestamp() * 1000)

    assert timetable(expression, tz).recent(begin, at("2027-01-01", tz), 10**6) == walked
    assert timetable(expression, tz).next(begin) == walked[0]


# ── calendars ─────────────────────────────────────────────────────────────────────────────────


def test_a_leap_day_comes_every_four_years_and_not_in_2100():
    table = timetable("0 12 29 2 *", "UTC")

    assert shown(the(table.next(at("2026-01-01"))), "UTC") == "02-29 12:00 UTC"
    assert table.next(at("2026-01-01")) == at("2028-02-29T12:00")
    assert table.next(at("2096-03-01")) == at("2104-02-29T12:00")
    assert table.recent(at("2019-01-01"), at("2028-01-01"), 10) == [at("2020-02-29T12:00"), at("2024-02-29T12:00")]


def test_last_days_last_weekdays_and_the_nth_weekday():
    assert ticks("0 8 L * *", "UTC", "2026-01-15", "2026-04-01") == [
        "01-31 08:00 UTC",
        "02-28 08:00 UTC",
        "03-31 08:00 UTC",
    ]
    assert ticks("0 8 LW * *", "UTC", "2026-02-01", "2026-03-01") == ["02-27 08:00 UTC"]
    assert ticks("0 8 * * 5L", "UTC", "2026-01-15", "2026-03-01") == ["01-30 08:00 UTC", "02-27 08:00 UTC"]
    assert ticks("0 8 * * MON#1", "UTC", "2026-01-15", "2026-03-03") == ["02-02 08:00 UTC", "03-02 08:00 UTC"]


def test_six_fields_begin_with_seconds():
    assert timetable("*/10 * * * * *", BERLIN).next(at("2026-01-01T00:00:11")) == at("2026-01-01T00:00:20")


def test_an_interval_is_aligned_to_the_epoch():
    every = Every(90 * SECOND)

    assert every.next(0) == 90_000
    assert every.next(89_999) == 90_000 and every.next(90_000) == 180_000
    assert every.recent(0, 360_000, 3) == [180_000, 270_000, 360_000]
    assert every.recent(360_000, 360_000, 3) == []


# ── missed ticks ──────────────────────────────────────────────────────────────────────────────

HOURLY = Every(HOUR)


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_a_tick_on_time_is_carried_out_under_every_policy(missed: Missed):
    assert due(HOURLY, 0, HOUR + MINUTE, missed, MINUTE).run == (HOUR,)
    assert due(HOURLY, 0, HOUR - 1, missed, MINUTE).run == ()


@pytest.mark.parametrize(
    ("missed", "run"),
    [("skip", ()), ("once", (5 * HOUR,)), ("all", tuple(range(HOUR, 6 * HOUR, HOUR)))],
)
def test_ticks_that_were_missed(missed: Missed, run: tuple[int, ...]):
    todo = due(HOURLY, 0, 5 * HOUR + MINUTE + 1, missed, MINUTE)

    assert (todo.run, todo.mark) == (run, 5 * HOUR)


@pytest.mark.parametrize(("missed", "run"), [("skip", 1), ("once", 1), ("all", 5)])
def test_a_tick_on_time_stands_for_the_missed_ones(missed: Missed, run: int):
    assert len(due(HOURLY, 0, 5 * HOUR, missed, MINUTE).run) == run


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_a_scheduler_that_was_away_for_a_moment_leaves_nothing_out(missed: Missed):
    assert due(Every(SECOND), 0, 20 * SECOND, missed, MINUTE).run == tuple(range(SECOND, 21 * SECOND, SECOND))


def test_all_is_bounded_to_the_newest_thousand_and_comes_in_steps():
    every, now = Every(SECOND), 5_000 * SECOND
    mark = 0
    run: list[int] = []
    while (todo := due(every, mark, now, "all", MINUTE)).mark != mark:
        assert len(todo.run) <= STEP
        run += todo.run
        mark = todo.mark

    assert run == [tick * SECOND for tick in range(5_000 - MOST_MISSED + 1, 5_001)]


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([Every(MINUTE), timetable("*/7 * * * *", BERLIN), timetable("30 2 * * *", BERLIN)]),
    st.lists(st.integers(0, 5 * HOUR), min_size=1, max_size=30),
    st.integers(0, 3),
)
def test_no_tick_is_lost_or_doubled_whenever_schedulers_look(table, pauses, kill):
    """Random looks, some of which die before they write: `all` carries out every tick once, in order."""
    begin = mark = at("2026-10-24T12:00")
    now = begin
    run: list[int] = []
    for number, pause in enumerate(pauses):
        now += pause
        while (todo := due(table, mark, now, "all", MINUTE)).mark != mark:
            if kill and number % (kill + 1) == 0 and number < len(pauses) - 1:
                break
            run += todo.run
            mark = todo.mark

    assert run == table.recent(begin, now, 10**6)


# ── records ───────────────────────────────────────────────────────────────────────────────────


def a_plan(expression: str = "0 * * * *", tz: str = "UTC", digest: str = "d", missed: Missed = "once") -> Plan:
    schedule = Schedule("nightly", expression, tz, "clean", "default", missed, MINUTE, digest, mark=0)
    return Plan(schedule, Spec("tick", "clean", headers={"x": "y"}), timetable(expression, tz))


def declared(plan: Plan, now: int, **facts: object) -> Schedule:
    move = next_move(plan, None, now, False)
    assert move is not None and move.schedule is not None
    return msgspec.structs.replace(move.schedule, rev=7, **facts)


NOON = at("2026-06-01T12:00")


def test_a_new_schedule_begins_now_and_makes_up_for_nothing():
    move = next_move(a_plan(), None, NOON, True)

    assert move is not None and move.schedule is not None
    assert (move.seen, move.jobs, move.schedule.mark, move.schedule.next_tick) == (0, (), NOON, NOON + HOUR)


def test_the_job_of_a_tick_is_named_after_it_and_never_reused():
    job = tick_job(Spec("tick", "clean", priority=3, headers={"x": "y"}), "nightly", NOON)

    assert job.id == job.token == "cron:nightly:2026-06-01T12:00:00Z"
    assert (job.reuse, job.priority) == (False, 3)
    assert job.headers == {"x": "y", "millrace-schedule": "nightly", "millrace-tick": "2026-06-01T12:00:00Z"}
    assert instant_text(NOON + 5) == "2026-06-01T12:00:00.005Z"


def test_a_due_tick_moves_the_mark_with_its_job():
    plan = a_plan()
    seen = declared(plan, NOON)

    assert next_move(plan, seen, NOON + HOUR - 1, True) is None
    move = next_move(plan, seen, NOON + HOUR, False)
    assert move is not None and move.schedule is not None
    assert [job.id for job in move.jobs] == ["cron:nightly:2026-06-01T13:00:00Z"]
    assert (move.seen, move.schedule.mark, move.schedule.last_tick) == (7, NOON + HOUR, NOON + HOUR)
    assert move.schedule.next_tick == NOON + 2 * HOUR


def test_a_skipped_tick_moves_the_mark_without_a_job():
    plan = a_plan(missed="skip")
    move = next_move(plan, declared(plan, NOON), NOON + HOUR + MINUTE + 1, True)

    assert move is not None and move.schedule is not None
    assert (move.jobs, move.schedule.mark, move.schedule.last_tick) == ((), NOON + HOUR, None)


def test_other_times_take_effect_without_replaying_history():
    seen = declared(a_plan("0 4 * * *", digest="old"), NOON - 10 * DAY, last_tick=5)

    move = next_move(a_plan("*/5 * * * *", digest="new"), seen, NOON, True)
    assert move is not None and move.schedule is not None
    assert (move.jobs, move.schedule.mark, move.schedule.last_tick) == ((), NOON, 5)


def test_another_definition_keeps_the_pause():
    seen = with_pause(declared(a_plan(digest="old"), NOON), True, NOON)

    move = next_move(a_plan("*/5 * * * *", digest="new"), seen, NOON, True)
    assert move is not None and move.schedule is not None and move.schedule.paused


def test_another_payload_at_the_same_times_loses_no_tick():
    seen = declared(a_plan(digest="old"), NOON)
    move = next_move(a_plan(digest="new"), seen, NOON + HOUR, True)

    assert move is not None and move.schedule is not None
    assert (move.schedule.mark, move.schedule.digest, move.seen) == (NOON, "new", 7)
    [job] = next_move(a_plan(digest="new"), move.schedule, NOON + HOUR, False).jobs  # type: ignore[union-attr]
    assert job.id.endswith("13:00:00Z")


def test_whoever_does_not_decide_lets_another_definition_be():
    seen = declared(a_plan(digest="theirs"), NOON)

    assert next_move(a_plan(digest="mine"), seen, NOON + HOUR, False) is None


def test_a_schedule_is_left_when_it_is_long_overdue_and_not_paused():
    plan = a_plan()
    seen = declared(plan, NOON)
    late = NOON + HOUR + TAKEOVER

    assert not overdue(plan, seen, late)
    assert overdue(plan, seen, late + 1)
    assert not overdue(plan, msgspec.structs.replace(seen, paused=True), late + 1)
    assert overdue(plan, msgspec.structs.replace(seen, next_tick=None), late + 1)


def test_a_paused_schedule_has_no_ticks_and_resumes_from_now():
    plan = a_plan()
    paused = with_pause(declared(plan, NOON), True, NOON)
    assert paused.paused and next_move(plan, paused, NOON + 5 * HOUR, True) is None

    resumed = with_pause(paused, False, NOON + 5 * HOUR)
    assert next_move(plan, resumed, NOON + 5 * HOUR + 1, True) is None
    assert resumed.mark == NOON + 5 * HOUR


def test_a_clock_that_is_set_back_repeats_no_tick():
    plan = a_plan()
    seen = declared(plan, NOON, mark=NOON + HOUR)

    assert next_move(plan, seen, NOON - DAY, False) is None
    assert with_pause(with_pause(seen, True, 0), False, NOON - DAY).mark == NOON + HOUR
