"""The SQLite store with read access: no writer thread, no lock file, no wake-up file, a connection that cannot write.

To read a database with a write-ahead log, SQLite shares a small file (`-shm`) with the writers, which it creates if it
is missing. So the file is read in one of two ways:

- If the log has frames, SQLite reads the file and its log together with the writers.
- If there is no log, or an empty one, nothing is in progress: the database file has everything. It is opened as
  immutable, so that SQLite takes no lock and creates nothing. If a writer begins meanwhile, the read is repeated.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any, NamedTuple

from millrace.domain.errors import StoreError, StoreNotFound
from millrace.domain.ledger import Ledger
from millrace.store.read_access import ReadAccess
from millrace.store.sqlite.connection import OpenedFile
from millrace.store.sqlite.errors import is_busy, store_error
from millrace.store.sqlite.file import open_reader, refuse_network_file_system, require_version
from millrace.store.sqlite.process import ProcessState
from millrace.store.sqlite.store import SqliteStore
from millrace.store.sqlite.tables import SqliteTables
from millrace.store.sqlite.threads import Call, Reader

_ADVICE = (
    "To read it, this user needs read permission on the file, and on the -wal and -shm files beside it. If the -shm "
    "file is missing although the -wal file has data, let a process that may write open the database once."
)


class ReadOnlySqliteStore(ReadAccess, SqliteStore):
    def _new_process(self) -> ProcessState:
        return ReadOnlyProcess(self.path, self._io, self._clock, self._level, self._salt, shared=self._shared)


class ReadOnlyProcess(ProcessState):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reader = ReadOnlyReader(self.path, self.io, self.clock, OpenedFile(self.path))

    async def open(self) -> None:
        call = Call(lambda _ledger, _now: None)
        self._reader.submit(call)
        await call.future
        self._note_ready()

    def write_on_thread(self) -> None:
        """Do nothing: no step is waiting to be written, and the writer must not start."""


class _FileState(NamedTuple):
    """What changes when a writer changes the file: its identity, size and time; and whether its log has frames."""

    device: int
    inode: int
    size: int
    changed: int
    has_log: bool


class ReadOnlyReader(Reader):
    def open(self) -> None:
        refuse_network_file_system(self._path)
        self._connect(_state_of(self._path))

    def _connect(self, state: _FileState) -> None:
        self._opened.note_file()
        self._state = state
        options = "mode=ro" if state.has_log else "mode=ro&immutable=1"
        self.connection = open_reader(self._path, self._io, options)
        try:
            self._io.execute(self.connection, "PRAGMA busy_timeout = 0")  # `retry_while_busy` retries
            require_version(lambda sql: self._io.execute(self.connection, sql), self._path)
        except sqlite3.Error as error:
            self._io.close(self.connection)
            if is_busy(error):
                raise
            raise _explained(error, self._path) from error
        self._tables = SqliteTables(self.connection, self._io)
        self._ledger = Ledger(self._tables)

    def _run(self, call: Call[Any]) -> None:
        """Run a call. Repeat it if a writer began while the file was read as immutable."""
        while True:
            before = _state_of(self._path)
            if self._must_reopen(before):
                self._io.close(self.connection)
                self._connect(before)
            try:
                super()._run(call)
            except sqlite3.Error:
                if self._is_valid():
                    raise
                continue
            if self._is_valid():
                return

    def _must_reopen(self, state: _FileState) -> bool:
        if state.has_log and self._state.has_log:
            return (state.device, state.inode) != (self._state.device, self._state.inode)
        return state != self._state

    def _is_valid(self) -> bool:
        """Return whether what was just read is valid: the file had a log, or nobody has written since it was opened."""
        return self._state.has_log or _state_of(self._path) == self._state


def _state_of(path: str) -> _FileState:
    try:
        found = os.stat(path)
        has_log = os.path.exists(path + "-wal") and os.path.getsize(path + "-wal") > 0
    except FileNotFoundError:
        raise StoreNotFound(f"there is no database {path}. Check the path; access=read creates none.") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror or error}). {_ADVICE}") from None
    return _FileState(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, has_log)


def _explained(error: sqlite3.Error, path: str) -> StoreError:
    name = getattr(error, "sqlite_errorname", None) or ""
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
        return StoreError(f"{path} cannot be read (SQLite: {error}). {_ADVICE}")
    return store_error(error, path)
