"""A clock that moves only when a test moves it, so that tests need not wait for real time to pass."""

from __future__ import annotations

START = 1_700_000_000_000  # a realistic instant, so that mixing up seconds and milliseconds is noticed


class VirtualClock:
    """A clock for stores. Calling it returns milliseconds since 1970; `advance` takes seconds."""

    def __init__(self, at: int = START) -> None:
        self._at = at

    def __call__(self) -> int:
        return self._at

    def advance(self, seconds: float) -> int:
        """Move the clock forward by `seconds`, or back if negative, and return the new time in milliseconds."""
        self._at += round(seconds * 1000)
        return self._at

    def set(self, at: int) -> None:
        """Set the clock to `at`, in milliseconds; `at` may be earlier than the current time."""
        self._at = at
