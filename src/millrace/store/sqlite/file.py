"""The file itself: where it may lie, who may read it, and which version of the schema is in it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable

from millrace.domain.errors import StoreError
from millrace.store.file_system import NETWORK_FILE_SYSTEMS, file_system_of, mounts_here
from millrace.store.sqlite.io import Io, Rows
from millrace.store.sqlite.sql import migrations

APPLICATION_ID = 0x4D696C6C  # "Mill"


def refuse_network_file_system(path: str, mounts: str | None = None) -> None:
    """WAL needs memory shared by all who open the file, which no network file system gives."""
    kind = file_system_of(os.path.realpath(path), mounts_here() if mounts is None else mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path} lies on a network file system ({kind}), where SQLite's locks and shared memory do not work. "
            "Put the file on a local disk, or use a server store such as postgresql:// for several machines."
        )


def make_file(path: str, io: Io) -> None:
    """The database file, readable by its owner only, in a directory that is there and may be written."""
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


def migrate(connection: sqlite3.Connection, io: Io, path: str, *, shared: bool) -> None:
    """Bring the schema up to date; several processes may try at once, and one of them does it."""

    def read(sql: str) -> Rows:
        return io.execute(connection, sql)

    if _checked_version(read, path, shared) == len(migrations()):
        return
    io.begin(connection)
    try:
        version = _checked_version(read, path, shared)
        if _is_empty(read):
            read(f"PRAGMA application_id = {APPLICATION_ID}")  # for those who look at the file from outside
        for number, step in enumerate(migrations()[version:], start=version + 1):
            io.script(connection, step)
            io.execute(connection, "UPDATE millrace_store SET version = ?", (number,))
        io.commit(connection)
    except BaseException:
        io.rollback(connection)
        raise


def schema_version(read: Callable[[str], Rows]) -> int:
    """Of Millrace's tables in this database; 0 when it has none."""
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
    if version > len(migrations()):
        raise StoreError(
            f"{path} has schema version {version}, and this millrace knows versions up to {len(migrations())}. "
            "Upgrade millrace in this environment: pip install --upgrade millrace"
        )
    return version
