"""Scales of chart axes. A scale maps a value to its coordinate, and has the values to label."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from millrace.spark.report import formats
from millrace.spark.report.period import DAY, HOUR, MINUTE, SECOND

Ticks = list[tuple[float, str]]
LENGTHS = (1, 10, 100, SECOND, 10 * SECOND, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 365 * DAY)
TIME_STEPS = (
    *(200, 500),
    *(SECOND * n for n in (1, 2, 5, 10, 15, 30)),
    *(MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(HOUR * n for n in (1, 2, 3, 6, 12)),
    *(DAY * n for n in (1, 2, 7, 14, 28, 91, 182, 364)),
)


@dataclass(frozen=True)
class Scale:
    """The scale of an axis. `at` maps a value to its coordinate; `ticks` are the labelled values, with their labels."""

    at: Callable[[float], float]
    ticks: Ticks


def linear(greatest: float, low: float, high: float, wanted: int = 4, whole: bool = True) -> Scale:
    """Return a scale from 0 to a round number that is at least `greatest`. Its ends are at the coordinates `low` and
    `high`.
    """
    step = _round_step(max(greatest, 1e-9) / wanted)
    if whole:
        step = max(1.0, step)
    top = step * max(1, math.ceil(greatest / step - 1e-9))
    ticks = [(step * n, formats.short(step * n)) for n in range(round(top / step) + 1)]
    return Scale(lambda value: low + (high - low) * value / top, ticks)


def _round_step(rough: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next(n * magnitude for n in (1, 2, 2.5, 5, 10) if n * magnitude >= rough * (1 - 1e-9))


def of_lengths(least: float, greatest: float, low: float, high: float) -> Scale:
    """Return a logarithmic scale for durations, between two round durations. Durations below a millisecond are drawn as
    one millisecond.
    """
    below = [bound for bound in LENGTHS if bound <= max(1, least)]
    first = below[-1] if below else LENGTHS[0]
    last = next((bound for bound in LENGTHS if bound >= greatest and bound > first), max(greatest, first * 10))
    span = math.log(last / first)
    ticks: Ticks = [(bound, formats.length(bound)) for bound in LENGTHS if first <= bound <= last]
    return Scale(lambda value: low + (high - low) * math.log(max(value, first) / first) / span, ticks)


def of_time(since: int, until: int, low: float, high: float, wanted: int) -> Scale:
    """Return a time scale with labels at round instants in UTC: full hours, midnights, Mondays."""
    span = max(1, until - since)
    step = next((step for step in TIME_STEPS if span / step <= wanted), TIME_STEPS[-1])
    shift = 4 * DAY if step % (7 * DAY) == 0 else 0  # 1 January 1970 was a Thursday
    first = since - (since - shift) % step
    if first < since:
        first += step
    return Scale(
        lambda at: low + (high - low) * (at - since) / span,
        [(at, formats.date(at) if step >= DAY else formats.time(at)) for at in range(first, until + 1, step)],
    )
