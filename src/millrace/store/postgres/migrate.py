"""Creates and upgrades the schema. If several processes start at the same time, one of them does it.

An upgrade runs the migrations that the schema does not have yet, and installs the current functions.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from millrace.domain.errors import StoreError, StoreNotFound
from millrace.store.postgres.address import transaction
from millrace.store.postgres.sql import in_schema

VERSION = 4  # of the tables and functions
_HEAD = """-- The tables and functions of Millrace, version {version}, in the schema {schema}.
BEGIN ISOLATION LEVEL READ COMMITTED;
CREATE SCHEMA IF NOT EXISTS "{schema}";
"""
_TAIL = """UPDATE "{schema}".store SET version = {version};
COMMIT;
"""


@cache
def migrations(schema: str) -> dict[int, str]:
    """Return the SQL of each migration of the tables, by the schema version that it creates."""
    return {int(name[:4]): text for name, text in _files("migrations", schema).items()}


@cache
def functions(schema: str) -> str:
    """Return the SQL that creates or replaces the functions and views. If you change one of them, increment `VERSION`.

    If the arguments of a function or the columns of a view change, a migration must also drop the old one first.
    """
    return "\n".join(_files("functions", schema).values())


def _files(folder: str, schema: str) -> dict[str, str]:
    entries = sorted(resources.files(__package__).joinpath(folder).iterdir(), key=lambda entry: entry.name)
    return {entry.name: in_schema(entry.read_text("utf-8"), schema) for entry in entries if entry.name.endswith(".sql")}


def script(schema: str) -> str:
    """Return the SQL that `migrate` runs on an empty schema. Administrators can run it by hand."""
    head, tail = (text.format(version=VERSION, schema=schema) for text in (_HEAD, _TAIL))
    return "\n".join([head, *migrations(schema).values(), functions(schema), tail])


async def version_of(connection: Any, schema: str) -> int:
    """Return the version of the schema; 0 if the schema has no tables of Millrace."""
    there = "SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'store')"
    # Not to_regclass, which may return a state that was cached before the lock was taken.
    if not await connection.fetchval(there, schema):
        return 0
    return int(await connection.fetchval(in_schema("SELECT version FROM millrace.store", schema)))


async def migrate(connection: Any, schema: str) -> None:
    found = await version_of(connection, schema)
    if found == VERSION:
        return
    _refuse_newer(found, schema)
    async with transaction(connection):
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 1))", f"millrace schema {schema}")
        found = await version_of(connection, schema)
        _refuse_newer(found, schema)
        if found == VERSION:  # another process has done it meanwhile
            return
        await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        for version, step in migrations(schema).items():
            if version > found:
                await connection.execute(step)
        await connection.execute(functions(schema))
        await connection.execute(in_schema("UPDATE millrace.store SET version = $1", schema), VERSION)


async def require_version(connection: Any, schema: str) -> None:
    """Raise StoreError unless the schema has the current version. Nothing is written."""
    found = await version_of(connection, schema)
    _refuse_newer(found, schema)
    if found < VERSION:
        state = f"has version {found}" if found else "has no tables of Millrace"
        kind = StoreError if found else StoreNotFound
        raise kind(
            f"schema {schema!r} {state}, and access=read cannot upgrade it to version {VERSION}. Connect once without "
            "access=read, or run the output of: millrace init --sql"
        )


def _refuse_newer(found: int, schema: str) -> None:
    if found > VERSION:
        raise StoreError(
            f"schema {schema!r} has version {found}, made by a newer Millrace; this one knows version {VERSION}. "
            "Upgrade this program."
        )
