"""The primary changes behind a proxy, or behind a name that was cached: a store moves to the new one by itself.

Connections that are open stay with the old server, which refuses every write (25006) or goes away (57P01).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from millrace import App
from millrace.domain.change import Change
from millrace.domain.errors import StoreError
from millrace.domain.job import State
from millrace.domain.request import Receipt
from millrace.store.postgres import PostgresStore, connections, session
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.invariants import assert_holds, gather
from tests.servers.postgres import PostgresServer, wheel_binaries
from tests.servers.tcp_proxy import TcpProxy, tcp_proxy

LIMIT = 60.0  # seconds: generous, far less than for ever
IN_TURN = ("synchronous_commit=on",)  # what is acknowledged is in the log that a standby is sent


class Pair:
    """A primary, its streaming standby, and a proxy that leads to whichever is the primary."""

    def __init__(self, servers: list[PostgresServer], proxy: TcpProxy, url: str) -> None:
        self._servers, self.proxy, self.url = servers, proxy, url

    @property
    def old(self) -> PostgresServer:
        return self._servers[-2]

    @property
    def new(self) -> PostgresServer:
        return self._servers[-1]

    async def add_standby(self) -> None:
        """Of the newest server, which is the primary."""
        copy = await asyncio.to_thread(
            lambda: PostgresServer(wheel_binaries(), settings=IN_TURN, copies=self._servers[-1])
        )
        self._servers.append(copy)
        await asyncio.to_thread(copy.start)

    async def fail_over(self, how: str = "fenced") -> None:
        await asyncio.to_thread(self.old.become_read_only)
        await asyncio.to_thread(self.new.take_over_from, self.old)
        if how == "stopped":
            await asyncio.to_thread(self.old.stop)
        self.proxy.point_at(self.new.url)


@asynccontextmanager
async def a_pair() -> AsyncIterator[Pair]:
    servers = [PostgresServer(wheel_binaries(), settings=IN_TURN)]
    try:
        await asyncio.to_thread(servers[0].start)
        async with tcp_proxy(servers[0].url) as (proxy, url):
            pair = Pair(servers, proxy, url)
            await pair.add_standby()
            yield pair
    finally:
        for server in reversed(servers):
            await asyncio.to_thread(server.remove)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with a_pair() as made:
        yield made


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.connect()
    try:
        yield store
    finally:
        await store.close()


async def claim_and_settle(store: PostgresStore) -> int:
    jobs = await store.claim(a_claim(2))
    for job in jobs:
        assert await store.settle([(job.lease, Change.completed(b"1"))]) == [Receipt.OK]
    return len(jobs)


async def every_call(store: PostgresStore, name: str) -> None:
    """Each kind of call, plain and by the ledger."""
    plain, lined = f"{name}-plain", f"{name}-lined"
    assert [answer.status for answer in await store.enqueue([a_spec(id=plain)])] == ["queued"]
    assert [answer.status for answer in await store.enqueue([a_spec(id=lined, group=name)])] == ["queued"]
    await claim_and_settle(store)
    assert len(await store.get([plain, lined])) == 2
    await store.count()


@pytest.mark.parametrize("how", ["fenced", "stopped"])
@pytest.mark.timeout(180)
async def test_every_call_of_a_store_reaches_the_new_primary(pair: Pair, how: str) -> None:
    async with connected(pair.url) as store:
        await asyncio.gather(*(every_call(store, f"before-{n}") for n in range(8)))
        await pair.fail_over(how)

        async with asyncio.timeout(LIMIT):
            await asyncio.gather(*(every_call(store, f"after-{n}") for n in range(8)))
            while await claim_and_settle(store):  # of two claims at once, one may pass over what the other has locked
                pass

        assert pair.new.ask("SELECT count(*) FROM millrace.job WHERE state = 2") == 32
        assert_holds(await gather(store, since=0))


@pytest.mark.timeout(180)
async def test_calls_made_while_the_name_still_leads_to_the_old_primary_wait_for_the_new_one(pair: Pair) -> None:
    async with connected(pair.url) as store:
        await every_call(store, "before")
        await asyncio.to_thread(pair.old.become_read_only)
        calls = [asyncio.ensure_future(store.enqueue([a_spec(id=f"{n}", group=g)])) for n, g in enumerate([None, "g"])]
        await asyncio.sleep(1.0)
        assert not any(call.done() for call in calls)

        await pair.fail_over()

        async with asyncio.timeout(LIMIT):
            assert [answer.status for [answer] in await asyncio.gather(*calls)] == ["queued", "queued"]


@pytest.mark.timeout(180)
async def test_who_only_reads_moves_to_the_new_primary_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_ONLY_KEPT", 0.2)
    async with connected(pair.url) as reader:
        await asyncio.gather(*(reader.get(["late"]) for _ in range(4)), reader.count())
        await pair.fail_over()
        async with connected(pair.new.url) as writer:
            await writer.enqueue([a_spec(id="late")])

        async with asyncio.timeout(LIMIT):
            while (await reader.get(["late"]))[0] is None:
                await asyncio.sleep(0.05)
            while not await reader.count():
                await asyncio.sleep(0.05)


@pytest.mark.timeout(180)
async def test_notifications_are_heard_from_the_new_primary(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a process that only waits."""
    monkeypatch.setattr(connections, "READ_ONLY_KEPT", 0.2)
    async with connected(pair.url) as store:
        await store.wait(["default"], None, 0.01)
        assert await store.listener().probed()
        moved = asyncio.Event()
        store.listener().on_gap = moved.set
        await pair.fail_over()
        async with asyncio.timeout(LIMIT):
            while not moved.is_set():
                await store.wait(["default"], None, 0.1)
        heard = asyncio.Event()
        store.listener().on_ended = lambda ids, ending: heard.set()
        async with store.watch("a"), connected(pair.new.url) as other, asyncio.timeout(LIMIT):
            await store.enqueue([a_spec(id="a")])
            [job] = await other.claim(a_claim())
            await other.settle([(job.lease, Change.completed(b"1"))])
            await heard.wait()


@pytest.mark.timeout(180)
async def test_workers_and_callers_go_on_at_the_new_primary(pair: Pair) -> None:
    app = App(pair.url)

    @app.task(max_attempts=3)
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker(slots=4):
        assert await asyncio.gather(*(double.options(wait=LIMIT).call(n) for n in range(20))) == [*range(0, 40, 2)]
        running = [asyncio.ensure_future(double.options(wait=LIMIT).call(n)) for n in range(20)]
        await pair.fail_over()
        assert await asyncio.gather(*running) == [*range(0, 40, 2)]
        assert await asyncio.gather(*(double.options(wait=LIMIT).call(n) for n in range(20))) == [*range(0, 40, 2)]


@pytest.mark.timeout(180)
async def test_a_server_that_stays_read_only_is_named_as_such(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PATIENCE", 1.0)
    async with connected(pair.url) as store:
        await every_call(store, "before")
        await asyncio.to_thread(pair.old.become_read_only)
        for group in (None, "g"):
            with pytest.raises(StoreError, match="read-only"):
                await store.enqueue([a_spec(id="a", group=group)])
        assert len(await store.get(["before-plain"])) == 1


@pytest.mark.timeout(180)
async def test_of_two_servers_in_the_url_the_one_that_can_be_written_to_is_chosen(pair: Pair) -> None:
    """The standby is named first."""
    both = f"postgresql://postgres@127.0.0.1:{pair.new.port},127.0.0.1:{pair.old.port}/postgres"
    async with connected(f"{both}?target_session_attrs=read-write") as store:
        await every_call(store, "before")
        await pair.fail_over()
        async with asyncio.timeout(LIMIT):
            await every_call(store, "after")
        assert pair.new.ask("SELECT count(*) FROM millrace.job WHERE state = 2") == 4


async def _produce(store: PostgresStore, number: int, done: asyncio.Event, acknowledged: list[str]) -> None:
    n = 0
    while not done.is_set():
        n += 1
        specs = [a_spec(id=f"{number}-{n}-{k}", group="g" if k == 0 else None) for k in range(3)]
        acknowledged += [answer.id for answer in await store.enqueue(specs)]
        await asyncio.sleep(0.02)


async def _work(store: PostgresStore, number: int, produced: asyncio.Event) -> int:
    ended = 0
    while True:
        last = produced.is_set()
        jobs = await store.claim(a_claim(5, worker=f"w{number}"))
        if not jobs and last:
            return ended
        receipts = await store.settle([(job.lease, Change.completed(b"1")) for job in jobs])
        assert set(receipts) <= {Receipt.OK}
        ended += len(jobs)
        await asyncio.sleep(0 if jobs else 0.02)


async def _load_survives(switches: int) -> None:
    """Planned switchovers under load, each to a fresh standby: everything acknowledged is completed, and once."""
    async with a_pair() as pair, connected(pair.url) as store:
        done, produced = asyncio.Event(), asyncio.Event()
        acknowledged: list[str] = []
        producers = [asyncio.ensure_future(_produce(store, n, done, acknowledged)) for n in range(2)]
        workers = [asyncio.ensure_future(_work(store, n, produced)) for n in range(2)]
        for n in range(switches):
            so_far = len(acknowledged)
            while len(acknowledged) < so_far + 30:
                await asyncio.sleep(0.05)
            await pair.fail_over("stopped" if n % 2 else "fenced")
            await asyncio.to_thread(pair.old.remove)
            await pair.add_standby()
        done.set()
        await asyncio.gather(*producers)
        produced.set()
        ended = sum(await asyncio.gather(*workers))

        found = await store.get(acknowledged)
        assert [job for job in found if job is None or job.state is not State.COMPLETED] == []
        assert ended == len(acknowledged) >= 30 * switches
        assert_holds(await gather(store, since=0))


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_switchover_under_load_loses_nothing() -> None:
    await _load_survives(1)


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
async def test_many_switchovers_under_load_lose_nothing() -> None:
    await _load_survives(8)
