"""Where a peer's worker does not stop by itself: what counts its handlers, and what waits for something to be so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Countdown:
    def __init__(self) -> None:
        self.left = 0
        self.over = asyncio.Event()
        self.at_the_end: Callable[[], None] = self.over.set

    def one(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.at_the_end()


countdown = Countdown()


async def until(so: Callable[[], Awaitable[bool]], pause: float = 0.001) -> None:
    """Ask again and again, where there is nothing that tells."""
    while not await so():  # noqa: ASYNC110
        await asyncio.sleep(pause)
