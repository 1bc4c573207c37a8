"""The app: its store, its life, and the loops and threads that share it."""

import asyncio
import subprocess
import sys
import threading

import pytest

import millrace
from millrace import App, InvalidInput
from millrace.store.memory.store import MemoryStore


class CountedStore(MemoryStore):
    """Knows how often it was opened and closed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.others: list[CountedStore] = []

    async def connect(self) -> None:
        self.calls.append("connect")
        await asyncio.sleep(0)

    async def close(self) -> None:
        self.calls.append("close")


class LoopBoundStore(CountedStore):
    """Like a store whose connection belongs to one event loop."""

    def for_loop(self):
        other = LoopBoundStore()
        other._ledger, other._tables, other._lock = self._ledger, self._tables, self._lock
        self.others.append(other)
        return other


async def test_nothing_is_opened_before_the_first_use():
    store = CountedStore()
    app = App(store)

    @app.task
    async def send(): ...

    assert store.calls == []
    await send.enqueue()
    assert store.calls == ["connect"]
    await app.close()
    assert store.calls == ["connect", "close"]


async def test_an_app_is_open_inside_its_block_and_closed_once_after_the_outermost():
    store = CountedStore()
    app = App(store)

    async with app as same:
        async with app:
            assert same is app
        assert store.calls == ["connect"]
    assert store.calls == ["connect", "close"]


async def test_an_app_that_was_closed_can_be_used_again():
    store = CountedStore()
    app = App(store)
    async with app:
        pass

    assert await app.jobs.count() == []
    assert store.calls == ["connect", "close", "connect"]


async def test_tasks_that_come_first_together_open_the_store_once():
    store = CountedStore()
    app = App(store)

    @app.task
    async def send(n: int): ...

    await asyncio.gather(*(send.enqueue(n) for n in range(20)))

    assert store.calls == ["connect"]


def test_every_event_loop_gets_its_own_way_to_a_store_that_is_bound_to_one():
    store = LoopBoundStore()
    app = App(store)

    @app.task
    async def send(n: int): ...

    async def use(n: int) -> None:
        async with app:
            await send.enqueue(n)

    async def outer() -> None:
        async with app:
            threads = [threading.Thread(target=asyncio.run, args=(use(n),)) for n in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            assert (await app.queue("default").counts()).waiting == 3

    asyncio.run(outer())

    assert store.calls == ["connect", "close"]
    assert [other.calls for other in store.others] == [["connect", "close"]] * 3


def test_one_event_loop_after_the_other_may_use_an_app():
    app = App(MemoryStore())

    @app.task
    async def send(): ...

    for _ in range(3):
        asyncio.run(send.enqueue())

    assert asyncio.run(app.jobs.count())[0].waiting == 3


def test_a_store_is_a_url_or_an_object_and_its_clock_is_its_own():
    with pytest.raises(InvalidInput, match="neither a store nor a URL"):
        App(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="pass the clock to the store"):
        App(MemoryStore(), clock=lambda: 0)


def test_every_public_name_can_be_imported():
    for name in millrace.__all__:
        assert getattr(millrace, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        millrace.Nothing  # noqa: B018
    assert set(millrace.__all__) <= set(dir(millrace))


def test_importing_millrace_is_quick():
    """In processor time, which a busy machine stretches less than time on the wall."""
    script = "import time; t = time.process_time(); import millrace; print(time.process_time() - t)"
    command = [sys.executable, "-c", script]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(5)]

    assert min(map(float, runs)) < 0.15


async def test_an_app_makes_its_workers():
    app = App(MemoryStore())

    @app.task(queue="mail")
    async def send(): ...

    assert app.worker().queues == ("mail",)
    assert app.worker("other", tasks=[send], slots=3, name="w-1").id == "w-1"
