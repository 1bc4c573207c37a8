"""Waiting times of a worker: exponential backoff with jitter, and intervals that vary at random."""

from __future__ import annotations

from collections.abc import Callable

Chance = Callable[[], float]  # a random number in [0, 1)


class Backoff:
    """Waiting times in seconds. They double from `least` up to `most`; `reset` starts again at `least`.

    Each waiting time is reduced at random by up to half.
    """

    def __init__(self, least: float, most: float, chance: Chance) -> None:
        self.least, self.most = least, max(least, most)
        self._chance = chance
        self._next = least

    def reset(self) -> None:
        self._next = self.least

    def next(self) -> float:
        wait = self._next * (0.5 + 0.5 * self._chance())
        self._next = min(self._next * 2, self.most)
        return wait


def spread(seconds: float, chance: Chance) -> float:
    """Return `seconds` ± 20 %, so that the timers of many workers do not fire at the same moment."""
    return seconds * (0.8 + 0.4 * chance())
