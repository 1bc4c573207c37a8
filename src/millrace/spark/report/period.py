"""The period of a report. It is divided into intervals of equal length; a chart shows one value for each interval."""

from __future__ import annotations

from dataclasses import dataclass

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
STEPS = (
    *(100, 200, 500),
    *(SECOND * n for n in (1, 2, 5, 10, 15, 30)),
    *(MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(HOUR * n for n in (1, 2, 3, 6, 12)),
    *(DAY * n for n in (1, 2, 7, 14, 28, 91, 364)),
)
MOST_STEPS = 120


@dataclass(frozen=True)
class Period:
    """The time from `since` up to, but not including, `until`, in milliseconds. Intervals are counted from 1970, so
    they start at round times such as full hours.
    """

    since: int
    until: int
    step: int

    @classmethod
    def of(cls, since: int, until: int) -> Period:
        until = max(until, since + 1)
        fits = (step for step in STEPS if -(-until // step) - since // step <= MOST_STEPS)
        return cls(since, until, next(fits, STEPS[-1]))

    @property
    def starts(self) -> list[int]:
        """The start of each interval; the first may be before `since`."""
        return list(range(self.since - self.since % self.step, self.until, self.step))

    @property
    def length(self) -> int:
        return self.until - self.since

    def place_of(self, start: int) -> int:
        return start // self.step - self.since // self.step
