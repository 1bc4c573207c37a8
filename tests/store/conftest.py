"""The stores under test. A backend is held to every sentence by standing in this list, and by nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("millrace.testing.conformance")

from millrace.store.protocol import Store  # noqa: E402 (assertions are rewritten only before the first import)
from millrace.testing.clock import START, VirtualClock  # noqa: E402
from millrace.testing.invariants import assert_holds, gather  # noqa: E402

Make = Callable[[VirtualClock, Path], Store]


def make_memory(clock: VirtualClock, folder: Path) -> Store:
    store: Store = import_module("millrace.store.memory").MemoryStore(clock=clock)
    return store


def make_sqlite(clock: VirtualClock, folder: Path) -> Store:
    store: Store = import_module("millrace.store.sqlite").SqliteStore(folder / "jobs.db", clock=clock)
    return store


_blobs: dict[Path, Any] = {}  # by folder, as if they lay in it: a store that is opened anew finds what was there


def make_object(clock: VirtualClock, folder: Path) -> Store:
    """The engine of the object store by itself; tests/object has it on a directory and on a bucket."""
    package = "millrace.store.object"
    driver = _blobs.setdefault(folder, import_module(f"{package}.memory").MemoryBlobs(clock=clock))
    exact = {"look_every": 0, "listing_reuse": 0, "feed_delay": 0, "lock_patience": 20}
    options = import_module(f"{package}.options").ObjectOptions(**exact)
    made = import_module(f"{package}.store").ObjectStore(
        lambda: driver, clock=clock, options=options, place=str(folder)
    )
    store: Store = made
    return store


def make_postgres(clock: VirtualClock, folder: Path) -> Store:
    """A schema of its own, in a server that all tests of this process share."""
    made = import_module("tests.store.postgres.stores").PostgresForTests(
        import_module("tests.servers.postgres").url_for(folder), clock=clock
    )
    store: Store = made
    return store


def make_redis(clock: VirtualClock, folder: Path) -> Store:
    url = import_module("tests.servers.redis_server").url_for(folder)
    store: Store = import_module("millrace.store.redis").RedisStore(url, clock=clock)
    return store


STORES: dict[str, Make] = {
    "memory": make_memory,
    "sqlite": make_sqlite,
    "object": make_object,
    "redis": make_redis,
    "postgres": make_postgres,
}
TRANSACTIONAL = ("memory", "postgres", "sqlite")


@pytest.fixture
def stores_under_test() -> set[str]:
    return set(STORES)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=sorted(STORES))
async def store(
    request: pytest.FixtureRequest, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Store]:
    """A connected, empty store; whatever a test does to it, the invariants hold in the end."""
    if request.function.__module__.endswith((".waiting", ".waking")):  # who looks by itself shows no lost hint
        for name in ("sqlite", "postgres"):
            monkeypatch.setattr(f"millrace.store.{name}.store._SLICE", 60.0)
    made = STORES[request.param](clock, tmp_path)
    await made.connect()
    try:
        yield made
        assert_holds(await gather(made, since=START))
    finally:
        await made.close()
        if request.param == "postgres":
            import_module("tests.servers.postgres").release(tmp_path)
