"""A server that stops answering while its connections stay open: nobody waits for it for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace import App
from millrace.domain.change import Change
from millrace.domain.errors import StoreError
from millrace.domain.request import Receipt
from millrace.store.postgres import PostgresStore, address, listen, session
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.invariants import assert_holds, gather
from tests.servers.postgres import url_for
from tests.store.postgres.quiet import quiet_proxy

LIMIT = 120.0  # seconds: far more than the limits below, far less than for ever


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of the store, in the length of a test."""
    monkeypatch.setattr(address, "CONNECT_TIMEOUT", 1.5)
    monkeypatch.setattr(address, "CALL_TIMEOUT", 1.5)
    monkeypatch.setitem(address.STEP_LIMITS, "idle_in_transaction_session_timeout", "1000ms")
    monkeypatch.setattr(session, "PATIENCE", 60.0)


@pytest.mark.parametrize("queue", ["default", "pool"], ids=["plain", "ledger"])
async def test_a_call_that_is_never_answered_is_made_again_on_another_connection(tmp_path: Path, queue: str) -> None:
    async with quiet_proxy(url_for(tmp_path)) as (url, proxy):
        store = PostgresStore(url + "&notify=off&connections=1")
        await store.connect()
        try:
            await store.control("queue", "pool", {"lanes": 1})
            await store.enqueue([a_spec(id="first", queue=queue)])
            for k in (1, 2, 3) if queue == "default" else (1, 4, 9, 16):
                proxy.hush_at(k)
                async with asyncio.timeout(LIMIT):
                    [answer] = await store.enqueue([a_spec(id=f"{k}", queue=queue)])
                    [job] = await store.claim(a_claim(1, queues=(queue,)))
                    assert await store.settle([(job.lease, Change.completed())]) == [Receipt.OK]
                assert proxy.hit
                assert answer.status == "queued"
            assert_holds(await gather(store, since=0))
        finally:
            await store.close()


@pytest.mark.parametrize("queue", ["default", "pool"], ids=["plain", "ledger"])
async def test_who_asks_a_server_that_stays_silent_is_told_so(
    tmp_path: Path, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with quiet_proxy(url_for(tmp_path)) as (url, proxy):
        store = PostgresStore(url + "&notify=off&connections=1")
        await store.connect()
        await store.control("queue", "pool", {"lanes": 1})
        await store.enqueue([a_spec(id="first", queue=queue)])
        proxy.fall_silent()
        monkeypatch.setattr(session, "PATIENCE", 3.0)
        try:
            async with asyncio.timeout(LIMIT):
                with pytest.raises(StoreError, match="cannot be reached"):
                    await store.enqueue([a_spec(id="a", queue=queue)])
                with pytest.raises(StoreError, match="cannot be reached"):
                    await store.claim(a_claim(1, queues=(queue,)))
                with pytest.raises(StoreError, match="cannot be reached"):
                    await store.count()
        finally:
            await store.close()


async def test_a_worker_goes_on_when_the_server_answers_again(tmp_path: Path) -> None:
    async with quiet_proxy(url_for(tmp_path)) as (url, proxy):
        app = App(url)

        @app.task()
        async def double(n: int) -> int:
            return 2 * n

        async with app, app.worker(slots=2):
            assert await double.options(wait=LIMIT).call(1) == 2
            proxy.fall_silent()
            await asyncio.sleep(4.0)  # calls of the worker run into their limits meanwhile
            proxy.speak()
            async with asyncio.timeout(LIMIT):
                assert await double.options(wait=LIMIT).call(2) == 4


async def test_word_that_comes_no_more_is_noticed_and_listened_for_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "PROBE_EVERY", 0.2)
    async with quiet_proxy(url_for(tmp_path)) as (url, proxy):
        store = PostgresStore(url)
        await store.connect()
        try:
            async with asyncio.timeout(LIMIT):
                await store.wait(["default"], None, 0.01)
                assert await store.listener().probed()
                gaps = asyncio.Event()
                store.listener().on_gap = gaps.set
                proxy.fall_silent()
                await asyncio.sleep(4.0)  # a probe runs into its limit meanwhile
                proxy.speak()
                await gaps.wait()
        finally:
            await store.close()
