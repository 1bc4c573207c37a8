"""A private server whose work can be counted: what it was asked since it began, and how long it used a processor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

TICKS = os.sysconf("SC_CLK_TCK")


class Counters(NamedTuple):
    asked: int
    cpu: float  # seconds
    connections: int


class IdleServer(Protocol):
    url: str
    unit: str

    def counters(self) -> Counters: ...


@contextmanager
def a_server(store: str) -> Iterator[IdleServer]:
    with _redis() if store == "redis" else _postgres() as server:
        yield server


class _Redis:
    unit = "commands"

    def __init__(self, url: str) -> None:
        import redis

        self.url = url
        self._client: Any = redis.Redis.from_url(url)

    def counters(self) -> Counters:
        """Of commands that clients sent: not those that scripts carry out inside the server."""
        info = self._client.info("everything")
        calls = sum(int(of["calls"]) for name, of in self._client.info("commandstats").items() if _is_sent(name))
        return Counters(calls, info["used_cpu_user"] + info["used_cpu_sys"], info["connected_clients"])


# What only clients send, and scripts never do: all of a worker's calls but a few plain reads.
SENT = ("evalsha", "eval", "ping", "info", "subscribe", "config", "client")


def _is_sent(name: str) -> bool:
    return name.removeprefix("cmdstat_").partition("|")[0] in SENT


@contextmanager
def _redis() -> Iterator[IdleServer]:
    from tests.servers.redis_server import RedisServer

    server = RedisServer()
    try:
        yield _Redis(server.start().url)
    finally:
        server.close()


class _Postgres:
    """Statements outside of a transaction are transactions of their own, so these are what is counted."""

    unit = "transactions"

    def __init__(self, url: str, pid: int) -> None:
        import psycopg

        self.url = url
        self._pid = pid
        self._connection: Any = psycopg.connect(url, autocommit=True)

    def counters(self) -> Counters:
        asked, connections = self._connection.execute(
            "SELECT xact_commit + xact_rollback, numbackends FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
        return Counters(int(asked), _cpu_of_family(self._pid), int(connections))


def _cpu_of_family(pid: int) -> float:
    """Of a process, its children, and those of them that have ended."""
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(entry.parent.name) == pid:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == pid:
            ticks += sum(map(int, fields[11:13]))
    return ticks / TICKS


@contextmanager
def _postgres() -> Iterator[IdleServer]:
    from tests.servers.postgres import PostgresServer, wheel_binaries

    server = PostgresServer(wheel_binaries(), durable=True)
    try:
        server.start()
        yield _Postgres(server.url, server.pid)
    finally:
        server.remove()
