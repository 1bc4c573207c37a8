"""Ticks: the instants at which a schedule is due, and what happens to ticks that were missed.

Every scheduler must compute the same ticks, whatever instant it starts from. Therefore the ticks of a cron expression
are computed per local day. If each tick were computed from the previous one, the result after a clock change would
depend on the instant at which the scheduler started.

Clock changes are handled as in Debian's cron. An expression with a fixed time of day (neither minute nor hour begins
with `*`) has one tick per day for each such time. If the clock skips the time, the tick is at the first moment after
the gap. If the clock shows the time twice, the tick is at the first occurrence. Any other expression follows the clock:
it has no ticks in a skipped hour, and ticks in both passes of a repeated hour.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Literal, Protocol

import msgspec

from millrace.domain.job import MINUTE, SECOND, Spec

Missed = Literal["skip", "once", "all"]

GRACE = MINUTE  # a tick up to this late counts as on time
MOST_MISSED = 1_000  # missed='all' enqueues at most this many missed ticks, the latest ones
STEP = 100  # jobs that one step enqueues
LEAST_INTERVAL = SECOND
_YEARS = 50  # how far to search; a calendar without a tick in this time has none
_DAY = timedelta(days=1)
_DAYS_KEPT = 8


class Timetable(Protocol):
    """Computes the ticks of a schedule. The results depend only on the arguments."""

    def next(self, after: int) -> int | None:
        """Return the first tick after an instant; None if there is none."""
        ...

    def recent(self, after: int, until: int, most: int) -> list[int]:
        """Return the latest `most` ticks with after < tick <= until, oldest first."""
        ...


class Every(msgspec.Struct, frozen=True):
    """A timetable with a fixed interval.

    Ticks are multiples of it since 1970, so all schedulers compute the same ticks.
    """

    interval: int

    def next(self, after: int) -> int | None:
        return (after // self.interval + 1) * self.interval

    def recent(self, after: int, until: int, most: int) -> list[int]:
        last = until // self.interval
        first = max(after // self.interval + 1, last - most + 1)
        return [number * self.interval for number in range(first, last + 1)]


class Fields(Protocol):
    """A parsed cron expression.

    `match_day` tests a date. A time of day matches if its hour, minute and second are in their sets.
    """

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
        self._days: dict[date, list[int]] = {}  # cache of the latest few days

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
        return sorted(set(found))[-most:]  # a clock change can move ticks of two days to the same instant

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
        if end - start == 86_400:  # no clock change on this day
            return [(start + time) * SECOND for time in self._times]
        return sorted({tick * SECOND for time in self._times for tick in self._shown(midnight, time)})

    def _shown(self, midnight: datetime, time: int) -> list[int]:
        """Return the ticks, in seconds, for one time of day on a day with a clock change.

        There are 0, 1 or 2 of them.
        """
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
    """The ticks to enqueue now (`run`), and the new mark of the schedule. All ticks up to the mark are done."""

    run: tuple[int, ...]
    mark: int


def due(timetable: Timetable, mark: int, now: int, missed: Missed, grace: int) -> Due:
    """Return which of the ticks after `mark` to enqueue, and the new mark. One call returns at most 100 ticks.

    A tick that is at most `grace` late is on time and is always enqueued. An older tick is missed. `missed` selects
    which missed ticks are enqueued too. "skip": none. "once": the latest one, but only if no tick is on time. "all":
    the latest 1,000.
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
    if len(run) > STEP:  # the next step enqueues the rest
        return Due(tuple(run[:STEP]), run[STEP - 1])
    return Due(tuple(run), ticks[-1])


def tick_job(template: Spec, schedule: str, tick: int) -> Spec:
    """Return the spec of the job of one tick.

    Its id has the schedule and the instant, so a tick has at most one job.
    """
    instant = instant_text(tick)
    name = f"cron:{schedule}:{instant}"
    headers = {**(template.headers or {}), "millrace-schedule": schedule, "millrace-tick": instant}
    return msgspec.structs.replace(template, id=name, token=name, reuse=False, headers=headers)


def instant_text(instant: int) -> str:
    """Format an instant as 2026-03-29T01:00:00Z, with milliseconds only if they are not 0."""
    moment = datetime.fromtimestamp(instant // SECOND, UTC).replace(tzinfo=None)
    fraction = f".{instant % SECOND:03}" if instant % SECOND else ""
    return f"{moment.isoformat()}{fraction}Z"
