"""Handles hints so that only a few processes query the server, although every process receives every NOTIFY.

A hint reports claimable jobs at a place, which is a (queue, task), and the number of live workers of the queue. A
sleeper is an idle worker that waits for jobs. A process that has a matching sleeper decides at random whether to wake
it at once. The odds are such that a few more workers wake up than there are jobs. If not every worker is to wake up,
the process also announces that it takes the jobs.

A process that does not wake its sleeper waits for a short time. If the announcements by then do not cover all jobs, it
wakes its sleeper too. This is needed because no process may have been chosen: most workers may be busy, or run other
tasks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from millrace.domain.tables import Place

SPARE = 2  # sleepers that wake up immediately, beyond one for each job
_STEP = 0.003  # seconds of delay for each live worker …
_LONGEST = 0.1  # … and at most


class Hint(NamedTuple):
    """The number of claimable jobs at a place, and of live workers that may receive the hint (0 if not known)."""

    queue: str | None
    task: str | None
    jobs: int
    live: int = 0

    @property
    def place(self) -> Place:
        return self.queue, self.task


class HintHandler:
    """Decides in one process which hints wake a sleeper.

    `wake` wakes sleepers, and returns by place the number of jobs that found no sleeper. `can_use` returns how many
    sleepers could use a hint for these places. `announce_taken` notifies the other processes that this process takes
    jobs.
    """

    def __init__(
        self,
        wake: Callable[[Mapping[Place, int]], Mapping[Place, int]],
        can_use: Callable[[Iterable[Place]], int],
        announce_taken: Callable[[Place, int], None],
    ) -> None:
        self._wake = wake
        self._can_use = can_use
        self._announce_taken = announce_taken
        self._open: dict[Place, int] = {}  # jobs that no process has announced to take
        self._timers: dict[Place, asyncio.TimerHandle] = {}

    def receive(self, hint: Hint) -> None:
        able = self._can_use([hint.place])
        if not able:
            return
        share = min(1.0, (SPARE + hint.jobs) / max(1, hint.live))
        if random.random() < 1 - (1 - share) ** able:  # one decision for all sleepers of this process
            self._wake_now(hint.place, hint.jobs, alone=share == 1.0)
            return
        self._open[hint.place] = self._open.get(hint.place, 0) + hint.jobs
        if hint.place not in self._timers:
            longest = min(_LONGEST, hint.live * _STEP)
            delay = longest * random.uniform(0.25, 1.0)
            self._timers[hint.place] = asyncio.get_running_loop().call_later(delay, self._wake_late, hint.place)

    def receive_taken(self, hint: Hint) -> None:
        """Handle the announcement that another process takes jobs."""
        left = self._open.get(hint.place, 0) - hint.jobs
        if left > 0:
            self._open[hint.place] = left
        elif hint.place in self._open:
            del self._open[hint.place]
            self._timers.pop(hint.place).cancel()

    def _wake_late(self, place: Place) -> None:
        del self._timers[place]
        self._wake_now(place, self._open.pop(place), alone=False)

    def _wake_now(self, place: Place, jobs: int, *, alone: bool) -> None:
        woken = jobs - self._wake({place: jobs}).get(place, 0)
        if woken > 0 and not alone:
            self._announce_taken(place, woken)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._open.clear()
