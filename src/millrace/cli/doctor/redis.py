"""The doctor's checks of a Redis server: durability, eviction of keys, and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.cli.doctor.finding import Finding, guarded
from millrace.store.protocol import Store

if TYPE_CHECKING:
    from millrace.store.redis.health import ServerHealth
    from millrace.store.redis.store import RedisStore

FULL = 0.8  # share of maxmemory above which the doctor warns


async def check_redis(store: Store) -> list[Finding]:
    redis = _as_redis(store)
    if redis is None:
        return []
    health = await guarded("server", redis.examine(), "check that the server is up and that this user may run INFO")
    if isinstance(health, Finding):
        return [health]
    return [_server(health), _eviction(health), _disk(health), _memory(health)]


def _as_redis(store: Store) -> RedisStore | None:
    if not store.url.startswith(("redis", "valkey")):  # do not import the driver for other stores
        return None
    from millrace.store.redis.store import RedisStore

    return store if isinstance(store, RedisStore) else None


def _server(health: ServerHealth) -> Finding:
    cluster = ", in a cluster: the store is on one of its nodes" if health.cluster else ""
    found = f"{health.server} {health.version}, {health.role}, replicas: {health.replicas}{cluster}"
    if health.role != "master":
        return Finding("server", "fail", found, "use the URL of the master, or of the sentinels: redis+sentinel://…")
    return Finding("server", "ok", found)


def _eviction(health: ServerHealth) -> Finding:
    if health.eviction is None:
        return Finding(
            "eviction", "warn", "the server does not report it", "make sure that maxmemory-policy is noeviction"
        )
    if health.eviction != "noeviction":
        do = "CONFIG SET maxmemory-policy noeviction, and in its configuration file"
        return Finding("eviction", "fail", f"{health.eviction}: a full server deletes jobs", do)
    return Finding("eviction", "ok", "noeviction: a full server refuses new jobs and loses none")


def _disk(health: ServerHealth) -> Finding:
    do = "set appendonly yes and durability=disk if an acknowledged job must survive a crash of the server"
    if not health.appendonly:
        said = "not known" if health.appendonly is None else "off: a restart loses everything since the last snapshot"
        return Finding("append-only file", "warn", said, do)
    waits = "WAITAOF is available" if health.waits_for_disk else "no WAITAOF: durability=disk needs appendfsync always"
    lazy = not health.waits_for_disk and health.appendfsync != "always"
    return Finding("append-only file", "warn" if lazy else "ok", f"on, {health.appendfsync}; {waits}", do)


def _memory(health: ServerHealth) -> Finding:
    used = f"{health.memory >> 20:,} MiB in use"
    if not health.memory_limit:
        do = "set maxmemory below the memory of the machine; otherwise the system kills the server when memory is full"
        return Finding("memory", "warn", f"{used}, and no limit is set", do)
    share = health.memory / health.memory_limit
    found = f"{used}, {share:.0%} of maxmemory"
    if share > FULL:
        do = "increase maxmemory, or keep less: keep_completed, keep_dead, keep_result, keep_events"
        return Finding("memory", "warn", found, do)
    return Finding("memory", "ok", found)
