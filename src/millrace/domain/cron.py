"""Ticks: the instants at which a schedule is due, and what becomes of those that nobody carried out in time.

Every scheduler must come to the same ticks, wherever it starts to look. So the ticks of a calendar are a function of
the local day alone, never of the tick before; walking from tick to tick across a clock change does not have that
property (an hour's step can land on the other side of it).

How a calendar meets a clock change follows Debian's cron. A time of day (neither minute nor hour begins with `*`)
comes once a day: one that the clock leaves out, at the first moment after the gap; one that it shows twice, the first
time. Anything else follows the clock: nothing in the gap, and both times what is shown twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Literal, Protocol

import msgspec

from millrace.domain.job import MINUTE, SECOND, Spec

Missed = Literal["skip", "once", "all"]

GRACE = MINUTE  # a tick that is carried out this soon is on time
MOST_MISSED = 1_000  # `all` makes up for the newest so many
STEP = 100  # jobs that one step puts in
LEAST_INTERVAL = SECOND
_YEARS = 50  # a calendar without a tick for so long has none
_DAY = timedelta(days=1)
_DAYS_KEPT = 8


class Timetable(Protocol):
    """Ticks in order. Answers depend on nothing but the arguments."""

    def next(self, after: int) -> int | None:
        """The first tick after an instant."""
        ...

    def recent(self, after: int, until: int, most: int) -> list[int]:
        """The newest `most` ticks with after < tick <= until, oldest first."""
        ...


class Every(msgspec.Struct, frozen=True):
    """Ticks at the multiples of an interval since 1970, so that all schedulers agree without a word."""

    interval: int

    def next(self, after: int) -> int | None:
        return (after // self.interval + 1) * self.interval

    def recent(self, after: int, until: int, most: int) -> list[int]:
        last = until // self.interval
        first = max(after // self.interval + 1, last - most + 1)
        return [number * self.interval for number in range(first, last + 1)]


class Fields(Protocol):
    """A cron expression, read. A day matches by its date; a time of day is in the product of the three sets."""

    @property
    def months(self) -> Container[int]: ...
    @property
    def hours(self) -> set[int]: ...
    @property
    def minutes(self) -> set[int]: ...
    @property
    def seconds(self) -> set[int]: ...
    def match_day(self, d: date, /) -> bool: ...


class Calendar:
    """The ticks of a cron expression in a time zone. `at_fixed_times`: neither minute nor hour begins with `*`."""

    def __init__(self, fields: Fields, zone: tzinfo, at_fixed_times: bool) -> None:
        self._fields = fields
        self._zone = zone
        self._at_fixed_times = at_fixed_times
        self._times = [
            3600 * hour + 60 * minute + second
            for hour in sorted(fields.hours)
            for minute in sorted(fields.minutes)
            for second in sorted(fields.seconds)
        ]
        self._days: dict[date, list[int]] = {}  # the last few that were asked for

    def next(self, after: int) -> int | None:
        day = self._day_of(after)
        last = day.year + _YEARS
        while day.year <= last:
            if day.month not in self._fields.months:
                day = _next_month(day)
                continue
            if self._fields.match_day(day):
                ticks = self._ticks_of(day)
                place = bisect_right(ticks, after)
                if place < len(ticks):
                    return ticks[place]
            day += _DAY
        return None

    def recent(self, after: int, until: int, most: int) -> list[int]:
        if until <= after:
            return []
        found: list[int] = []
        day = self._day_of(until)
        first = self._day_of(after)
        while day >= first and len(found) < most:
            if day.month not in self._fields.months:
                day = day.replace(day=1) - _DAY
                continue
            if self._fields.match_day(day):
                ticks = self._ticks_of(day)
                found = ticks[bisect_right(ticks, after) : bisect_right(ticks, until)] + found
            day -= _DAY
        return sorted(set(found))[-most:]  # a gap may have moved two days' ticks to one instant

    def _day_of(self, instant: int) -> date:
        return datetime.fromtimestamp(instant // SECOND, self._zone).date()

    def _ticks_of(self, day: date) -> list[int]:
        known = self._days.get(day)
        if known is None:
            if len(self._days) >= _DAYS_KEPT:
                self._days.clear()
            known = self._days[day] = self._work_out(day)
        return known

    def _work_out(self, day: date) -> list[int]:
        midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001 (the wall clock, before it has a zone)
        start, end = self._instant(midnight, 0), self._instant(midnight + _DAY, 0)
        if end - start == 86_400:  # as nearly all days are
            return [(start + time) * SECOND for time in self._times]
        return sorted({tick * SECOND for time in self._times for tick in self._shown(midnight, time)})

    def _shown(self, midnight: datetime, time: int) -> list[int]:
        """The instants at which the wall clock shows this time of this day, as far as they count."""
        wall = midnight + timedelta(seconds=time)
        first, second = self._instant(wall, 0), self._instant(wall, 1)
        if self._reads(first) == wall:
            return [first] if first == second or self._at_fixed_times else [first, second]
        if not self._at_fixed_times:
            return []
        while self._reads(first) != wall:
            wall = wall.replace(second=0) + timedelta(minutes=1)
            first = self._instant(wall, 0)
        return [first]

    def _reads(self, instant: int) -> datetime:
        return datetime.fromtimestamp(instant, self._zone).replace(tzinfo=None, fold=0)

    def _instant(self, wall: datetime, fold: int) -> int:
        return int(wall.replace(tzinfo=self._zone, fold=fold).timestamp())


def _next_month(day: date) -> date:
    return (day.replace(day=1) + 32 * _DAY).replace(day=1)


class Due(msgspec.Struct, frozen=True):
    """What is to be done now. `mark`: every tick up to here is dealt with once that is done."""

    run: tuple[int, ...]
    mark: int


def due(timetable: Timetable, mark: int, now: int, missed: Missed, grace: int) -> Due:
    """Which of the ticks after `mark` to carry out.

    Those on time, always. Of those that were missed: none (`skip`); the newest, unless one on time stands for it
    (`once`); the newest 1,000 (`all`).
    """
    ticks = timetable.recent(mark, now, MOST_MISSED)
    if not ticks:
        return Due((), mark)
    on_time = [tick for tick in ticks if tick >= now - grace]
    if missed == "all":
        run = ticks
    elif missed == "once":
        run = on_time or ticks[-1:]
    else:
        run = on_time
    if len(run) > STEP:  # the rest comes with the next step
        return Due(tuple(run[:STEP]), run[STEP - 1])
    return Due(tuple(run), ticks[-1])


def tick_job(template: Spec, schedule: str, tick: int) -> Spec:
    """The job of one tick. Its id is made of the schedule and the instant, so no two can ever stand for one tick."""
    instant = instant_text(tick)
    name = f"cron:{schedule}:{instant}"
    headers = {**(template.headers or {}), "millrace-schedule": schedule, "millrace-tick": instant}
    return msgspec.structs.replace(template, id=name, token=name, reuse=False, headers=headers)


def instant_text(instant: int) -> str:
    """2026-03-29T01:00:00Z, with milliseconds only where there are any."""
    moment = datetime.fromtimestamp(instant // SECOND, UTC).replace(tzinfo=None)
    fraction = f".{instant % SECOND:03}" if instant % SECOND else ""
    return f"{moment.isoformat()}{fraction}Z"
