"""How long one answer may go on looking: steps are taken while there is time for another one like the longest."""

from __future__ import annotations

import time


class Patience:
    def __init__(self, seconds: float) -> None:
        self._last = time.monotonic()
        self._until = self._last + seconds
        self._longest = 0.0

    def is_over(self) -> bool:
        """Asked after each step; the first one is always taken."""
        now = time.monotonic()
        self._longest = max(self._longest, now - self._last)
        self._last = now
        return now + self._longest > self._until
