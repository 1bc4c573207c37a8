"""Pools beside the other ways to use an app: transactions, no event loop, child processes, middleware, cron."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

from millrace import App, Context, InvalidInput, JobHandle
from millrace.domain.rules.lanes import lane_of
from millrace.store.protocol import Store
from tests.app.pools.scene import burst, worker


def define(app, ran=None):
    @app.pool("orders", lanes=3, partition_by=lambda name: name)
    async def handle(name: str) -> str:
        if ran is not None:
            ran.append(name)
        return name.upper()

    return handle


@pytest.fixture
def path(tmp_path):
    return tmp_path / "jobs.db"


async def test_a_job_of_a_pool_may_be_part_of_a_transaction(path):
    app = App(f"sqlite:///{path}")
    handle = define(app)
    async with app:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            await handle.options(within=connection).enqueue("gone")
            connection.rollback()
            connection.execute("BEGIN IMMEDIATE")
            answer = await handle.options(within=connection).enqueue("ada")
            connection.commit()

        assert isinstance(answer, JobHandle)
        assert (answer.lane, answer.position) == (lane_of("ada", 3), 0)
        assert (await handle.pool.status()).pending == 1


async def test_a_pool_is_not_written_down_while_a_transaction_holds_the_store(path):
    """It would wait for the transaction, which waits for it."""
    app = App(f"sqlite:///{path}")
    async with app:
        handle = define(app)  # after the app was opened
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(InvalidInput, match="cannot be written inside your transaction. Open the app before"):
                await handle.options(within=connection).enqueue("ada")
            connection.rollback()
            answer = await handle.options(within=connection).enqueue("ada")
            connection.commit()

        assert answer.lane == lane_of("ada", 3)


async def test_opening_an_app_writes_its_pools_down(store: Store):
    app = App(store)
    define(app)
    async with app:
        assert len(await store.lanes("orders")) == 3
    await store.connect()  # leaving the app closed it


def test_a_program_without_a_loop_enqueues_into_pools(path):
    app = App(f"sqlite:///{path}")
    handle = define(app)
    with app.sync:
        answer = handle.options(partition="bob").sync.enqueue("ada")
        many = handle.sync.enqueue_many([("bob",), ("cid",)])
        status = app.sync.run(handle.pool.status())

    assert [one.lane for one in (answer, *many)] == [lane_of(key, 3) for key in ("bob", "bob", "cid")]
    assert status.pending == 3


async def test_middleware_wraps_the_attempts_of_a_pool(app: App):
    seen = []

    @app.middleware
    async def watch(ctx: Context, call_next):
        seen.append(ctx.instance)
        return await call_next()

    handle = define(app)
    answer = await handle.enqueue("ada")
    await burst(app)

    assert seen == [answer.instance]


async def test_a_pool_keeps_its_results(app: App):
    handle = define(app)
    answer = await handle.enqueue("ada")
    async with worker(app):
        assert await app.jobs.result(answer, wait=10) == "ADA"
        assert list(await asyncio.gather(handle.call("bob"), handle.call("cid"))) == ["BOB", "CID"]
