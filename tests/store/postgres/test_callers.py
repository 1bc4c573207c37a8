"""Steps in transactions of callers who use asyncpg, psycopg or SQLAlchemy, blocking or on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput, StoreError
from millrace.domain.request import Receipt
from millrace.store.postgres import PostgresStore, within
from millrace.testing.builders import a_claim, a_spec
from tests.servers.postgres import url_for


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(url_for(tmp_path))
    await made.connect()
    try:
        yield made
    finally:
        await made.close()


async def there(store: PostgresStore) -> list[str]:
    return [job.id for job in await store.get(["a", "b"]) if job is not None]


async def test_a_transaction_of_asyncpg(store: PostgresStore) -> None:
    connection = await asyncpg.connect(store.address.dsn)
    async with connection.transaction():
        await store.within(connection).enqueue([a_spec(id="a", group="g")])
        assert await there(store) == []
    assert await there(store) == ["a"]

    undone = connection.transaction()
    await undone.start()
    await store.within(connection).enqueue([a_spec(id="b")])
    await undone.rollback()
    assert await there(store) == ["a"]
    await connection.close()


async def test_a_connection_of_a_pool_of_asyncpg(store: PostgresStore) -> None:
    pool = await asyncpg.create_pool(store.address.dsn, min_size=1, max_size=1)
    async with pool.acquire() as connection, connection.transaction():
        await store.within(connection).enqueue([a_spec(id="a")])
    await pool.close()
    assert await there(store) == ["a"]


async def test_a_transaction_of_psycopg_on_an_event_loop(store: PostgresStore) -> None:
    async with await psycopg.AsyncConnection.connect(store.address.dsn) as connection:
        await store.within(connection).enqueue([a_spec(id="a", key="k")])
        assert await there(store) == []
    assert await there(store) == ["a"]


async def test_a_completion_commits_with_the_callers_own_writes(store: PostgresStore) -> None:
    await store.enqueue([a_spec(id="a")])
    [job] = await store.claim(a_claim())
    connection = await asyncpg.connect(store.address.dsn)
    await connection.execute("CREATE TABLE IF NOT EXISTS millrace_test_effects (text text)")
    async with connection.transaction():
        await connection.execute("INSERT INTO millrace_test_effects VALUES ('done')")
        assert await store.within(connection).settle([(job.lease, Change.completed(b"1"))]) == [Receipt.OK]
    [found] = await store.get(["a"])
    effects = await connection.fetchval("SELECT count(*) FROM millrace_test_effects")
    await connection.execute("DROP TABLE millrace_test_effects")
    await connection.close()

    assert found is not None
    assert (found.state.value, effects) == ("completed", 1)


def _sqlalchemy(store: PostgresStore, driver: str) -> str:
    return store.address.dsn.replace("postgresql://", f"postgresql+{driver}://")


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_session_of_sqlalchemy_on_an_event_loop(store: PostgresStore, driver: str) -> None:
    engine = create_async_engine(_sqlalchemy(store, driver))
    async with AsyncSession(engine) as session:
        await store.within(session).enqueue([a_spec(id="a")])
        await session.rollback()
        assert await there(store) == []
        await store.within(session).enqueue([a_spec(id="b")])
        await session.commit()
    await engine.dispose()
    assert await there(store) == ["b"]


async def test_a_blocking_connection_of_sqlalchemy(store: PostgresStore) -> None:
    engine = sqlalchemy.create_engine(_sqlalchemy(store, "psycopg"))
    with engine.connect() as connection:
        store.within(connection).enqueue_now([a_spec(id="a")])
        connection.rollback()
        store.within(connection).enqueue_now([a_spec(id="b")])
        connection.commit()
    engine.dispose()
    assert await there(store) == ["b"]


async def test_plain_work_goes_on_while_a_callers_transaction_is_open(store: PostgresStore) -> None:
    """Nothing of the queue waits for a caller but what the caller has touched."""
    await store.enqueue([a_spec(id="known")])
    connection = await asyncpg.connect(store.address.dsn)
    transaction = connection.transaction()
    await transaction.start()
    await store.within(connection).enqueue([a_spec(id="a", group="g", key="k")])

    await store.enqueue([a_spec(id="plain")])
    await store.enqueue([a_spec(id="b", group="other", key="another")])
    jobs = await store.claim(a_claim(10))
    assert [job.id for job in jobs] == ["known", "plain", "b"]
    assert await store.settle([(job.lease, Change.completed()) for job in jobs]) == [Receipt.OK] * 3
    assert len((await store.events(None, 100)).events) == 9

    await transaction.commit()
    await connection.close()
    assert [job.id for job in await store.claim(a_claim(10))] == ["a"]
    assert len((await store.events(None, 100)).events) == 11


async def a_caller(store: PostgresStore, driver: str) -> Any:
    if driver == "asyncpg":
        return await asyncpg.connect(store.address.dsn)
    return psycopg.connect(store.address.dsn, autocommit=True)


async def said(caller: Any, sql: str) -> Any:
    if isinstance(caller, psycopg.Connection):
        cursor = caller.execute(sql.encode())
        return cursor.fetchall()[0][0] if cursor.description is not None else None
    return await caller.fetchval(sql)


async def enqueued_within(store: PostgresStore, caller: Any, number: int) -> str:
    [answer] = await store.within(caller).enqueue([a_spec(id=f"{number}", group="g")])
    await said(caller, "COMMIT")
    return answer.status


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_the_store_answers_while_callers_wait_inside_their_own_transactions(
    store: PostgresStore, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than the store has connections; all wait for the same line, which another caller holds."""
    monkeypatch.setattr(within, "LOCK_TIMEOUT", 60.0)
    await store.enqueue([a_spec(id="other")])
    [job] = await store.claim(a_claim())
    callers = [await a_caller(store, driver) for _ in range(store.address.connections + 2)]
    for caller in callers:
        await said(caller, "BEGIN")
    await store.within(callers[0]).enqueue([a_spec(id="first", group="g")])

    waiting = [asyncio.ensure_future(enqueued_within(store, caller, n)) for n, caller in enumerate(callers[1:])]
    await asyncio.sleep(0.5)
    async with asyncio.timeout(30):
        assert await store.settle([(job.lease, Change.completed())]) == [Receipt.OK]
        assert await store.enqueue([a_spec(id="lined", group="another")])
        assert [(row.completed, row.waiting) for row in await store.count()] == [(1, 1)]
    assert not any(step.done() for step in waiting)

    await said(callers[0], "COMMIT")
    async with asyncio.timeout(60):
        assert await asyncio.gather(*waiting) == ["queued"] * len(waiting)
    for caller in callers:
        closing = caller.close()
        if closing is not None:
            await closing


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_step_that_waits_too_long_for_a_lock_is_refused_and_the_callers_own_limit_stands(
    store: PostgresStore, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(within, "LOCK_TIMEOUT", 0.3)
    await store.enqueue([a_spec(id="known")])
    holder, caller = await a_caller(store, driver), await a_caller(store, driver)
    await said(holder, "BEGIN")
    await store.within(holder).enqueue([a_spec(id="a", group="g")])
    await said(caller, "BEGIN")
    await said(caller, "SET LOCAL lock_timeout = '7s'")

    async with asyncio.timeout(60):
        with pytest.raises(StoreError, match="another transaction holds a lock"):
            await store.within(caller).enqueue([a_spec(id="b", group="g")])
    assert await said(caller, "SHOW lock_timeout") == "7s"
    await store.within(caller).enqueue([a_spec(id="b", group="another")])  # the transaction stands
    assert await said(caller, "SHOW lock_timeout") == "7s"
    await said(caller, "COMMIT")
    assert await said(caller, "SHOW lock_timeout") == "0"

    await said(holder, "ROLLBACK")
    assert await there(store) == ["b"]
    for connection in (holder, caller):
        closing = connection.close()
        if closing is not None:
            await closing


async def test_a_callers_own_shorter_limit_holds_for_our_steps_too(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(within, "LOCK_TIMEOUT", 90.0)
    holder, caller = await a_caller(store, "asyncpg"), await a_caller(store, "asyncpg")
    await said(holder, "BEGIN")
    await store.within(holder).enqueue([a_spec(id="a", group="g")])
    await said(caller, "BEGIN")
    await said(caller, "SET LOCAL lock_timeout = '50ms'")
    async with asyncio.timeout(60):
        with pytest.raises(StoreError, match="another transaction holds a lock"):
            await store.within(caller).enqueue([a_spec(id="b", group="g")])
    for connection in (holder, caller):
        await connection.close()


@pytest.mark.parametrize("kind", ["none", "other", "serializable", "autocommit"])
async def test_what_cannot_be_joined_is_refused_in_words(store: PostgresStore, kind: str) -> None:
    connection: Any = object()
    if kind == "other":
        connection = psycopg.connect(store.address.dsn, dbname="template1")
    elif kind == "serializable":
        connection = psycopg.connect(store.address.dsn)
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    elif kind == "autocommit":
        connection = psycopg.connect(store.address.dsn, autocommit=True)
    with pytest.raises(InvalidInput):
        await store.within(connection).enqueue([a_spec(id="a")])
    if kind != "none":
        connection.close()
    assert await there(store) == []
