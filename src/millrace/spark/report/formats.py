"""Formats numbers, durations and instants. Instants are in UTC on every machine."""

from __future__ import annotations

from datetime import UTC, datetime

from millrace.spark.report.period import DAY, HOUR, MINUTE, SECOND

_UNITS = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"))
_MONTHS = [
    "Jan",
    "Feb",
    "Mar",
    "Apr",
    "May",
    "Jun",
    "Jul",
    "Aug",
    "Sep",
    "Oct",
    "Nov",
    "Dec",
]  # independent of the locale
_DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
_WHOLE = ((7 * DAY, "week"), (DAY, "day"), (HOUR, "hour"), (MINUTE, "minute"), (SECOND, "second"))


def count(number: float) -> str:
    return f"{number:,.0f}"


def short(number: float) -> str:
    """Return a number for an axis: 950, 1.2k, 34k, 5.6M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def percent(share: float) -> str:
    """Return a share as a percentage. Rounding never gives 0 % or 100 %: these are shown only for exactly 0 and exactly
    1.
    """
    points = share * 100
    if 0 < points < 0.1:
        return "<0.1 %"
    if 99.9 < points < 100:
        return ">99.9 %"
    return f"{points:.1f} %" if points < 10 else f"{points:.3g} %"


def length(milliseconds: float) -> str:
    """Return a duration with three digits in the largest fitting unit: 7 ms, 1.24 s, 3.5 min, 2.1 d."""
    if milliseconds < SECOND - 0.5:
        return f"{milliseconds:.0f} ms"
    for size, unit in _UNITS:
        value = milliseconds / size
        if value >= 1 or unit == "s":
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
    raise AssertionError("unreachable: seconds take what is left")


def step_name(step: int) -> str:
    """Return the name of an interval, to be used after "per": `hour`, `2 hours`."""
    for size, word in _WHOLE:
        if step % size == 0:
            number = step // size
            return word if number == 1 else f"{number} {word}s"
    return length(step)


def moment(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)


def date(at: int) -> str:
    when = moment(at)
    return f"{_DAYS[when.weekday()]} {when.day} {_MONTHS[when.month - 1]}"


def full_date(at: int) -> str:
    return f"{date(at)} {moment(at).year}"


def time(at: int, step: int = MINUTE) -> str:
    """Return the time of day. Seconds and tenths of a second are shown only if the interval or the instant needs
    them.
    """
    if at % SECOND or step % SECOND:
        return f"{moment(at):%H:%M:%S}.{at % SECOND // 100}"
    return moment(at).strftime("%H:%M" if step >= MINUTE and at % MINUTE == 0 else "%H:%M:%S")


def stamp(at: int) -> str:
    """Return an instant as text for a table, in a form that sorts by time."""
    return moment(at).strftime("%Y-%m-%d %H:%M:%S")


def step_label(at: int, step: int) -> str:
    """Return one interval of the period as text, for a tooltip."""
    if step % DAY == 0:
        return date(at) if step == DAY else f"{date(at)} – {date(at + step - DAY)}"
    return f"{date(at)}, {time(at, step)}–{time(at + step, step)}"


def between(since: int, until: int) -> str:
    """Return a period as text. The date is shown once if the period is within one day."""
    last = until - 1
    if since // DAY == last // DAY:
        fine = MINUTE if until - since >= 10 * MINUTE else SECOND
        clock = "%H:%M" if fine == MINUTE else "%H:%M:%S"
        return f"{full_date(since)}, {moment(since).strftime(clock)}–{moment(last).strftime(clock)} UTC"
    return f"{full_date(since)}, {moment(since):%H:%M} – {full_date(last)}, {moment(last):%H:%M} UTC"


def ago(earlier: int, later: int) -> str:
    gone = later - earlier
    return "a moment" if gone < 2 * SECOND else length(gone)
