"""The stores that pools are tested on, each on a clock that is moved by hand; workers and handlers are real."""

from pathlib import Path

import pytest

from millrace import App
from millrace.store.memory import MemoryStore
from millrace.store.protocol import Store
from millrace.store.sqlite import SqliteStore
from millrace.testing import VirtualClock, assert_holds, gather
from millrace.testing.clock import START


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, clock: VirtualClock, tmp_path: Path):
    """A connected, empty store; whatever a test does to it, the invariants hold in the end."""
    made = MemoryStore(clock=clock) if request.param == "memory" else SqliteStore(tmp_path / "jobs.db", clock=clock)
    await made.connect()
    try:
        yield made
        assert_holds(await gather(made, since=START))
    finally:
        await made.close()


@pytest.fixture
def app(store: Store):
    return App(store)
