"""Waking between processes: one enqueue wakes a few of many idle workers, and always one that can use it (BE-14).

Sleepers would sleep for minutes, and do not look by themselves meanwhile: a hint that is lost shows as a hang.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millrace.domain.change import Change
from millrace.store.connect import connect
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_spec, a_worker, seconds
from tests.servers import postgres, redis_server

WORKERS = 24
LONG = 600.0
DEADLINE = 60.0
SERVERS: dict[str, Callable[[Path], str]] = {"redis": redis_server.url_for, "postgres": postgres.url_for}
PLACES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db",
    "directory": lambda folder: f"file://{folder}/jobs",
    **SERVERS,
}
Wanted = tuple[Sequence[str], frozenset[str] | None]
A, B = frozenset({"a"}), frozenset({"b"})

SLEEPS = """
import asyncio, sys
from millrace.store.connect import connect

async def main():
    store = connect(sys.argv[1])
    await store.connect()
    asleep = [asyncio.ensure_future(store.wait(["default"], None, 3600)) for _ in range(3)]
    await asyncio.sleep(1)
    print("asleep", flush=True)
    await asyncio.wait(asleep)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def nobody_looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sqlite", "postgres"):
        monkeypatch.setattr(f"millrace.store.{name}.store._SLICE", LONG)


@asynccontextmanager
async def asleep(url: str, *wanted: Wanted) -> AsyncIterator[tuple[Store, list[asyncio.Task[None]]]]:
    """A producer, and sleepers as of processes of their own, in the order in which they fell asleep."""
    producer, *stores = [connect(url) for _ in range(1 + len(wanted))]
    sleepers: list[asyncio.Task[None]] = []
    try:
        for store in (producer, *stores):
            await store.connect()
        for store, (queues, tasks) in zip(stores, wanted, strict=True):
            sleepers.append(asyncio.create_task(store.wait(queues, tasks, LONG)))
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)  # until all have looked
        assert not any(task.done() for task in sleepers), "woken by nothing"
        yield producer, sleepers
    finally:
        for task in sleepers:
            task.cancel()
        await asyncio.gather(*sleepers, return_exceptions=True)
        for store in (producer, *stores):
            await store.close()


async def woke(sleeper: asyncio.Task[None]) -> bool:
    done, _ = await asyncio.wait([sleeper], timeout=DEADLINE)
    return bool(done)


@pytest.mark.parametrize("name", ["sqlite", *SERVERS])
async def test_one_enqueue_wakes_a_few_of_many(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    """Each waits as in a process of its own. Nothing is there for those who are woken for nothing."""
    for constant in ("_STEP", "_LONGEST"):  # who hesitates hears in time that others go, however busy this machine is
        monkeypatch.setattr(f"millrace.store.postgres.hints.{constant}", 4.0)
    url = PLACES[name](tmp_path)
    async with asleep(url, *[(["default"], None)] * WORKERS) as (producer, sleepers):
        for number in range(WORKERS):
            await producer.beat(a_worker(f"w{number}", queues=("default",)), seconds(LONG))
        await producer.enqueue([a_spec()])
        await asyncio.wait(sleepers, timeout=DEADLINE, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.5)
        woken = sum(task.done() for task in sleepers)

    assert 1 <= woken <= WORKERS * 2 // 3


@pytest.mark.parametrize("name", PLACES)
async def test_a_hint_reaches_the_process_that_knows_the_task(tmp_path: Path, name: str):
    others: list[Wanted] = [(["default"], B)] * 3
    async with asleep(PLACES[name](tmp_path), *others, (["default"], A), *others) as (producer, sleepers):
        await producer.enqueue([a_spec(task="a")])

        assert await woke(sleepers[len(others)])


@pytest.mark.parametrize("name", PLACES)
async def test_a_hint_that_a_process_cannot_use_is_passed_on(tmp_path: Path, name: str):
    """It serves the queue, and knows the task, but not both at once: its sleepers are two."""
    url = PLACES[name](tmp_path)
    mixed = connect(url)
    await mixed.connect()
    half = [asyncio.create_task(mixed.wait(*wanted, LONG)) for wanted in ((["default"], B), (["other"], A))]
    async with asleep(url, (["default"], A)) as (producer, [knows]):
        await producer.enqueue([a_spec(task="a")])

        assert await woke(knows)
    for task in half:
        task.cancel()
    await asyncio.gather(*half, return_exceptions=True)
    await mixed.close()


@pytest.mark.parametrize("name", PLACES)
async def test_room_under_the_limit_of_a_task_wakes_a_process_that_serves_another_queue(tmp_path: Path, name: str):
    url = PLACES[name](tmp_path)
    producer = connect(url)
    await producer.connect()
    await producer.control("task", "a", {"max_running": 1})
    await producer.enqueue([a_spec(task="a", queue="here")])
    [job] = await producer.claim(a_claim(queue="here"))
    await producer.enqueue([a_spec(task="a", queue="there")])
    async with asleep(url, (["here"], A), (["there"], B), (["there"], A)) as (other, sleepers):
        await producer.settle([(job.lease, Change.completed())])

        assert await woke(sleepers[2])
        assert [job.queue for job in await other.claim(a_claim(queue="there"))] == ["there"]
    await producer.close()


@pytest.mark.parametrize("name", PLACES)
async def test_a_resume_wakes_a_process_that_knows_what_waits(tmp_path: Path, name: str):
    url = PLACES[name](tmp_path)
    producer = connect(url)
    await producer.connect()
    await producer.control("queue", "default", {"paused": True})
    await producer.enqueue([a_spec(task="a")])
    async with asleep(url, (["default"], B), (["default"], A)) as (_, sleepers):
        await producer.control("queue", "default", {"paused": False})

        assert await woke(sleepers[1])
    await producer.close()


@pytest.mark.parametrize("name", PLACES)
async def test_a_process_that_was_killed_asleep_takes_nobodys_hint(tmp_path: Path, name: str):
    """It would have slept the longest, and its place is not given up by anybody."""
    url = PLACES[name](tmp_path)
    first = connect(url)
    await first.connect()
    with subprocess.Popen([sys.executable, "-c", SLEEPS, url], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert await asyncio.to_thread(killed.stdout.readline) == "asleep\n"
        killed.kill()
    async with asleep(url, (["default"], None)) as (producer, [living]):
        await producer.enqueue([a_spec()])

        assert await woke(living)
    await first.close()


@pytest.mark.parametrize("others", ["dead", "busy", "of another queue"])
@pytest.mark.parametrize("name", PLACES)
async def test_the_only_sleeper_is_woken_each_time_however_many_workers_are_known(
    tmp_path: Path, name: str, others: str
):
    url = PLACES[name](tmp_path)
    producer, sleeping = connect(url), connect(url)
    await producer.connect()
    await sleeping.connect()
    queue, ttl = "other" if others == "of another queue" else "default", 0.001 if others == "dead" else LONG
    for number in range(60):
        await producer.beat(a_worker(f"w{number}", queues=(queue,)), seconds(ttl))
    for number in range(5):
        sleeper = asyncio.create_task(sleeping.wait(["default"], None, LONG))
        await asyncio.sleep(0.3)
        await producer.enqueue([a_spec(id=f"job{number}")])

        assert await woke(sleeper), number
        assert [job.id for job in await sleeping.claim(a_claim())] == [f"job{number}"]
    await sleeping.close()
    await producer.close()
