"""Sleepers of an event loop that is over: nobody can wake them, so they take nobody's hint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.store.memory import MemoryStore
from millrace.store.protocol import Store
from millrace.store.sqlite import SqliteStore
from millrace.testing.builders import a_spec

DEADLINE = 45.0
NEVER = 60.0
ON_ALL_LOOPS: dict[str, Callable[[Path], Store]] = {
    "memory": lambda folder: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "jobs.db"),
}


@pytest.mark.parametrize("over", ["closed", "stopped"])
@pytest.mark.parametrize("name", ON_ALL_LOOPS)
async def test_a_sleeper_of_a_loop_that_is_over_takes_nobodys_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, over: str
) -> None:
    monkeypatch.setattr("millrace.store.sqlite.store._SLICE", NEVER)
    store = ON_ALL_LOOPS[name](tmp_path)
    await store.connect()
    loop, left = await asyncio.to_thread(_leave_asleep, store)
    if over == "closed":
        loop.close()
    sleeper = asyncio.create_task(store.wait(["default"], None, NEVER))
    await asyncio.sleep(0.2)
    assert not sleeper.done()

    await store.enqueue([a_spec()])
    await asyncio.wait_for(sleeper, DEADLINE)

    if over == "stopped":  # its sleeper was woken too, and finds out once the loop goes on
        await asyncio.to_thread(loop.run_until_complete, asyncio.wait_for(left, DEADLINE))
        loop.close()
    left._log_destroy_pending = False  # type: ignore[attr-defined]
    await store.close()


def _leave_asleep(store: Store) -> tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]:
    loop = asyncio.new_event_loop()
    left = loop.create_task(store.wait(["default"], None, NEVER))
    loop.run_until_complete(asyncio.sleep(0.2))
    return loop, left
