"""When to ask for work: an adaptive poll, and a rotation over queues.

Polling alone must be correct, notifications only make it fast; so the poll is patient when nothing comes and
eager right after something did, and no two workers poll in step (BL-07).
"""

from __future__ import annotations

from collections.abc import Callable

Chance = Callable[[], float]

ALONE_EVERY = 8


class Backoff:
    """Seconds to wait, doubling from `least` to `most` until `reset`; each is spread over its upper half."""

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
    """About so many seconds (± 20 %), so that timers of many workers drift apart."""
    return seconds * (0.8 + 0.4 * chance())


class Rotation:
    """Which queues a claim asks. Together they are served by priority and age, so one busy queue could take
    every place for ever; each eighth claim therefore asks one queue alone, each in its turn (BL-09)."""

    def __init__(self, queues: tuple[str, ...]) -> None:
        self.queues = queues
        self._claims = 0
        self._turn = 0

    def next(self) -> tuple[str, ...]:
        self._claims += 1
        if len(self.queues) < 2 or self._claims % ALONE_EVERY:
            return self.queues
        self._turn = (self._turn + 1) % len(self.queues)
        return (self.queues[self._turn],)
