"""More than one server: a cluster, in which a store lies on one node, and sentinels that name another master."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from millrace.domain.change import Change
from millrace.domain.request import Receipt
from millrace.store.redis import RedisStore
from millrace.testing.builders import a_claim, a_spec, specs
from millrace.testing.invariants import assert_holds, gather
from tests.servers.redis_server import RedisServer
from tests.servers.redis_topology import NOT_DOWN, until

PATIENCE = 120.0
SLOTS = 16_384
PASSWORD = "s3cret"


@pytest.fixture
def two_nodes() -> Iterator[list[RedisServer]]:
    nodes = [RedisServer("--cluster-enabled", "yes", "--cluster-node-timeout", "2000") for _ in range(2)]
    try:
        yield [node.start() for node in nodes]
    finally:
        for node in nodes:
            node.close()


async def joined(nodes: list[RedisServer]) -> None:
    """Each node has half of the slots, and both know it."""
    stores = [RedisStore(node.url) for node in nodes]
    half = SLOTS // 2
    for store, first in zip(stores, (0, half), strict=True):
        await store._wire.command("CLUSTER", "ADDSLOTS", *range(first, first + half))
    await stores[0]._wire.command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port)
    deadline = time.monotonic() + PATIENCE
    for store in stores:
        while "cluster_state:ok" not in str(await store._wire.command("CLUSTER", "INFO")).replace("': '", ":"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
    for store in stores:
        await store.close()


@pytest.mark.slow
async def test_a_store_is_found_on_whichever_node_of_a_cluster_it_lies(two_nodes):
    await joined(two_nodes)
    for prefix in ("alpha", "beta", "gamma", "delta"):
        store = RedisStore(f"{two_nodes[0].url}?prefix={prefix}")
        await store.connect()
        sleeper = asyncio.create_task(store.wait(["default"], None, PATIENCE))
        await asyncio.sleep(0.2)
        await store.enqueue([a_spec(), a_spec(group="g"), a_spec(key="k")])
        await sleeper
        jobs = await store.claim(a_claim(3))
        receipts = await store.settle([(job.lease, Change.completed()) for job in jobs])
        assert receipts == [Receipt.OK] * 3
        assert_holds(await gather(store))
        await store.close()


@pytest.mark.slow
async def test_a_thread_without_an_event_loop_finds_the_node_of_a_cluster_too(two_nodes):
    await joined(two_nodes)
    for prefix in ("alpha", "beta", "gamma", "delta"):
        store = RedisStore(f"{two_nodes[0].url}?prefix={prefix}")
        answers = [await asyncio.to_thread(store.enqueue_blocking, [a_spec(id=name, token=name)]) for name in "abc"]

        assert answers[0] is None or answers[0][0].seq == 1  # None: the node redirects, and the next one is right
        assert all(answers[1:])
        store.close_blocking()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer, int]]:
    """A master, its replica, and a sentinel that decides alone, all behind one password."""
    secret = ("--requirepass", PASSWORD, "--masterauth", PASSWORD)
    master = RedisServer(*secret).start()
    replica = RedisServer("--replicaof", "127.0.0.1", str(master.port), *secret).start()
    sentinel = RedisServer()
    rules = tmp_path / "sentinel.conf"
    rules.write_text(
        f"sentinel monitor mymaster 127.0.0.1 {master.port} 1\n"
        f"sentinel down-after-milliseconds mymaster {NOT_DOWN}\n"
        "sentinel failover-timeout mymaster 4000\n"
        f"sentinel auth-pass mymaster {PASSWORD}\n"
        f"requirepass {PASSWORD}\n"
    )
    sentinel.first = (str(rules), "--sentinel")
    try:
        sentinel.start()
        yield master, replica, sentinel.port
    finally:
        for server in (sentinel, replica, master):
            server.close()


def tell_sentinel(port: int, *words: object) -> None:
    with Redis(port=port, password=PASSWORD) as client:
        client.execute_command(*words)


def knows_a_replica(port: int) -> bool:
    with Redis(port=port, password=PASSWORD, decode_responses=True) as client:
        told = client.sentinel_slaves("mymaster")
    return any(one.get("master-link-status") == "ok" for one in told)


@pytest.mark.slow
async def test_a_store_goes_along_when_sentinels_name_another_master(watched):
    master, _, port = watched
    store = RedisStore(
        f"redis+sentinel://:{PASSWORD}@127.0.0.1:{port}/mymaster/0?durability=replicated&patience=120&timeout=3"
    )
    deadline = time.monotonic() + PATIENCE
    while (await store.examine()).replicas < 1:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    await store.connect()
    asked = specs(5)
    await store.enqueue(asked)
    await until(lambda: knows_a_replica(port), "a sentinel that knows the replica")
    after = RedisStore(f"redis+sentinel://:{PASSWORD}@127.0.0.1:{port}/mymaster/0?patience=120&timeout=3")
    await after.connect()

    master.kill()
    tell_sentinel(port, "SENTINEL", "SET", "mymaster", "down-after-milliseconds", 500)
    [late] = await after.enqueue([a_spec(id="late")])

    found = await after.get([spec.id for spec in asked])
    assert late.status == "queued" and all(job is not None for job in found), "what was replicated is there"
    assert_holds(await gather(after))
    await store.close()
    await after.close()
