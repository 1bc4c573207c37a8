"""The reader: a thread and a connection of its own, so that looking never waits for writing."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

from millrace.domain.ledger import Ledger
from millrace.store.clock import Clock
from millrace.store.sqlite.connection import open_reader, patiently
from millrace.store.sqlite.io import Io
from millrace.store.sqlite.tables import SqliteTables
from millrace.store.sqlite.thread import Call, CallThread, answer_all
from millrace.store.sqlite.trouble import store_error


class Reader(CallThread):
    def __init__(self, path: str, io: Io, clock: Clock) -> None:
        super().__init__("millrace-sqlite-reader")
        self._path = path
        self._io = io
        self._clock = clock

    def open(self) -> None:
        try:
            self.connection = open_reader(self._path, self._io)
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error
        self._tables = SqliteTables(self.connection, self._io)
        self._ledger = Ledger(self._tables)

    def serve(self) -> None:
        """One snapshot for each call: short, so that the log can be written back."""
        calls = self.take()
        for call in calls:
            try:
                patiently(lambda call=call: self._run(call))  # type: ignore[misc]
            except sqlite3.Error as error:
                call.error = store_error(error, self._path)
            except Exception as error:
                call.error = error
        answer_all(calls)

    def _run(self, call: Call[Any]) -> None:
        self._io.begin_read(self.connection)
        try:
            self._tables.refresh()
            call.result = call.run(self._ledger, self._clock())
        finally:
            self._tables.ease()
            with contextlib.suppress(sqlite3.Error):
                self._io.rollback(self.connection)

    def shut(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._io.close(self.connection)
