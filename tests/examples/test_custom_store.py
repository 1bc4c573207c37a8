"""The store of examples/journal_store.py passes the conformance suite, and its jobs survive the process."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from millrace import StoreError
from millrace.domain.request import Query
from millrace.testing import conformance
from millrace.testing.builders import a_claim, a_spec, specs
from millrace.testing.clock import START, VirtualClock
from millrace.testing.invariants import assert_holds, gather
from tests.examples.program import EXAMPLES

for topic in conformance.TOPICS:
    if topic != "transactions":  # for stores that can join a transaction of the caller
        module = importlib.import_module(f"millrace.testing.conformance.{topic}")
        globals().update({name: value for name, value in vars(module).items() if name.startswith("test_")})


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("journal_store", EXAMPLES / "journal_store.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


JournalStore: Any = load().JournalStore


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def store(clock: VirtualClock, tmp_path: Path) -> AsyncIterator[Any]:
    """Return a store for a test. At the end, the journal must lead to the jobs that the store has."""
    made = JournalStore(tmp_path / "jobs.journal", clock=clock)
    await made.connect()
    yield made
    assert_holds(await gather(made, since=START))
    before = await made.find(Query(archived=None, limit=1_000))
    await made.close()
    again = JournalStore(tmp_path / "jobs.journal", clock=clock)
    await again.connect()
    assert await again.find(Query(archived=None, limit=1_000)) == before
    await again.close()


async def test_a_journal_belongs_to_one_process(store: Any, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="in use by another process"):
        await JournalStore(tmp_path / "jobs.journal").connect()


async def test_a_line_that_a_crash_has_cut_off_is_removed(tmp_path: Path, clock: VirtualClock) -> None:
    path = tmp_path / "torn.journal"
    first = JournalStore(path, clock=clock)
    await first.enqueue(specs(2))
    await first.close()
    with path.open("ab") as file:
        file.write(b'[1,"enqueue",[[{"id')

    second = JournalStore(path, clock=clock)
    await second.enqueue([a_spec(id="third")])
    await second.close()
    third = JournalStore(path, clock=clock)
    await third.connect()

    assert len((await third.find(Query())).jobs) == 3
    [job, *_] = await third.claim(a_claim(limit=3))
    assert job.attempt == 1
    await third.close()
