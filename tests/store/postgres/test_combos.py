"""Combinations of queue, task and priority that another process has created."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from millrace.store.postgres.sql import statements
from millrace.testing.builders import a_claim, a_spec
from tests.servers import postgres
from tests.store.postgres.stores import PostgresForTests


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PostgresForTests]:
    made = PostgresForTests(postgres.url_for(tmp_path))
    await made.connect()
    yield made
    await made.close()
    postgres.release(tmp_path)


async def test_a_combination_that_another_process_has_made_is_found(store: PostgresForTests) -> None:
    sql = statements(store.address.schema)
    with psycopg.connect(store.address.dsn, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:

        def made(name: str, *arguments: object) -> int:
            [(number,)] = connection.execute(sql[name].encode(), arguments).fetchall()
            return int(number)

        queues = [made("make_queue", name) for name in ("one", "two")]
        wanted = [(queue, task, priority) for queue in queues for task in ("a", "b") for priority in (0, 1)]
        first = [made("make_combo", *combo) for combo in wanted]
        again = [made("make_combo", *combo) for combo in wanted]
    assert len(set(first)) == len(wanted)
    assert again == first


async def test_a_process_learns_the_combinations_of_the_queues_that_it_uses(store: PostgresForTests) -> None:
    await store.enqueue([a_spec(id=name, queue=name) for name in ("one", "two")])
    other = PostgresForTests(store.address)
    await other.connect()
    try:
        assert await other.session().learn_combos([("one", "work", 0)])
        known = other.session().combo_ids
        assert list(known) == [("one", "work", 0)]
        await other.enqueue([a_spec(id="more", queue="one")])
        assert [job.id for job in await other.claim(a_claim(3, queues=("one",)))] == ["one", "more"]
    finally:
        await other.close()
