"""Whether the server is to stop. Streams and waits look here, because a server waits for them to end by themselves.

`millrace serve` sets the event. An application that uvicorn runs, or that is mounted in another, is told nothing until
its last request has ended; but uvicorn has put its own handler on SIGTERM, and that handler's server knows.
"""

from __future__ import annotations

import asyncio
import signal

GLANCE = 0.5  # seconds


class Stopping(asyncio.Event):
    def is_set(self) -> bool:
        if not super().is_set() and _server_stops():
            self.set()
        return super().is_set()

    async def within(self, seconds: float) -> bool:
        """Sleep; True as soon as the server is to stop."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while not self.is_set() and (left := until - clock()) > 0:
            try:
                async with asyncio.timeout(min(left, GLANCE)):
                    await self.wait()
            except TimeoutError:
                pass
        return self.is_set()


def _server_stops() -> bool:
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True
