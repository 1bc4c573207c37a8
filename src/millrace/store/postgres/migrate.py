"""Bring a schema to this version: exactly once, whoever else starts at the same moment."""

from __future__ import annotations

from typing import Any

from millrace.domain.errors import StoreError
from millrace.store.postgres.sql import VERSION, in_schema, migrations

_HEAD = """-- The tables and functions of Millrace, version {version}, in the schema {schema}.
BEGIN;
CREATE SCHEMA IF NOT EXISTS "{schema}";
"""


def script(schema: str) -> str:
    """What `migrate` runs on an empty schema, for those who run it themselves."""
    return "\n".join([_HEAD.format(version=VERSION, schema=schema), *migrations(schema), "COMMIT;\n"])


async def version_of(connection: Any, schema: str) -> int:
    """0: there is nothing yet."""
    there = "SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'store')"
    if not await connection.fetchval(
        there, schema
    ):  # not to_regclass: it may remember what was so before a lock was got
        return 0
    return int(await connection.fetchval(in_schema("SELECT version FROM millrace.store", schema)))


async def migrate(connection: Any, schema: str) -> None:
    found = await version_of(connection, schema)
    if found == VERSION:
        return
    _refuse_newer(found, schema)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 1))", f"millrace schema {schema}")
        found = await version_of(connection, schema)
        _refuse_newer(found, schema)
        await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        for step in migrations(schema)[found:]:
            await connection.execute(step)
        await connection.execute(in_schema("UPDATE millrace.store SET version = $1", schema), VERSION)


def _refuse_newer(found: int, schema: str) -> None:
    if found > VERSION:
        raise StoreError(
            f"schema {schema!r} has version {found}, made by a newer Millrace; this one knows version {VERSION}. "
            "Upgrade this program."
        )
