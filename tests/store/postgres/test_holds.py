"""The rows of unique keys: upkeep removes those whose window is over, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from millrace.testing.builders import a_spec
from millrace.testing.clock import VirtualClock
from tests.servers import postgres
from tests.store.postgres.stores import PostgresForTests


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[PostgresForTests]:
    made = PostgresForTests(postgres.url_for(tmp_path), clock=clock)
    await made.connect()
    yield made
    await made.close()
    postgres.release(tmp_path)


async def test_a_key_whose_window_is_over_leaves_no_row(store: PostgresForTests, clock: VirtualClock) -> None:
    await store.enqueue([a_spec(key=f"{number} s", scope="window", window=number) for number in (1, 60)])
    await store.enqueue([a_spec(key="live")])
    clock.advance(2)
    await store.maintain()

    with psycopg.connect(store.address.dsn) as connection:
        found = connection.execute(f'SELECT key FROM "{store.address.schema}".hold ORDER BY key'.encode()).fetchall()
    assert found == [("60 s",), ("live",)]
