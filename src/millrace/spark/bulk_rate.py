"""How fast jobs are acted on: in batches, so many jobs per second on the whole."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable

from millrace.domain.errors import InvalidInput

BATCH = 500
_UNITS = {"s": 1, "m": 60, "h": 3600}


def read_rate(given: str | float | None) -> float | None:
    """Jobs per second: of 100, "100/s", "30/m", "500/h". None: as fast as the store takes them."""
    if given is None:
        return None
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*(?:/\s*([smh]))?", str(given).strip(), re.ASCII)
    rate = float(found[1]) / _UNITS[found[2] or "s"] if found else 0.0
    if rate <= 0:
        raise InvalidInput(f"the rate is a number of jobs such as 100/s, 30/m or 500/h, not {given!r}")
    return rate


class Pace:
    """`wait` sleeps, and answers whether somebody wants it to stop."""

    def __init__(
        self,
        rate: float | None,
        wait: Callable[[float], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate
        self._wait = wait or threading.Event().wait
        self._clock = clock
        self._due = clock()
        # At most a second's worth at once: a limit of 100/s that lets 500 through every five seconds spares nobody.
        self.size = BATCH if rate is None else max(1, min(BATCH, math.floor(rate)))

    def admit(self, jobs: int) -> bool:
        """Sleep until so many more may be acted on; False: stop instead."""
        now = self._clock()
        if self._wait(max(0.0, self._due - now)):
            return False
        if self._rate is not None:
            self._due = max(self._due, now) + jobs / self._rate
        return True
