"""Making the schema: exactly once, whoever starts when; and refusals in words."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import asyncpg
import pytest

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput, StoreError
from millrace.domain.schedule import Move, Schedule
from millrace.store.connect import connect
from millrace.store.postgres import PostgresStore, migrate
from millrace.store.postgres.migrate import script, version_of
from millrace.testing.builders import a_claim, a_spec
from tests.servers.postgres import drop_schema, shared_url, url_for


async def test_twenty_who_start_at_once_make_the_schema_once() -> None:
    schema = f"starters_{secrets.token_hex(4)}"
    stores = [PostgresStore(f"{shared_url()}?schema={schema}&notify=off") for _ in range(20)]
    try:
        await asyncio.gather(*(store.connect() for store in stores))
        await asyncio.gather(*(store.enqueue([a_spec(id=f"{n}")]) for n, store in enumerate(stores)))
        assert [row.waiting for row in await stores[0].count()] == [20]
    finally:
        await asyncio.gather(*(store.close() for store in stores))
        drop_schema(schema)


async def test_what_init_prints_makes_the_same_schema() -> None:
    schema = f"printed_{secrets.token_hex(4)}"
    connection = await asyncpg.connect(shared_url())
    try:
        await connection.execute(script(schema))
        assert await version_of(connection, schema) == migrate.VERSION
        store = PostgresStore(f"{shared_url()}?schema={schema}")
        await store.connect()
        assert (await store.enqueue([a_spec()]))[0].status == "queued"
        await store.close()
    finally:
        await connection.close()
        drop_schema(schema)


async def test_a_new_version_replaces_the_functions_and_keeps_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = f"older_{secrets.token_hex(4)}"
    connection = await asyncpg.connect(shared_url())
    store = PostgresStore(f"{shared_url()}?schema={schema}&notify=off")
    try:
        await store.connect()
        await store.enqueue([a_spec(id="a")])
        await store.close()
        stopped = f'FUNCTION "{schema}".clock(given bigint) RETURNS bigint LANGUAGE sql'
        await connection.execute(f"CREATE OR REPLACE {stopped} AS 'SELECT 7::bigint'")
        monkeypatch.setattr(migrate, "VERSION", migrate.VERSION + 1)
        await store.connect()
        assert await store.now() > 7
        assert [row.waiting for row in await store.count()] == [1]
        assert await version_of(connection, schema) == migrate.VERSION
    finally:
        await store.close()
        await connection.close()
        drop_schema(schema)


async def test_a_schema_of_version_2_is_upgraded_for_schedules_that_any_scheduler_runs() -> None:
    schema = f"second_{secrets.token_hex(4)}"
    connection = await asyncpg.connect(shared_url())
    store = PostgresStore(f"{shared_url()}?schema={schema}&notify=off")
    try:
        await connection.execute(f'CREATE SCHEMA "{schema}"')
        await connection.execute(migrate.migrations(schema)[1])
        await connection.execute(f'UPDATE "{schema}".store SET version = 2')
        await store.connect()
        assert await version_of(connection, schema) == migrate.VERSION

        due = Schedule(
            "kept", "0 3 * * *", "UTC", "work", "default", "once", 60_000, "digest", 0, next_tick=1, template=a_spec()
        )
        await store.advance([Move("kept", 0, due)])
        assert [schedule.name for schedule in (await store.due_schedules([], 10)).due] == ["kept"]
    finally:
        await store.close()
        await connection.close()
        drop_schema(schema)


async def test_a_newer_schema_is_left_alone() -> None:
    schema = f"newer_{secrets.token_hex(4)}"
    connection = await asyncpg.connect(shared_url())
    try:
        await connection.execute(script(schema))
        await connection.execute(f'UPDATE "{schema}".store SET version = 99')
        with pytest.raises(StoreError, match="newer Millrace"):
            await PostgresStore(f"{shared_url()}?schema={schema}").connect()
    finally:
        await connection.close()
        drop_schema(schema)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("postgresql://db/jobs?schema=no-good", "schema"),
        ("postgresql://db/jobs?schema=pg_mine", "schema"),
        ("postgresql://db/jobs?notify=maybe", "notify"),
        ("postgresql://db/jobs?pooler=session", "pooler"),
        ("postgresql://db/jobs?connections=0", "connections"),
    ],
)
def test_an_option_that_cannot_be_right_is_refused(url: str, word: str) -> None:
    with pytest.raises(InvalidInput, match=word):
        connect(url)


def test_the_url_that_is_shown_has_no_password() -> None:
    store = connect("postgresql://ada:s3cret@db:5432/jobs?schema=shop")

    assert store.url == "postgresql://ada@db:5432/jobs?schema=shop"


def test_the_url_that_is_shown_opens_a_store_in_the_same_way() -> None:
    store = PostgresStore("postgresql://db/jobs?notify=off&pooler=transaction&connections=3&sslmode=require")

    assert PostgresStore(store.url).address == store.address


async def test_a_server_that_is_not_there_is_said_so() -> None:
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        await connect("postgresql://ada:s3cret@127.0.0.1:1/jobs").connect()

    assert "s3cret" not in str(caught.value)


async def test_behind_a_transaction_pooler_no_session_keeps_anything(tmp_path: Path) -> None:
    store = PostgresStore(f"{url_for(tmp_path)}&pooler=transaction&notify=off&connections=1")
    await store.connect()
    try:
        await store.enqueue([a_spec(id="a")])
        await store.enqueue([a_spec(id="b"), a_spec(id="c", group="g", key="k")])
        jobs = await store.claim(a_claim(5))
        await store.settle([(job.lease, Change.completed()) for job in jobs])
        async with store.session().connections.one() as connection:
            prepared = await connection.fetch("SELECT statement FROM pg_prepared_statements WHERE NOT name LIKE ''")
            settings = await connection.fetch(
                "SELECT name FROM pg_settings WHERE source = 'session' AND name <> 'jit'"
            )  # the driver's
            locks = await connection.fetchval(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
            )
        assert [job.id for job in jobs] == ["a", "b", "c"]
        assert [row["statement"] for row in prepared if "millrace" in row["statement"]] == []
        assert [row["name"] for row in settings] == []
        assert locks == 0
    finally:
        await store.close()
