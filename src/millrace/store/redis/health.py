"""Checks a server's configuration. A connect refuses a server that could lose jobs; `millrace doctor` reports all
findings.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from millrace.domain.errors import StoreError
from millrace.store.redis.options import RedisOptions
from millrace.store.redis.wire import RedisWire

_OLDEST = (6, 2)
_REPLICA = re.compile(r"slave\d+")


class ServerHealth(msgspec.Struct, frozen=True):
    """The version and configuration of a server. A field is None if the server does not report it."""

    server: str  # redis or valkey
    version: str
    role: str
    eviction: str | None
    appendonly: bool | None
    appendfsync: str | None
    replicas: int  # replicas that are in sync
    memory: int  # bytes in use
    memory_limit: int  # bytes; 0 for no limit
    cluster: bool
    waits_for_disk: bool  # whether it has WAITAOF


async def examine(wire: RedisWire, options: RedisOptions, *, strict: bool) -> ServerHealth:
    info = _fields(await wire.command("INFO"))
    if info.get("cluster_enabled") == "1":
        await wire.command("HGET", f"{wire.prefix}store", "seq")  # a cluster redirects this to the node with the store
        await wire.learn_nodes()
        info = _fields(await wire.command("INFO"))
    health = ServerHealth(
        info.get("server_name", "valkey" if "valkey_version" in info else "redis"),
        info.get("valkey_version", info.get("redis_version", "0")),
        info.get("role", "master"),
        info.get("maxmemory_policy") or await _setting(wire, "maxmemory-policy"),
        info["aof_enabled"] == "1" if "aof_enabled" in info else None,
        await _setting(wire, "appendfsync"),
        sum("online" in text for name, text in info.items() if _REPLICA.fullmatch(name)),
        int(info.get("used_memory", "0")),
        int(info.get("maxmemory", "0")),
        info.get("cluster_enabled") == "1",
        _version(info.get("redis_version", "0")) >= (7, 2),
    )
    wire.syncs_disk = health.waits_for_disk
    if strict:
        _refuse_what_endangers_jobs(health, options, _version(info.get("redis_version", "0")))
    return health


def _refuse_what_endangers_jobs(health: ServerHealth, options: RedisOptions, version: tuple[int, ...]) -> None:
    if version < _OLDEST:
        raise StoreError(f"the server is Redis {health.version}; version 6.2 or later is needed (or any Valkey)")
    if health.eviction not in (None, "noeviction"):
        raise StoreError(
            f"the server may evict jobs when its memory is full: maxmemory-policy is {health.eviction!r}. Set it "
            "to noeviction (CONFIG SET maxmemory-policy noeviction, and in its configuration file)"
        )
    if options.durability == "disk":
        _refuse_a_lazy_disk(health)
    if options.durability == "replicated" and health.replicas < options.replicas:
        raise StoreError(
            f"durability=replicated needs {options.replicas} replicas, and the server has {health.replicas}. Attach "
            "more (REPLICAOF), or require fewer with replicas=…"
        )


def _refuse_a_lazy_disk(health: ServerHealth) -> None:
    if not health.appendonly:
        raise StoreError(
            "durability=disk needs a server that writes to its disk: set appendonly yes (CONFIG SET appendonly yes, "
            "and in its configuration file), or use durability=relaxed"
        )
    if not health.waits_for_disk and health.appendfsync != "always":
        raise StoreError(
            f"durability=disk needs WAITAOF (Redis 7.2 or Valkey), or appendfsync always; this server is "
            f"{health.version} with appendfsync {health.appendfsync!r}. Upgrade it, or CONFIG SET appendfsync always"
        )


def _fields(info: Any) -> dict[str, str]:
    lines = info.decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


async def _setting(wire: RedisWire, name: str) -> str | None:
    """Return a setting of the server; None if the server does not allow CONFIG GET, as some managed servers do not."""
    try:
        found = await wire.command("CONFIG", "GET", name)
    except StoreError:
        return None
    if not found:
        return None
    return str(found[1].decode())


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
