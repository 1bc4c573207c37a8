"""One fast-path enqueue of jobs that differ: each value is stored with its own job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from millrace.store.postgres.sql import in_schema
from millrace.testing.builders import a_spec
from millrace.testing.clock import VirtualClock
from tests.servers import postgres
from tests.store.postgres.stores import PostgresForTests


@pytest.fixture
async def store(clock: VirtualClock, tmp_path: Path) -> AsyncIterator[PostgresForTests]:
    made = PostgresForTests(postgres.url_for(tmp_path), clock=clock)
    await made.connect()
    await made.enqueue([a_spec(id="first")])  # the first job of a task is not enqueued on the fast path
    yield made
    await made.close()
    postgres.release(tmp_path)


def column(store: PostgresForTests, name: str) -> list[object]:
    """Return the values of one column of all jobs, in the order in which they were enqueued, `first` among them."""
    with psycopg.connect(store.address.dsn) as connection:
        query = in_schema(f"SELECT {name} FROM millrace.job ORDER BY seq", store.address.schema)
        return [row[0] for row in connection.execute(query.encode()).fetchall()]


async def test_only_the_watched_job_of_a_batch_has_a_process_that_waits_for_its_end(store: PostgresForTests) -> None:
    async with store.watch("b"), store.watch("e"), store.watch("f"):
        await store.enqueue([a_spec(id="a"), a_spec(id="b"), a_spec(id="c")])
        await store.enqueue([a_spec(id="d")])
        await store.enqueue([a_spec(id="e")])
        await store.enqueue([a_spec(id="f"), a_spec(id="g")])
    assert column(store, "id") == ["first", "a", "b", "c", "d", "e", "f", "g"]
    assert column(store, "reply IS NOT NULL") == [False, False, True, False, False, True, True, False]


async def test_each_job_of_a_batch_has_its_own_lease_and_time_to_keep_its_result(store: PostgresForTests) -> None:
    await store.enqueue([a_spec(lease=10, keep_result=1), a_spec(lease=20, keep_result=2)])
    await store.enqueue([a_spec(lease=30, keep_result=3), a_spec(lease=30, keep_result=3)])
    assert column(store, "lease")[1:] == [10_000, 20_000, 30_000, 30_000]
    assert column(store, "keep_result")[1:] == [1_000, 2_000, 3_000, 3_000]
