"""A clock that stands still until it is told otherwise, so that a test of thirty seconds takes none."""

from __future__ import annotations

START = 1_700_000_000_000  # an instant that looks like one: a mix-up of seconds and milliseconds shows


class VirtualClock:
    """Milliseconds, as a store asks for them; moved in seconds, as a reader thinks of them."""

    def __init__(self, at: int = START) -> None:
        self._at = at

    def __call__(self) -> int:
        return self._at

    def advance(self, seconds: float) -> int:
        """Move on (or, with a negative number, back); answers the new instant."""
        self._at += round(seconds * 1000)
        return self._at

    def set(self, at: int) -> None:
        """Jump to an instant in milliseconds, forwards or backwards."""
        self._at = at
