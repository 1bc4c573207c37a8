"""`enqueue_one` writes the same rows as `enqueue_plain`, and refuses the same calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from millrace.domain.job import Spec
from millrace.domain.rules.fast_path import is_simple
from millrace.store.postgres import PostgresStore, fast_path
from millrace.testing.builders import a_spec
from tests.servers.postgres import url_for

NOW = 1_000_000
TABLES = ("job", "ready", "member", "line", "hold", "event", "outbox", "feed", "tally", "agenda", "dependency")
SEQUENCES = ("job_seq", "event_id", "event_order")
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "delay": {"delay": 60_000},
    "expires": {"expires": 60_000},
    "delay and expires": {"delay": 1_000, "expires": 60_000},
    "no result": {"keep_result": 0},
    "result forever": {"keep_result": None},
    "lease": {"lease": 5_000},
    "priority": {"priority": 3},
    "payload": {"payload": b"x" * 10_000},
    "watched": {},
}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PostgresStore]:
    found = PostgresStore(url_for(tmp_path))
    await found.connect()
    await found.enqueue([a_spec(id="known"), a_spec(id="known-3", priority=3)])
    try:
        yield found
    finally:
        await found.close()


async def both(store: PostgresStore, spec: Spec, watched: dict[str, int]) -> dict[str, Any]:
    """What each of the two functions returns and writes, from the same sequence numbers. Nothing is committed."""
    assert is_simple(spec)
    given = [spec], store.session().combo_ids, watched, "channel"
    calls = {
        "enqueue_one": fast_path.enqueue_one_arguments(*given),
        "enqueue_plain": [*(fast_path.enqueue_arguments(*given) or []), None, False],
    }
    async with store.session().connections.one() as connection:
        transaction = connection.transaction(isolation="repeatable_read")  # the store numbers its feed at any time
        await transaction.start()
        try:
            return {name: await outcome(store, connection, name, arguments or []) for name, arguments in calls.items()}
        finally:
            await transaction.rollback()


async def outcome(store: PostgresStore, connection: Any, name: str, arguments: list[Any]) -> Any:
    schema = store.address.schema
    savepoint = connection.transaction()
    await savepoint.start()
    try:
        for sequence in SEQUENCES:
            await connection.execute(f"SELECT setval('\"{schema}\".{sequence}', 1000000)")
        answer = await connection.fetchval(store.session().sql[name], NOW, *arguments)
        rows = {
            # Sorted: a vacuum between the two calls changes where a row is put, and so the order of a scan.
            table: sorted(
                (tuple(row) for row in await connection.fetch(f'SELECT t.* FROM "{schema}".{table} AS t')), key=repr
            )
            for table in TABLES
        }
        return answer, rows
    except asyncpg.PostgresError as error:
        return error.sqlstate
    finally:
        await savepoint.rollback()


@pytest.mark.parametrize("name", OPTIONS)
async def test_both_functions_write_the_same_rows(store: PostgresStore, name: str) -> None:
    spec = a_spec(id="new", **OPTIONS[name])

    found = await both(store, spec, {"new": 1} if name == "watched" else {})

    answer, rows = found["enqueue_one"]
    assert answer == [1_000_001]
    assert len(rows["job"]) == 3
    assert found["enqueue_one"] == found["enqueue_plain"]


async def test_both_refuse_an_id_that_exists(store: PostgresStore) -> None:
    assert set((await both(store, a_spec(id="known"), {})).values()) == {"23505"}


async def test_both_refuse_an_id_whose_record_is_deleted(store: PostgresStore) -> None:
    await store.cancel(["known"])
    await store.delete(["known"])
    assert set((await both(store, a_spec(id="known"), {})).values()) == {"MR001"}


@pytest.mark.parametrize("settings", [{"lanes": 4}, {"max_depth": 10}, {"dead_cap": 10, "dead_overflow": "reject"}])
async def test_both_leave_a_queue_with_such_settings_to_the_ledger(
    store: PostgresStore, settings: dict[str, Any]
) -> None:
    await store.cancel(["known", "known-3"])  # lanes can be set only while no job is live
    await store.control("queue", "default", settings)
    found = await both(store, a_spec(id="new"), {})
    assert [answer for answer, _ in found.values()] == [None, None]
    assert found["enqueue_one"] == found["enqueue_plain"]
