"""What was wrong in job-queue's design (BR-01 … BR-23), and is not here.

Some numbers are about its files or its Redis. What they mean for any store is proved here, for files in
test_object_store.py, and for lists and keys of a Redis server in test_redis_store.py.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager, closing

import pytest

from millrace import App, JobFailed
from millrace.domain.change import Change
from millrace.domain.request import Receipt
from millrace.store.memory import MemoryStore
from millrace.testing import a_claim, a_reclaim, a_spec, days
from millrace.testing.conformance import (
    cancelling,
    deduplication,
    enqueueing,
    failures,
    leases,
    reclaiming,
    retention,
    settling,
    waiting,
    workers,
)
from millrace.testing.conformance.scenes import complete, control, gone, put, show, take
from tests.store.sqlite import test_processes


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


test_br_03_a_sleeper_that_gives_up_takes_nobodys_wake_up = waiting.test_a_sleeper_that_gives_up_takes_nobodys_wake_up
test_br_03_a_job_enqueued_between_claim_and_wait_is_not_slept_over = (
    waiting.test_a_worker_does_not_sleep_over_a_job_that_is_there
)

test_br_04_polling_alone_is_correct = waiting.test_polling_alone_is_correct


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


test_br_07_a_worker_that_stops_beating_is_shown_as_gone = workers.test_a_worker_that_stops_beating_is_shown_as_gone

test_br_08_a_worker_whose_lease_was_taken_over_cannot_settle = (
    leases.test_a_worker_whose_lease_was_taken_over_cannot_settle
)
test_br_08_a_late_run_does_not_overwrite_the_result = leases.test_a_late_run_does_not_overwrite_the_result_of_the_next
test_br_08_an_extended_job_is_not_taken_over = leases.test_an_extended_job_is_not_taken_over

test_br_09_a_job_that_keeps_killing_its_worker_is_buried = reclaiming.test_a_job_that_keeps_killing_its_worker_is_buried

test_br_10_a_running_job_refuses_to_be_cancelled = cancelling.test_a_running_job_refuses_to_be_cancelled
test_br_10_a_job_in_backoff_can_be_cancelled = cancelling.test_a_job_in_backoff_can_be_cancelled

test_br_11_a_cancelled_id_enqueued_again_runs_once = deduplication.test_a_cancelled_id_enqueued_again_runs_once

test_br_12_the_lease_of_an_older_generation_cannot_settle = (
    enqueueing.test_the_lease_of_an_older_generation_cannot_settle_the_newer
)

test_br_13_a_dead_id_may_be_enqueued_again = (
    enqueueing.test_a_dead_or_cancelled_id_may_be_enqueued_again_as_a_new_generation
)

test_br_14_an_expired_result_is_said_to_be_expired = deduplication.test_an_expired_result_is_said_to_be_expired
test_br_14_an_expired_result_is_never_shown = retention.test_an_expired_result_is_never_shown_even_before_upkeep


async def test_br_15_a_reaper_that_heard_of_nothing_finds_what_was_lost(store, clock):
    """It is another process's way to the store, opened after the claim: no message can have reached it."""
    spec = await put(store)
    await take(store)
    clock.advance(31)
    reaper = store.beside()
    if reaper is not store:
        await reaper.connect()
    try:
        [rescued] = await reaper.reclaim(a_reclaim())
        assert rescued.id == spec.id
        assert await reaper.settle([(rescued.lease, Change.completed(b"1"))]) == [Receipt.OK]
    finally:
        if reaper is not store:
            await reaper.close()


test_br_16_null_is_a_result = deduplication.test_null_is_a_result
test_br_16_a_watcher_set_up_before_misses_nothing = waiting.test_a_watcher_set_up_before_misses_nothing


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

    async with asyncio.timeout(30), app.worker():
        assert await nothing.call() is None


async def test_br_16_a_duplicate_of_a_dead_job_fails_at_once(store, clock):
    app = App(store)

    @app.task(max_attempts=1)
    async def fails() -> None:
        raise ValueError("no")

    await fails.options(id="dead").enqueue()
    await app.worker(burst=True).run(handle_signals=False)

    with pytest.raises(JobFailed, match="ValueError: no"):
        async with asyncio.timeout(10):
            await fails.options(id="dead", reuse=False, wait=None).call()


test_br_17_a_failed_run_waits_out_its_backoff = settling.test_a_failed_run_waits_out_its_backoff
test_br_17_backoff_doubles_up_to_its_cap = failures.test_backoff_doubles_up_to_its_cap

test_br_18_any_text_is_an_id = deduplication.test_any_text_is_an_id
test_br_18_ids_that_differ_in_case_or_form_are_different = (
    deduplication.test_ids_that_differ_in_case_or_form_are_different
)

test_br_19_an_enqueued_job_is_kept_as_it_was_asked_for = enqueueing.test_an_enqueued_job_is_kept_as_it_was_asked_for

test_br_20_seq_only_grows_also_over_pruned_jobs = enqueueing.test_seq_only_grows_also_over_pruned_jobs


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


test_br_22_a_process_that_died_asleep_leaves_nothing_to_notify = (
    test_processes.test_a_process_that_died_asleep_is_forgotten
)


async def test_br_23_a_listener_finds_payload_and_times_on_the_job(store, clock):
    app = App(store)
    heard = []
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
