"""The database file: where it may be, how it is opened, the version of its schema, and integrity checks."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from importlib import resources

from millrace.domain.errors import StoreError, StoreNotFound
from millrace.store.file_system import NETWORK_FILE_SYSTEMS, file_system_of, mounts_here
from millrace.store.sqlite.connection import Io, Rows, retry_while_busy
from millrace.store.sqlite.errors import store_error

APPLICATION_ID = 0x4D696C6C  # "Mill"
CACHE_KIB = 16 * 1024  # a larger cache is slower: SQLite walks all of it after a commit that has moved pages
CHECKPOINT_PAGES = 4_000  # 16 MiB of log; then the writer's thread checkpoints it, and it is reused from its start
MAX_LOG = 64 << 20
BUSY_MS = 200  # SQLite's own busy timeout; then `retry_while_busy` retries
SCHEMA = resources.files(__package__).joinpath("schema.sql").read_text("utf-8")
VERSION = 4  # of the schema, as in schema.sql; no release has made files of an earlier version
_QUICK_CHECK_UP_TO = 256 << 20  # bytes; a larger file is checked on demand only


def refuse_network_file_system(path: str, mounts: str | None = None) -> None:
    """Raise StoreError if the file is on a network file system.

    In WAL mode, all processes that use the file must share memory, which requires one machine.
    """
    kind = file_system_of(os.path.realpath(path), mounts_here() if mounts is None else mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path} lies on a network file system ({kind}), where SQLite's locks and shared memory do not work. "
            "Put the file on a local disk, or use a server store such as postgresql:// for several machines."
        )


def make_file(path: str, io: Io) -> None:
    """Create the database file if it does not exist, readable by its owner only.

    Raises StoreError if the directory does not exist, is on a network file system, or is not writable.
    """
    directory = os.path.dirname(path) or "."
    if not os.path.isdir(directory):
        raise StoreError(f"there is no directory {directory} for the database {path}. Create it first.")
    if os.path.isdir(path):
        raise StoreError(f"{path} is a directory; name a file in it, for example sqlite:///{path}/jobs.db")
    refuse_network_file_system(path)
    try:
        io.create(path)
    except PermissionError as error:
        raise StoreError(f"{path} cannot be opened for writing ({error.strerror}). {_WHO}") from None
    if not os.access(directory, os.W_OK) or not os.access(path, os.W_OK):
        raise StoreError(f"{path} or its directory is read-only. {_WHO}")


_WHO = "Run as a user who may write both the file and its directory: SQLite keeps its log beside the file."


def create_tables(connection: sqlite3.Connection, io: Io, path: str, *, shared: bool) -> None:
    """Create the tables if there are none. If several processes call this at once, one of them creates the tables.

    Raise StoreError if the tables have another version. Raise it also if another program created the file, unless
    `shared` is set.
    """

    def read(sql: str) -> Rows:
        return io.execute(connection, sql)

    if _checked_version(read, path, shared):
        return
    io.begin(connection)
    try:
        if not _checked_version(read, path, shared):
            if _is_empty(read):
                read(f"PRAGMA application_id = {APPLICATION_ID}")  # for tools that identify files
            io.script(connection, SCHEMA)
        io.commit(connection)
    except BaseException:
        io.rollback(connection)
        raise


def require_version(read: Callable[[str], Rows], path: str) -> None:
    """Raise StoreError unless the database has the current schema. Nothing is written."""
    version = schema_version(read)
    if not version:
        raise StoreNotFound(f"{path} has no tables of Millrace. Check the path; access=read creates none.")
    _refuse_other(version, path)


def schema_version(read: Callable[[str], Rows]) -> int:
    """Return the version of Millrace's tables in this database; 0 if the database has none."""
    if not read("SELECT 1 FROM sqlite_schema WHERE name = 'millrace_store'"):
        return 0
    version: int = read("SELECT version FROM millrace_store")[0][0]
    return version


def _is_empty(read: Callable[[str], Rows]) -> bool:
    return not read("SELECT 1 FROM sqlite_schema LIMIT 1")


def _checked_version(read: Callable[[str], Rows], path: str, shared: bool) -> int:
    version = schema_version(read)
    if not version and not shared and not _is_empty(read):
        raise StoreError(
            f"{path} is a SQLite database of another program, and Millrace did not touch it. Choose another file; or, "
            "if it is yours and jobs are to commit together with your own tables, add ?shared=yes to the URL: "
            "Millrace then keeps its tables, all named millrace_…, beside yours."
        )
    if version:
        _refuse_other(version, path)
    return version


def _refuse_other(version: int, path: str) -> None:
    if version > VERSION:
        raise StoreError(
            f"{path} has schema version {version}, and this millrace knows versions up to {VERSION}. "
            "Upgrade millrace in this environment."
        )
    if version < VERSION:
        raise StoreError(
            f"{path} has schema version {version}, of a millrace before the first release, which this one cannot read. "
            "Finish its jobs with that millrace, and choose a new file."
        )


# ── connections ───────────────────────────────────────────────────────────────────────────────


def open_writer(path: str, io: Io, durability: str) -> sqlite3.Connection:
    connection = _open(path, io)
    try:
        _prepare_writer(connection, path, io, durability)
    except BaseException:
        io.close(connection)
        raise
    return connection


def _prepare_writer(connection: sqlite3.Connection, path: str, io: Io, durability: str) -> None:
    mode = retry_while_busy(lambda: io.execute(connection, "PRAGMA journal_mode = WAL"))[0][0]
    if mode != "wal":
        raise StoreError(f"{path}: SQLite refuses write-ahead logging here ({mode}). Put the file on a local disk.")
    for pragma in (
        f"synchronous = {'NORMAL' if durability == 'relaxed' else 'FULL'}",
        f"wal_autocheckpoint = {2 * CHECKPOINT_PAGES}",  # only if the writer has underestimated the log
        "busy_timeout = 0",  # `retry_while_busy` retries; a caller's thread does not wait
        f"journal_size_limit = {MAX_LOG}",
        "secure_delete = OFF",
    ):
        io.execute(connection, f"PRAGMA {pragma}")


def open_reader(path: str, io: Io, options: str = "mode=rw") -> sqlite3.Connection:
    connection = _open(path, io, options)
    io.execute(connection, "PRAGMA query_only = ON")
    return connection


def _open(path: str, io: Io, options: str = "mode=rw") -> sqlite3.Connection:
    connection = io.open(path, options)
    for pragma in (f"busy_timeout = {BUSY_MS}", f"cache_size = -{CACHE_KIB}", "temp_store = MEMORY"):
        io.execute(connection, f"PRAGMA {pragma}")
    return connection


def check(connection: sqlite3.Connection, io: Io, path: str, *, thorough: bool) -> list[str]:
    """Return the errors that SQLite finds in the file; an empty list if there are none.

    Without `thorough`, a file over 256 MiB is not checked. Raises StoreError if the file cannot be read.
    """
    if not thorough and os.path.getsize(path) > _QUICK_CHECK_UP_TO:
        return []
    pragma = "PRAGMA integrity_check(20)" if thorough else "PRAGMA quick_check(1)"
    try:
        found = [str(row[0]) for row in io.execute(connection, pragma)]
    except sqlite3.DatabaseError as error:
        raise store_error(error, path) from error
    return [] if found == ["ok"] else found
