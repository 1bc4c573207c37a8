"""uvloop's event loop with the clock of asyncio's loop.

uvloop's own `time()` counts whole milliseconds. A worker measures handlers of a few microseconds with it, to decide how
many jobs to claim ahead.
"""

from __future__ import annotations

from time import monotonic

import uvloop


class FastLoop(uvloop.Loop):
    def time(self) -> float:
        return monotonic()
