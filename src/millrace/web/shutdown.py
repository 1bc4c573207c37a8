"""Shutdown: ends event streams and waiting requests, because a server waits until all requests have ended.

`millrace serve` sets the event. An application that uvicorn runs directly, or that is mounted in another one, is
notified of a shutdown only after the last request has ended, which is too late. So it reads the flag `should_exit` of
uvicorn's server. It finds the server through the signal handler for SIGTERM, which is a method of the server.
"""

from __future__ import annotations

import asyncio
import signal

POLL = 0.5  # seconds


class Shutdown(asyncio.Event):
    def is_set(self) -> bool:
        if not super().is_set() and _server_stops():
            self.set()
        return super().is_set()

    async def within(self, seconds: float) -> bool:
        """Sleep for `seconds`, or until the server shuts down. Return True if it shuts down."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while not self.is_set() and (left := until - clock()) > 0:
            try:
                async with asyncio.timeout(min(left, POLL)):
                    await self.wait()
            except TimeoutError:
                pass
        return self.is_set()


def _server_stops() -> bool:
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True
