"""The server underneath: killed, out of memory, without its scripts, or set up so that jobs would be lost."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from millrace import App
from millrace.domain.change import Change
from millrace.domain.errors import StoreError
from millrace.domain.job import State
from millrace.domain.request import Receipt
from millrace.store.redis import RedisStore
from millrace.testing.builders import a_claim, a_retry_change, a_spec, specs
from millrace.testing.invariants import assert_holds, gather
from tests.servers.redis_server import RedisServer, url_for
from tests.servers.tcp_proxy import script_call, tcp_proxy


@pytest.fixture
def server() -> Iterator[RedisServer]:
    made = RedisServer("--appendonly", "yes", "--appendfsync", "always")
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture
async def durable(server: RedisServer) -> AsyncIterator[RedisStore]:
    store = RedisStore(f"{server.url}?durability=disk")
    await store.connect()
    try:
        yield store
    finally:
        await store.close()


async def test_what_was_answered_survives_a_killed_server(server, durable):
    """Acknowledged at `disk`: it is there again, and nobody holds it twice."""
    kept: list[str] = []
    stop = asyncio.Event()

    async def produce() -> None:
        while not stop.is_set():
            kept.extend(answer.id for answer in await durable.enqueue(specs(3)))

    async def consume() -> None:
        while not stop.is_set():
            jobs = await durable.claim(a_claim(5))
            receipts = await durable.settle([(job.lease, Change.completed(b"1")) for job in jobs])
            assert set(receipts) <= {Receipt.OK}

    async def trouble() -> None:
        for _ in range(3):
            await asyncio.sleep(0.25)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        stop.set()

    await asyncio.wait_for(asyncio.gather(produce(), produce(), consume(), trouble()), 300)

    found = await durable.get(kept)
    assert len(kept) > 10 and all(job is not None for job in found)
    assert_holds(await gather(durable))


async def test_a_server_without_its_scripts_is_given_them_again(tmp_path):
    store = RedisStore(url_for(tmp_path))
    await store.connect()
    await store.enqueue(specs(6))
    done = 0
    for _ in range(6):
        await store._wire.command("SCRIPT", "FLUSH")
        [job] = await store.claim(a_claim())
        await store._wire.command("SCRIPT", "FLUSH")
        done += await store.settle([(job.lease, Change.completed())]) == [Receipt.OK]

    assert done == 6
    assert_holds(await gather(store))
    await store.close()


async def test_scripts_may_be_flushed_at_any_instant(tmp_path):
    """By somebody else, at random, while an app works: no call fails, nothing is lost, nothing happens twice."""
    app, ran, chance = App(url_for(tmp_path)), Counter[int](), random.Random(1)
    vandal = RedisStore(url_for(tmp_path))

    @app.task
    async def work(n: int) -> None:
        ran[n] += 1

    flushed = asyncio.Event()

    async def flush(stop: asyncio.Event) -> int:
        flushes = 0
        while not stop.is_set():
            await vandal._wire.command("SCRIPT", "FLUSH")
            flushes += 1
            flushed.set()
            await asyncio.sleep(chance.uniform(0, 0.01))
        return flushes

    stop = asyncio.Event()
    async with app, app.worker(slots=5):
        flushing = asyncio.create_task(flush(stop))
        for first in range(0, 200, 10):
            flushed.clear()
            await work.enqueue_many([{"n": n} for n in range(first, first + 10)])
            await asyncio.sleep(chance.uniform(0, 0.02))
            await flushed.wait()
        async with asyncio.timeout(60):
            while sum(row.completed for row in await vandal.count()) < 200:
                await asyncio.sleep(0.02)
        flushed.clear()
        await flushed.wait()
        stop.set()
        flushes = await flushing

    assert flushes > 20
    assert ran == dict.fromkeys(range(200), 1)
    assert_holds(await gather(vandal))
    await vandal.close()


async def test_a_full_memory_stops_who_puts_work_in_and_loses_nothing(server):
    store = RedisStore(server.url)
    await store.connect()
    asked = specs(5)
    await store.enqueue([*asked, a_spec(group="g")])
    await store._wire.command("CONFIG", "SET", "maxmemory", "1")

    for refused in ([a_spec(id="plain")], [a_spec(id="grouped", group="g")]):
        with pytest.raises(StoreError, match="no memory left"):
            await store.enqueue(refused)
    jobs = await store.claim(a_claim(3))
    receipts = await store.settle([(job.lease, Change.completed(b"done")) for job in jobs])
    cancelled = await store.cancel([asked[3].id])
    rest = await store.claim(a_claim(3))  # one of a group among them, which is not plain
    returned = await store.settle([(job.lease, a_retry_change(0)) for job in rest])

    assert (len(jobs), receipts, cancelled) == (3, [Receipt.OK] * 3, ["cancelled"])
    assert (len(rest), returned) == (2, [Receipt.OK] * 2)
    assert await store.get(["plain", "grouped"]) == [None, None]
    assert_holds(await gather(store))
    await store._wire.command("CONFIG", "SET", "maxmemory", "0")
    assert [answer.status for answer in await store.enqueue([a_spec(id="plain")])] == ["queued"]
    await store.close()


async def test_a_server_that_throws_away_keys_is_refused(server):
    store = RedisStore(server.url)
    await store._wire.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")

    with pytest.raises(StoreError, match=r"allkeys-lru.*noeviction"):
        await store.connect()

    await store._wire.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await store.connect()
    await store.close()


async def test_disk_is_refused_where_the_server_does_not_wait_for_its_disk(tmp_path):
    lazy = RedisServer().start()
    try:
        store = RedisStore(f"{lazy.url}?durability=disk")
        with pytest.raises(StoreError, match="appendonly yes"):
            await store.connect()
        await store._wire.command("CONFIG", "SET", "appendonly", "yes")
        await store._wire.command("CONFIG", "SET", "appendfsync", "everysec")
        health = await store.examine()
        if not health.waits_for_disk:
            with pytest.raises(StoreError, match="appendfsync always"):
                await store.connect()
        await store.close()
    finally:
        lazy.close()


async def test_a_disk_that_is_written_now_and_then_is_waited_for_or_refused():
    """With WAITAOF, an answer comes when it is on the disk, so it survives whatever comes next. Without, see above."""
    server = RedisServer("--appendonly", "yes", "--appendfsync", "everysec").start()
    store = RedisStore(f"{server.url}?durability=disk")
    try:
        if not (await store.examine()).waits_for_disk:
            with pytest.raises(StoreError, match="appendfsync always"):
                await store.connect()
            return
        await store.connect()
        for _ in range(3):
            kept = [answer.id for answer in await store.enqueue(specs(3))]
            server.kill()
            server.start()
            assert None not in await store.get(kept)
        await store._wire.command("CONFIG", "SET", "appendonly", "no")
        with pytest.raises(StoreError, match="appendonly is disabled"):
            await store.enqueue(specs(1))
    finally:
        await store.close()
        server.close()


async def test_replicated_counts_the_replicas_that_have_it(server):
    alone = RedisStore(f"{server.url}?durability=replicated")
    with pytest.raises(StoreError, match="needs 1 replicas, and the server has 0"):
        await alone.connect()
    await alone.close()
    replica = RedisServer("--replicaof", "127.0.0.1", str(server.port)).start()
    store = RedisStore(f"{server.url}?durability=replicated&timeout=2&patience=4")
    try:
        await has_replica(store)
        await store.connect()
        [answer] = await store.enqueue([a_spec(id="safe")])
        assert answer.status == "queued"
        replica.kill()
        with pytest.raises(StoreError, match="its durability is not confirmed: 0 of 1 replicas"):
            await store.enqueue([a_spec(id="unsafe")])
        found = await store.get(["safe", "unsafe"])
        assert [job is not None and job.state is State.WAITING for job in found] == [True, True]
    finally:
        await store.close()
        replica.close()


async def has_replica(store: RedisStore) -> None:
    async with asyncio.timeout(120):
        while not (await store.examine()).replicas:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("operation", ["enqueue", "cancel"])
async def test_asking_again_makes_nothing_durable_that_is_not(server, operation):
    """A server waits for what a connection has written. Whoever asks again has a new one, on which that is nothing."""
    replica = RedisServer("--replicaof", "127.0.0.1", str(server.port)).start()
    async with tcp_proxy(f"{server.url}?durability=replicated&timeout=2&patience=4", script_call) as (proxy, url):
        store = RedisStore(url)
        try:
            await has_replica(store)
            await store.enqueue([a_spec(id="safe")])
            await store.cancel(["nobody"])  # the server has the script from now on
            assert replica.process is not None
            replica.process.send_signal(signal.SIGSTOP)
            proxy.lose(1)
            with pytest.raises(StoreError, match="its durability is not confirmed: 0 of 1 replicas"):
                await (store.cancel(["safe"]) if operation == "cancel" else store.enqueue([a_spec(id="unsafe")]))
            assert proxy.hit and proxy.calls > 1
        finally:
            await store.close()
            replica.close()


async def test_a_replica_is_not_written_to(server, tmp_path):
    replica = RedisServer("--replicaof", "127.0.0.1", str(server.port)).start()
    store = RedisStore(f"{replica.url}?patience=2")
    try:
        with pytest.raises(StoreError, match="read-only replica"):
            await store.enqueue([a_spec()])
    finally:
        await store.close()
        replica.close()


def test_a_store_goes_along_to_another_event_loop(tmp_path: Path):
    store = RedisStore(url_for(tmp_path))

    async def put(name: str) -> str:
        [answer] = await store.enqueue([a_spec(id=name)])
        await store.close()
        return answer.status

    assert [asyncio.run(put(name)) for name in ("one", "two")] == ["queued", "queued"]


async def test_a_user_of_its_own_needs_its_prefix_and_no_more(server):
    """As docs/stores.md says."""
    admin = RedisStore(server.url)
    allowed = "~{millrace}:* resetchannels &{millrace}:* +@all -@admin -@dangerous +info +config|get"
    await admin._wire.command("ACL", "SETUSER", "jobs", "on", ">s3cret", *allowed.split())
    await admin.close()
    store = RedisStore(f"redis://jobs:s3cret@127.0.0.1:{server.port}/0")
    await store.connect()
    await store.enqueue([a_spec(id="a"), a_spec(id="b", group="g")])
    jobs = await store.claim(a_claim(2))
    receipts = await store.settle([(job.lease, Change.completed()) for job in jobs])
    await store.wait(["default"], None, 0.01)
    await store.maintain()
    assert receipts == [Receipt.OK] * 2
    await store.close()

    stranger = RedisStore(f"redis://jobs:s3cret@127.0.0.1:{server.port}/0?prefix=other")
    with pytest.raises(StoreError, match=r"refuses|permission"):
        await stranger.enqueue([a_spec()])
    await stranger.close()
    wrong = RedisStore(f"redis://jobs:wr0ng@127.0.0.1:{server.port}/0")
    with pytest.raises(StoreError, match="user and password") as caught:
        await wrong.connect()
    assert "wr0ng" not in str(caught.value)
    await wrong.close()
