"""The server's clock, from the Date of its answers.

A Date has whole seconds only, but each one bounds the difference to our own clock from both sides, and the bounds of
several answers narrow each other down: after a few the difference is known to some hundredths of a second, whatever
this machine's clock says (BO-16). Our own clock here is the monotonic one, which nobody sets.

Within the bounds, this machine's time of day is the best guess: most are set right, and then two processes that have
asked but once agree, and what one has put in is not in the future of the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from millrace.domain.errors import StoreError

DRIFT = 1 / 20_000  # two clocks run apart by at most so much
COARSE = 100  # milliseconds of doubt above which the next asking comes soon
SOON, LATER = 1_000, 60_000  # milliseconds between two askings


def monotonic() -> int:
    return time.monotonic_ns() // 1_000_000


class ServerClock:
    def __init__(self, local: Callable[[], int] = monotonic, wall: Callable[[], int] | None = None) -> None:
        self._local = local
        self._wall = wall
        self._low = self._high = 0.0  # bounds of (server's time − ours)
        self._seen: int | None = None

    def observe(self, date: int, sent: int, received: int) -> None:
        """The server read `date`, a time cut to whole seconds, somewhere between our times `sent` and `received`."""
        low, high = float(date - received), float(date + 1_000 - sent)
        if self._seen is not None:
            aged = (received - self._seen) * DRIFT
            low, high = max(low, self._low - aged), min(high, self._high + aged)
        if low > high:  # a clock was set, or this machine slept: only the newest answer counts
            low, high = date - received, date + 1_000 - sent
        self._low, self._high, self._seen = low, high, received

    @property
    def doubt(self) -> float:
        """How far off the middle of what is known may be, in milliseconds either way."""
        return (self._high - self._low) / 2 if self._seen is not None else float("inf")

    @property
    def due(self) -> bool:
        """Time to ask again?"""
        if self._seen is None:
            return True
        return self._local() - self._seen >= (SOON if self.doubt > COARSE else LATER)

    def now(self) -> int:
        if self._seen is None:
            raise StoreError("the server's time is not known yet")
        local = self._local()
        guess = (self._low + self._high) / 2 if self._wall is None else float(self._wall() - local)
        return int(local + min(max(guess, self._low), self._high))

    def put_off(self) -> None:
        """It could not be asked; go on with what is known for as long as usual."""
        if self._seen is not None:
            self._seen = self._local()


def ask(server: str, clock: ServerClock, timeout: float = 5.0) -> None:
    """Any answer will do, also one that refuses: it carries a Date, and needs no signature. Blocks."""
    sent = monotonic()
    try:
        with urlopen(Request(server + "/", method="HEAD"), timeout=timeout) as reply:
            date = reply.headers["Date"]
    except HTTPError as refusal:
        date = refusal.headers["Date"]
        refusal.close()
    received = monotonic()
    if date:
        clock.observe(int(parsedate_to_datetime(date).timestamp()) * 1_000, sent, received)
