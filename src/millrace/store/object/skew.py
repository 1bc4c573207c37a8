"""How far this machine's clock is off (O-13).

Everything goes by the store's own clock, so a wrong one here lets no job start early. It is still worth a word: what
else runs on this machine tells times that nobody can compare. And where the two differ by a minute, one of them cannot
be believed, and nobody knows which.
"""

from __future__ import annotations

import logging

from millrace.domain.errors import StoreError
from millrace.store.clock import Clock, system_clock
from millrace.store.object.blobs import Blobs

log = logging.getLogger("millrace.store")
REFUSED_ABOVE = 60_000


class SkewGuard:
    """`most` is the difference, in milliseconds, above which it warns, once."""

    def __init__(self, blobs: Blobs, most: int, local: Clock = system_clock) -> None:
        self._blobs = blobs
        self._most = most
        self._local = local
        self._warned = False

    async def check(self) -> None:
        """StoreError when the clocks are too far apart to claim anything."""
        skew = self._local() - await self._blobs.now()
        if abs(skew) > REFUSED_ABOVE:
            raise StoreError(
                f"{self._blobs.url}: {_told(skew)}, more than {REFUSED_ABOVE // 1000} s. Nothing is claimed until they "
                "agree: set this machine's clock (timedatectl set-ntp true, or chronyc makestep), or the server's."
            )
        if abs(skew) > self._most and not self._warned:
            self._warned = True
            log.warning(
                "%s: %s, more than the %d ms allowed; the store's clock is the one that counts. "
                "Set this machine's clock, or allow more with MILLRACE_MAX_CLOCK_SKEW_MS.",
                self._blobs.url,
                _told(skew),
                self._most,
            )


def _told(skew: int) -> str:
    way = "ahead of" if skew > 0 else "behind"
    return f"this machine's clock is {abs(skew) / 1000:.1f} s {way} the store's"
