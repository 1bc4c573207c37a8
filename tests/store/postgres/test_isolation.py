"""Another default isolation of the database or the role changes nothing: our own transactions are READ COMMITTED.

In any other one a step that waited for a lock would not see what the holder has committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput, StoreError
from millrace.domain.job import State
from millrace.domain.request import Receipt
from millrace.store.postgres import PostgresStore, address
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.clock import START, VirtualClock
from millrace.testing.conformance.dependencies import *  # noqa: F403
from millrace.testing.conformance.transactions import *  # noqa: F403
from millrace.testing.invariants import assert_holds, gather
from tests.store.postgres.isolations import LEVELS, schemas_under
from tests.store.postgres.stores import PostgresForTests

LIMIT = 60.0
POOLERS = ("none", "transaction")


@pytest.fixture(params=LEVELS)
async def store(request: pytest.FixtureRequest, clock: VirtualClock, tmp_path: Path) -> AsyncIterator[PostgresStore]:
    """For the shared sentences: here those of dependencies and transactions, in the nightly run all of them."""
    schemas = schemas_under(request.param)
    made = PostgresForTests(schemas.url_for(tmp_path), clock=clock)
    await made.connect()
    try:
        yield made
        assert_holds(await gather(made, since=START))
    finally:
        await made.close()
        schemas.release(tmp_path)


@pytest.fixture(params=[(level, pooler) for level in LEVELS for pooler in POOLERS], ids=" pooler=".join)
async def raced(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PostgresStore]:
    """`pooler=transaction`: no session keeps a setting, so that each transaction has to say what it needs."""
    level, pooler = request.param
    made = PostgresForTests(f"{schemas_under(level).url_for(tmp_path)}&pooler={pooler}")
    await made.connect()
    try:
        yield made
        assert_holds(await gather(made, since=0))
    finally:
        await made.close()
        schemas_under(level).release(tmp_path)


async def blocked(store: PostgresStore, calls: int = 1) -> None:
    """Until so many of the store's calls wait for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(LIMIT):
        with psycopg.connect(store.address.dsn, autocommit=True) as watcher:
            while watcher.execute(waiting).fetchall()[0][0] < calls:
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("group", [None, "g"], ids=["plain", "ledger"])
async def test_a_child_enqueued_by_a_caller_while_its_parent_completes_is_released(
    raced: PostgresForTests, group: str | None
) -> None:
    await raced.enqueue([a_spec(id="parent", group=group)])
    [parent] = await raced.claim(a_claim())
    with raced.transaction() as caller:
        await raced.within(caller).enqueue([a_spec(id="child", after=["parent"])])
        completing = asyncio.ensure_future(raced.settle([(parent.lease, Change.completed(b"1"))]))
        await blocked(raced)
        caller.commit()

    assert await asyncio.wait_for(completing, LIMIT) == [Receipt.OK]
    assert [job.id for job in await raced.claim(a_claim())] == ["child"]


async def test_claims_that_wait_for_each_other_keep_within_a_limit(raced: PostgresForTests) -> None:
    await raced.control("queue", "default", {"max_running": 1})
    await raced.enqueue([a_spec(id=f"{n}") for n in range(4)])
    with raced.transaction() as caller:
        await raced.within(caller).enqueue([a_spec(id="last")])
        claims = [asyncio.ensure_future(raced.claim(a_claim(4))) for _ in range(3)]
        await blocked(raced)
        caller.commit()

    taken = [job for jobs in await asyncio.wait_for(asyncio.gather(*claims), LIMIT) for job in jobs]
    assert len(taken) == 1


async def test_a_queue_that_is_paused_while_a_claim_waits_is_not_claimed_from(raced: PostgresForTests) -> None:
    await raced.enqueue([a_spec(id="a")])
    with raced.transaction() as caller:
        await raced.within(caller).enqueue([a_spec(id="last")])
        pausing = asyncio.ensure_future(raced.control("queue", "default", {"paused": True}))
        await blocked(raced)
        claiming = asyncio.ensure_future(raced.claim(a_claim(4)))
        await blocked(raced, 2)
        caller.commit()

    await asyncio.wait_for(pausing, LIMIT)
    assert await asyncio.wait_for(claiming, LIMIT) == []


@pytest.mark.parametrize("level", LEVELS)
async def test_stores_that_are_made_at_the_same_moment_make_one_schema(level: str, tmp_path: Path) -> None:
    url = schemas_under(level).url_for(tmp_path)
    schemas_under(level).drop(url.rpartition("schema=")[2])
    stores = [PostgresStore(url) for _ in range(4)]
    try:
        await asyncio.gather(*(store.connect() for store in stores))
        await stores[0].enqueue([a_spec(id="a")])
        [job] = await stores[3].get(["a"])
        assert job is not None
        assert job.state is State.WAITING
    finally:
        for store in stores:
            await store.close()


@pytest.mark.parametrize("level", LEVELS)
async def test_a_session_that_does_not_keep_our_isolation_is_refused(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler that is told to ignore what it does not know."""
    monkeypatch.setattr(address, "_ISOLATION", {})
    store = PostgresStore(schemas_under(level).url_for(tmp_path))
    with pytest.raises(StoreError, match="pooler=transaction"):
        await store.connect()


@pytest.mark.parametrize("level", LEVELS)
async def test_a_callers_transaction_that_cannot_see_what_others_commit_is_refused_with_the_remedy(
    level: str, tmp_path: Path
) -> None:
    store = PostgresStore(schemas_under(level).url_for(tmp_path))
    await store.connect()
    try:
        with psycopg.connect(store.address.dsn) as caller:  # says nothing: as the database has it
            with pytest.raises(InvalidInput, match="READ COMMITTED.*isolation_level"):
                await store.within(caller).enqueue([a_spec(id="a")])
            caller.rollback()
            caller.execute("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")  # which is the same here
            await store.within(caller).enqueue([a_spec(id="b")])
        assert [job is not None for job in await store.get(["a", "b"])] == [False, True]
    finally:
        await store.close()
