"""A unit of work on one connection: running statements, and what was read and written since the last commit.

Rows that were read stay at hand until another connection writes to the file; what a step changes is collected and
written in few large statements, before a query that could see the difference and before the commit.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Any

from millrace.store.sqlite.io import Io, Params, Rows
from millrace.store.sqlite.sql import SIZES, SQL, many_rows


class Unit:
    def __init__(self, connection: sqlite3.Connection, io: Io) -> None:
        self._connection = connection
        self._io = io
        self._version: int | None = None
        self.touched = False  # did anything change since the store last looked?
        self.soon = 0  # jobs due by this instant are worth waking somebody for
        self.opened: Counter[str] = Counter()
        self.ended: list[str] = []
        self.replies: list[tuple[str, str]] = []
        self.forget()

    def rows(self, name: str, params: Params = ()) -> Rows:
        return self._io.execute(self._connection, SQL[name], params)

    def value(self, name: str, params: Params = ()) -> Any:
        return self.rows(name, params)[0][0]

    def write_rows(self, name: str, values: list[Any]) -> None:
        """Run a statement over many rows, given flat."""
        statement = many_rows(name)
        width = statement.width
        start, left = 0, len(values) // width
        for size in SIZES:
            while left >= size:
                part = values[start : start + size * width] if left > size or start else values
                self._io.execute(self._connection, statement.by_size[size], part)
                start += size * width
                left -= size

    def refresh(self) -> None:
        """Called first in every transaction: what another connection wrote makes all that is remembered stale."""
        version = self._io.execute(self._connection, "PRAGMA data_version")[0][0]
        if version != self._version:
            self.outdated()
            self._version = version

    def outdated(self) -> None:
        """Another connection has written; parts keep what nobody ever takes back."""
        self.forget()

    def forget(self) -> None:
        """Drop everything that was read or written; parts add what they remember."""

    def flush(self) -> None:
        """Write everything that was changed; parts add what they hold back."""

    def take_news(self) -> tuple[Counter[str], list[str], list[tuple[str, str]]]:
        """(jobs that became claimable per queue, ids that ended, whom to tell of which end) since the last call."""
        news = self.opened, self.ended, self.replies
        self.opened, self.ended, self.replies = Counter(), [], []
        return news

    def stir(self, queue: str, jobs: int) -> None:
        self.opened[queue] += jobs
