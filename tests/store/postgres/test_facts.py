"""What `millrace doctor` is told about a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from tests.servers.postgres import shared_url
from tests.store.postgres.isolations import LEVELS, schemas_under
from tests.store.postgres.stores import PostgresForTests


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[PostgresForTests]:
    """A store in a database that no other test uses at the same time."""
    schemas = schemas_under(LEVELS[0])
    made = PostgresForTests(schemas.url_for(tmp_path))
    await made.connect()
    await made.facts()  # now the store listens, and does not begin a transaction by itself
    yield made
    await made.close()
    schemas.release(tmp_path)


async def test_the_facts_name_the_oldest_open_transaction_of_the_database(alone: PostgresForTests) -> None:
    with (
        psycopg.connect(shared_url()) as elsewhere,
        psycopg.connect(alone.address.dsn, application_name="reader") as reader,
    ):
        elsewhere.execute("SELECT 1")  # begins a transaction
        reader.execute("SELECT 1")

        facts = await alone.facts()

        assert (facts["oldest_pid"], facts["oldest_name"]) == (reader.info.backend_pid, "reader")
        assert facts["oldest_state"] == "idle in transaction"


async def test_the_facts_contain_the_tables_of_the_schema(alone: PostgresForTests) -> None:
    names = [name for name, *_ in (await alone.facts())["tables"]]
    assert {"job", "ready", "lease"} <= set(names)
    assert len(names) == len(set(names))
