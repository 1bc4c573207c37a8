"""The store's clock: milliseconds since the epoch. Tests and simulations replace it by a clock of their own."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]


def system_clock() -> int:
    return time.time_ns() // 1_000_000


def boot_clock() -> int:
    """Return the time of a monotonic clock in milliseconds. If the system allows it, the clock also runs during
    suspend.
    """
    return time.clock_gettime_ns(_STEADY) // 1_000_000


_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
