"""The server's clock, estimated from the Date headers of its responses.

A Date has only whole seconds. But each response gives a lower and an upper bound for the difference to our own clock,
and several responses narrow these bounds. After a few responses, the difference is known to some hundredths of a
second.

Our own clock is monotonic here. If the system has such a clock, it also runs while the machine sleeps. If it does not,
or if the time of day is set, this machine's monotonic clock and its time of day drift apart. Then the estimate is
discarded, and the server is asked before anything is decided.

Within the bounds, this machine's time of day is the best guess. Most machines are set correctly, so two processes that
have asked only once mostly agree.
"""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from millrace.domain.errors import StoreError
from millrace.store.clock import boot_clock

DRIFT = 1 / 20_000  # the most that two clocks drift apart
COARSE = 100  # milliseconds of uncertainty above which the server is asked again soon
SOON, LATER = 1_000, 60_000  # milliseconds between two requests
PARTED = 1_000  # milliseconds that this machine's clocks may drift apart between two requests


class ServerClock:
    def __init__(self, local: Callable[[], int] = boot_clock, wall: Callable[[], int] | None = None) -> None:
        self.local = local
        self._wall = wall
        self._apart: int | None = None  # (time of day − monotonic clock) at the server's last response
        self._low = self._high = 0.0  # bounds of (server's time − monotonic clock)
        self._seen: int | None = None

    def observe(self, date: int, sent: int, received: int) -> None:
        """Narrow the estimate by one response of the server.

        The server's time was `date`, rounded down to whole seconds, at some moment between our times `sent` and
        `received`.
        """
        low, high = float(date - received), float(date + 1_000 - sent)
        if self._seen is not None and not self._parted:
            aged = (received - self._seen) * DRIFT
            low, high = max(low, self._low - aged), min(high, self._high + aged)
        if low > high:  # the server's clock was set: only the newest response counts
            low, high = date - received, date + 1_000 - sent
        self._low, self._high, self._seen = low, high, received
        self._apart = None if self._wall is None else self._wall() - self.local()

    @property
    def _parted(self) -> bool:
        """Whether this machine slept, or its time of day was set, since the server's last response."""
        if self._wall is None or self._apart is None:
            return False
        return abs(self._wall() - self.local() - self._apart) > PARTED

    @property
    def doubt(self) -> float:
        """The largest possible error of the estimate, in milliseconds; infinite if there is no valid estimate."""
        return float("inf") if self._seen is None or self._parted else (self._high - self._low) / 2

    @property
    def due(self) -> bool:
        """Whether it is time to ask the server again."""
        if self._seen is None or self._parted:
            return True
        return self.local() - self._seen >= (SOON if self.doubt > COARSE else LATER)

    def now(self) -> int:
        if self._seen is None:
            raise StoreError("the server's time is not known yet")
        local = self.local()
        guess = (self._low + self._high) / 2 if self._wall is None else float(self._wall() - local)
        return int(local + min(max(guess, self._low), self._high))

    def put_off(self) -> None:
        """Keep the current estimate until the next regular request. Used when the server cannot be asked."""
        if self._seen is not None:
            self._seen = self.local()


def ask(server: str, clock: ServerClock, timeout: float = 5.0) -> None:
    """Ask the server for its time, and record the answer in `clock`. Blocks.

    The request needs no signature, because error responses have a Date header too.
    """
    sent = clock.local()
    try:
        with urlopen(Request(server + "/", method="HEAD"), timeout=timeout) as reply:
            date = reply.headers["Date"]
    except HTTPError as refusal:
        date = refusal.headers["Date"]
        refusal.close()
    received = clock.local()
    if date:
        clock.observe(int(parsedate_to_datetime(date).timestamp()) * 1_000, sent, received)
