"""What was wrong in job-queue's design (BR-01 … BR-23), and is not here.

Some numbers are about its files or its Redis. What they mean for any store is proved here, for files in
test_object_store.py, and for lists and keys of a Redis server in test_redis_store.py.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable
from contextlib import asynccontextmanager, closing

import pytest

from millrace import App, JobFailed, LocalEvent
from millrace.domain.change import Change
from millrace.domain.request import Receipt
from millrace.store.memory import MemoryStore
from millrace.testing import a_claim, a_reclaim, a_spec, days
from millrace.testing.conformance.scenes import complete, control, gone, put, show, take


async def test_br_01_of_many_producers_of_one_id_one_succeeds(store, clock):
    answers = await asyncio.gather(*(store.enqueue([a_spec(id="same", token=f"{n}")]) for n in range(50)))

    assert sorted(answer.status for [answer] in answers) == ["duplicate"] * 49 + ["queued"]
    assert len(await store.claim(a_claim(100))) == 1


async def test_br_02_an_enqueue_that_was_not_acknowledged_blocks_nothing(store, clock):
    """What was refused half-way left neither a record nor a place in the line, so the id is free."""
    try:
        await store.enqueue([a_spec(id="good"), a_spec(id="child", after=("nobody",))])
    except LookupError:
        pass
    else:
        raise AssertionError("an unknown parent was taken")

    assert await gone(store, "good")
    assert await store.claim(a_claim(100)) == []
    [answer] = await store.enqueue([a_spec(id="good")])
    assert answer.status == "queued"
    assert (await take(store)).id == "good"


async def test_br_05_a_worker_that_dies_right_after_its_claim_loses_nothing(store, clock):
    """There is no moment between being taken and being running: the claim is one step, and expires as one."""
    spec = await put(store)
    await store.claim(a_claim(worker="dies at once"))

    record = await show(store, spec)
    assert (record.state, record.worker, record.lease_until is not None) == ("running", "dies at once", True)

    clock.advance(31)
    [rescued] = await store.reclaim(a_reclaim())
    await complete(store, rescued)
    assert (await show(store, spec)).state == "completed"


async def test_br_06_work_never_expires_by_itself(store, clock):
    """More than a year later, upkeep has taken nothing that is not finished."""
    waits, runs = await put(store, id="waits", queue="a"), await put(store, id="runs")
    later = await put(store, id="later", queue="a", delay=500 * 86_400)
    retries = await put(store, id="retries", queue="b")
    await store.settle([((await take(store, queue="b")).lease, Change.snooze(days(450)))])
    await take(store)

    for _ in range(4):
        clock.advance(100 * 86_400)
        while (await store.maintain()).more:
            pass

    assert [(await show(store, spec)).state for spec in (waits, runs, later, retries)] == [
        "waiting",
        "running",
        "waiting",
        "waiting",
    ]
    assert [job.id for job in await store.reclaim(a_reclaim())] == ["runs"]
    assert (await take(store, queue="a")).id == "waits"


async def test_br_15_a_reaper_that_heard_of_nothing_finds_what_was_lost(store, clock):
    """It is another process's way to the store, opened after the claim: no message can have reached it."""
    spec = await put(store)
    await take(store)
    clock.advance(31)
    reaper = store.for_loop()
    if reaper is not store:
        await reaper.connect()
    try:
        [rescued] = await reaper.reclaim(a_reclaim())
        assert rescued.id == spec.id
        assert await reaper.settle([(rescued.lease, Change.completed(b"1"))]) == [Receipt.OK]
    finally:
        if reaper is not store:
            await reaper.close()


async def test_br_16_a_lost_notification_only_makes_it_slow(store, clock, monkeypatch):
    class Deaf:
        async def wait(self, timeout: float) -> None:
            await asyncio.sleep(timeout)

    @asynccontextmanager
    async def deaf(job_id):
        yield Deaf()

    monkeypatch.setattr(store, "watch", deaf)
    app = App(store)

    @app.task
    async def nothing() -> None: ...

    async with asyncio.timeout(60), app.worker():
        called: Awaitable[object] = nothing.call()
        assert await called is None


async def test_br_16_a_duplicate_of_a_dead_job_fails_at_once(store, clock):
    app = App(store)

    @app.task(max_attempts=1)
    async def fails() -> None:
        raise ValueError("no")

    await fails.options(id="dead").enqueue()
    await app.worker(burst=True).run(handle_signals=False)

    with pytest.raises(JobFailed, match="ValueError: no"):
        async with asyncio.timeout(60):
            await fails.options(id="dead", reuse=False, wait=None).call()


@pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)  # the object store's are times
async def test_br_20_order_holds_where_numbers_get_another_digit(store, clock):
    await put(store, queue="other")
    if isinstance(store, MemoryStore):
        store._tables._last_seq = 9_999_999_997
    else:
        await store.close()
        with closing(sqlite3.connect(store.path)) as file, file:
            assert file.execute("UPDATE millrace_store SET last_seq = 9999999997").rowcount == 1
        await store.connect()
    names = [(await put(store)).id for _ in range(5)]

    taken = await store.claim(a_claim(10))

    assert [job.id for job in taken] == names
    assert [job.seq for job in taken] == [9_999_999_998 + n for n in range(5)]


async def test_br_21_each_job_has_its_own_time_to_live(store, clock):
    """In the record, in milliseconds since it finished: not the age of whatever it is kept in."""
    for name, keep in (("short", 10), ("long", 1_000)):
        await put(store, id=name, keep_result=keep)
        await complete(store, await take(store), b"1")
    await put(store, id="stale", expires=5)
    await put(store, id="fresh", expires=1_000)

    clock.advance(11)
    await store.maintain()

    assert [(await show(store, name)).result for name in ("short", "long")] == [None, b"1"]
    assert [(await show(store, name)).state for name in ("stale", "fresh")] == ["dead", "waiting"]


async def test_br_23_a_listener_finds_payload_and_times_on_the_job(store, clock):
    app = App(store)
    heard: list[LocalEvent] = []
    app.on("failed", heard.append)

    @app.task(max_attempts=1)
    async def fails(n: int) -> None:
        raise ValueError(n)

    await fails.enqueue(7)
    await app.worker(burst=True).run(handle_signals=False)

    [event] = heard
    assert (event.job.payload, event.job.enqueued_at, event.error.type) == (b'{"n":7}', clock(), "ValueError")


async def test_br_23_the_registry_of_ids_is_bounded_by_retention(store, clock):
    await control(store, keep_completed=60)
    for _ in range(50):
        await put(store)
        await complete(store, await take(store))

    clock.advance(61)
    while (await store.maintain()).more:
        pass

    assert [job async for jobs in _all(store) for job in jobs] == []


async def _all(store):
    for partition in await store.partitions(1):
        async for jobs in store.scan(partition):
            yield jobs
