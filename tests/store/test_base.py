"""A store that has only the methods without a default keeps the promises that the defaults are about."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any

import pytest

from millrace.domain.errors import InvalidInput
from millrace.store.base import BaseStore
from millrace.store.memory import MemoryStore
from millrace.store.protocol import Store
from millrace.testing.builders import a_spec, specs
from millrace.testing.clock import START, VirtualClock
from millrace.testing.conformance.events import *  # noqa: F403
from millrace.testing.conformance.reading import *  # noqa: F403
from millrace.testing.conformance.spans import *  # noqa: F403
from millrace.testing.conformance.waiting import *  # noqa: F403
from millrace.testing.invariants import assert_holds, gather

ESSENTIAL = {
    *("enqueue", "claim", "settle", "extend", "reclaim"),
    *("get", "find", "count", "position", "lanes", "events", "events_before"),
    *("cancel", "replay", "archive", "delete", "control", "drain", "obliterate", "maintain", "beat", "workers"),
    *("schedules", "due_schedules", "advance", "now", "export", "import_records"),
}


def _passed_on(name: str) -> Callable[..., Any]:
    def method(self: SmallStore, *args: Any, **more: Any) -> Any:
        return getattr(self.inner, name)(*args, **more)

    return method


class SmallStore(BaseStore):
    """The essential methods of the memory store, and the defaults for the rest."""

    url = "small://"

    def __init__(self, clock: VirtualClock) -> None:
        self.inner = MemoryStore(clock=clock)


for name in ESSENTIAL:
    setattr(SmallStore, name, _passed_on(name))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def store(clock: VirtualClock) -> AsyncIterator[Any]:
    made: Any = SmallStore(clock)
    yield made
    assert_holds(await gather(made, since=START))


def test_every_method_of_the_protocol_is_essential_or_has_a_default() -> None:
    methods = {name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")}
    assert methods - ESSENTIAL == methods & set(vars(BaseStore))
    assert isinstance(SmallStore(VirtualClock()), Store)


@pytest.mark.parametrize("name", ["memory", "sqlite", "postgres", "redis", "object"])
def test_the_stores_of_this_package_poll_and_scan_for_nothing(name: str) -> None:
    module = import_module(f"millrace.store.{name}.store")
    [store] = [one for one in vars(module).values() if isinstance(one, type) and one.__name__.lower() == f"{name}store"]
    defaults = [one for one, value in vars(BaseStore).items() if callable(value) and not one.startswith("_")]
    kept = {one for one in defaults if getattr(store, one) is getattr(BaseStore, one)}

    assert kept <= {"connect", "close", "for_loop", "for_reading", "enqueue_behind"}


async def test_chunks_are_enqueued_one_after_the_other(store: Store) -> None:
    first = await store.enqueue_behind(specs(2), None)
    second = await store.enqueue_behind(specs(2), first)

    assert [answer.seq for answer in (*await first, *await second)] == [1, 2, 3, 4]


async def test_a_chunk_behind_one_that_failed_is_not_enqueued(store: Store) -> None:
    bad = await store.enqueue_behind([a_spec(queue="")], None)
    with pytest.raises(InvalidInput):
        await store.enqueue_behind(specs(1), bad)

    assert await store.count() == []
