"""Redis servers that stand in for each other: a cluster with a replica, a name that moves, a sentinel.

All of them on loopback, each a process of its own, which is ended by its pid.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError
from redis.retry import Retry

from tests.servers.redis_server import RedisServer
from tests.servers.tcp_proxy import TcpProxy, tcp_proxy

PATIENCE = 180.0
SLOTS = 16_384
NOT_DOWN = 600_000  # milliseconds: a master that is only slow is not replaced behind a test's back
HOST = "127.0.0.1"
REPLICATION = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")


def tell(server: RedisServer, *words: Any) -> Any:
    """What a server answers to one command, which is sent only once: some of them fail when they are repeated."""
    once = Retry(NoBackoff(), 0)
    with Redis(port=server.port, decode_responses=True, retry=once, socket_timeout=PATIENCE) as client:
        return client.execute_command(*words)


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.05)


def follows(replica: RedisServer) -> bool:
    try:
        told = tell(replica, "INFO", "replication")
    except ConnectionError:  # sentinels close the connections of a server whose role they change
        return False
    return bool(told["role"] == "slave" and told["master_link_status"] == "up")


def has_replica(master: RedisServer) -> bool:
    """Whether the master counts one, which is a moment after the replica says that it follows."""
    return bool(tell(master, "INFO", "replication").get("slave0", {}).get("state") == "online")


def has_caught_up(master: RedisServer, replica: RedisServer) -> bool:
    ours, theirs = (tell(server, "INFO", "replication")["master_repl_offset"] for server in (master, replica))
    return bool(follows(replica) and ours == theirs)


@contextmanager
def running(*servers: RedisServer) -> Iterator[None]:
    try:
        for server in servers:
            server.start()
        yield
    finally:
        for server in servers:
            server.close()


# ── a cluster ─────────────────────────────────────────────────────────────────────────────────


class Cluster:
    """`doorway` has all slots but the store's; `master` has that one, and `replica` follows it."""

    def __init__(self) -> None:
        options = (
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "1000",
            "--cluster-require-full-coverage",
            "no",
        )
        self.nodes = [RedisServer(*options, *REPLICATION) for _ in range(3)]
        self.doorway, self.master, self.replica = self.nodes
        self.slot = 0

    @property
    def url(self) -> str:
        return self.doorway.url

    def id_of(self, node: RedisServer) -> str:
        return str(tell(node, "CLUSTER", "MYID"))

    async def join(self) -> None:
        self.slot = tell(self.doorway, "CLUSTER", "KEYSLOT", "{millrace}:")
        tell(self.doorway, "CLUSTER", "ADDSLOTS", *(slot for slot in range(SLOTS) if slot != self.slot))
        tell(self.master, "CLUSTER", "ADDSLOTS", self.slot)
        for number, node in enumerate(self.nodes, 1):
            tell(node, "CLUSTER", "SET-CONFIG-EPOCH", number)
        for node in self.nodes[1:]:
            tell(self.doorway, "CLUSTER", "MEET", HOST, node.port)
        await until(lambda: all(self._knows_all(node) for node in self.nodes), "three nodes that know each other")
        tell(self.replica, "CLUSTER", "REPLICATE", self.id_of(self.master))
        await until(lambda: follows(self.replica), "a replica")
        known = self.id_of(self.replica)
        await until(lambda: f"{known}" in str(self._slots(self.doorway)), "a replica that the doorway knows of")

    async def fail_over(self, *, at_rest: bool = True) -> None:
        """The master is killed, and its replica takes over at once."""
        if at_rest:
            await until(lambda: has_caught_up(self.master, self.replica), "a replica that has everything")
        self.master.kill()
        self.take_over()

    def take_over(self) -> None:
        tell(self.replica, "CLUSTER", "FAILOVER", "TAKEOVER")
        self.master, self.replica = self.replica, self.master

    async def revive(self) -> None:
        """Who was killed comes back, and follows."""
        self.replica.start()
        await until(lambda: follows(self.replica), "the old master as a replica")

    def _knows_all(self, node: RedisServer) -> bool:
        told = tell(node, "CLUSTER", "INFO").split()
        return {"cluster_state:ok", "cluster_known_nodes:3", f"cluster_slots_assigned:{SLOTS}"} <= set(told)

    def _slots(self, node: RedisServer) -> Any:
        return tell(node, "CLUSTER", "SLOTS")

    # ── the slot is moved to the doorway ──────────────────────────────────────────────────────

    def begin_move(self) -> None:
        tell(self.doorway, "CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.id_of(self.master))
        tell(self.master, "CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.id_of(self.doorway))

    def move_keys(self, most: int = 1_000_000) -> int:
        """Answers how many are left."""
        keys = tell(self.master, "CLUSTER", "GETKEYSINSLOT", self.slot, most)
        if keys:
            tell(self.master, "MIGRATE", HOST, self.doorway.port, "", 0, 5_000, "KEYS", *keys)
        return int(tell(self.master, "CLUSTER", "COUNTKEYSINSLOT", self.slot))

    def end_move(self) -> None:
        """The old node hears of it from the new one, and having no slot left becomes its replica."""
        tell(self.doorway, "CLUSTER", "SETSLOT", self.slot, "NODE", self.id_of(self.doorway))


@asynccontextmanager
async def a_cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    with running(*cluster.nodes):
        await cluster.join()
        yield cluster


# ── a name ────────────────────────────────────────────────────────────────────────────────────


class MovingName:
    """As before a managed server: connections that are open stay open, to a server that has become a replica."""

    def __init__(self, master: RedisServer, replica: RedisServer, proxy: TcpProxy, url: str) -> None:
        self.master, self.replica = master, replica
        self.url = url
        self._proxy = proxy

    async def fail_over(self, *, at_rest: bool = True) -> None:
        if at_rest:
            await until(lambda: has_caught_up(self.master, self.replica), "a replica that has everything")
        tell(self.replica, "REPLICAOF", "NO", "ONE")
        tell(self.master, "REPLICAOF", HOST, self.replica.port)
        self.master, self.replica = self.replica, self.master
        self._proxy.point_at(self.master.url)

    async def revive(self) -> None:
        await until(lambda: follows(self.replica), "the old master as a replica")


@asynccontextmanager
async def a_moving_name() -> AsyncIterator[MovingName]:
    master = RedisServer(*REPLICATION)
    replica = RedisServer(*REPLICATION, "--replicaof", HOST, str(master.port))
    with running(master, replica):
        await until(lambda: has_replica(master), "a replica")
        async with tcp_proxy(master.url) as (proxy, url):
            yield MovingName(master, replica, proxy, url)


# ── a sentinel ────────────────────────────────────────────────────────────────────────────────


class Watched:
    """A master and its replica, and a sentinel that decides alone."""

    def __init__(self, master: RedisServer, replica: RedisServer, sentinel: RedisServer) -> None:
        self.master, self.replica, self.sentinel = master, replica, sentinel
        self.url = f"redis+sentinel://{HOST}:{sentinel.port}/mymaster/0"
        self.kills = False  # the master, rather than asking the sentinel for another

    def named(self) -> int:
        """The port of the master, as the sentinel says."""
        return int(tell(self.sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")[1])

    def knows_its_replica(self) -> bool:
        with Redis(port=self.sentinel.port, decode_responses=True) as client:
            told = client.sentinel_slaves("mymaster")
        wanted = self.replica.port
        return any(one["port"] == wanted and one.get("master-link-status") == "ok" for one in told)

    async def fail_over(self, *, at_rest: bool = True) -> None:
        if at_rest:
            await until(lambda: has_caught_up(self.master, self.replica), "a replica that has everything")
        await until(self.knows_its_replica, "a sentinel that knows the replica")
        if self.kills:
            self.master.kill()
            self._call_it_down_after(1_000)
        else:
            tell(self.sentinel, "SENTINEL", "FAILOVER", "mymaster")
        await until(lambda: self.named() == self.replica.port, "another master")
        self.master, self.replica = self.replica, self.master
        if not self.kills:  # the sentinel says so, too, ten seconds later; until then there are two masters
            tell(self.replica, "REPLICAOF", HOST, self.master.port)

    async def revive(self) -> None:
        if self.kills:
            self._call_it_down_after(NOT_DOWN)
            self.replica.start()
        await until(lambda: follows(self.replica), "the old master as a replica")

    def _call_it_down_after(self, milliseconds: int) -> None:
        tell(self.sentinel, "SENTINEL", "SET", "mymaster", "down-after-milliseconds", milliseconds)


@asynccontextmanager
async def a_sentinel(folder: Path) -> AsyncIterator[Watched]:
    master = RedisServer(*REPLICATION)
    replica = RedisServer(*REPLICATION, "--replicaof", HOST, str(master.port))
    sentinel = RedisServer()
    rules = folder / "sentinel.conf"
    rules.write_text(
        f"sentinel monitor mymaster {HOST} {master.port} 1\n"
        f"sentinel down-after-milliseconds mymaster {NOT_DOWN}\n"
        "sentinel failover-timeout mymaster 2000\n"
    )
    sentinel.first = (str(rules), "--sentinel")
    with running(master, replica):
        await until(lambda: follows(replica), "a replica")
        with running(sentinel):  # which asks the master for its replicas once in ten seconds
            watched = Watched(master, replica, sentinel)
            await until(watched.knows_its_replica, "a sentinel that knows the replica")
            yield watched
