"""How far a stream is behind its store. Spark shows the figures in the progress reports of a query, as part of the
latest offset of the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from millrace.domain.request import EventSpan

MEASURE_EVERY = 10.0  # seconds; in a bucket, counting the events behind lists all of them


class Lag:
    """The lag of a stream when its last micro-batch was planned. All figures include the events of that batch."""

    def __init__(self) -> None:
        self.newest: str | None = None  # cursor
        self._events = 0
        self._age = 0  # milliseconds since the oldest of the events
        self._batch = ("", 0)  # the cursor before the last micro-batch, and its number of events
        self._measured: float | None = None

    @property
    def figures(self) -> dict[str, int]:
        """The lag in events and in seconds. Spark accepts only whole numbers."""
        return {"events_behind": self._events, "seconds_behind": self._age // 1000}

    def is_due(self) -> bool:
        """Return whether the events behind must be counted again. In between, they are computed from the last count."""
        return self._measured is None or monotonic() - self._measured >= MEASURE_EVERY

    def planned(self, after: str, count: int, newest: Sequence[EventSpan], age: int | None) -> None:
        """Note a micro-batch of `count` events after the cursor `after`. `newest` has all events after this cursor; it
        is empty if they were not counted again. `age` is that of the first event, or None if there is none.
        """
        before, taken = self._batch
        if newest:
            self.newest, self._measured = newest[-1].until, monotonic()
            self._events = sum(span.count for span in newest)
        elif after != before:
            self._events -= taken
        self._events = max(self._events, count)
        self._batch = (after, count)
        self._age = 0 if age is None else max(0, age)
