"""Request and response: enqueue, then wait for the result (R-04)."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from millrace import App, JobCancelled, JobFailed, JobNotFound, PayloadInvalid, ResultExpired, Task, WaitTimeout
from millrace.domain.change import Change
from millrace.domain.job import State
from millrace.domain.outcome import Failure
from millrace.store.memory.store import MemoryStore
from tests.narrowing import the
from tests.worker.by_hand import HandClock, settle, take

Double = Task[[int], int]


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def store(clock: HandClock):
    return MemoryStore(clock=clock)


@pytest.fixture
def app(store: MemoryStore):
    return App(store)


@pytest.fixture
def double(app: App):
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    return double


async def test_a_call_waits_for_the_result_of_its_job(store: MemoryStore, double: Double):
    call = asyncio.create_task(double.call(21))
    job = await settle(store, Change.completed(b"42"))

    assert await call == 42
    assert job.payload == b'{"number":21}'


async def test_the_notification_ends_the_wait_and_not_the_poll(store: MemoryStore, double: Double, monkeypatch):
    monkeypatch.setattr("millrace.app.result_wait.FIRST_POLL", 600.0)
    monkeypatch.setattr("millrace.app.result_wait.SLOWEST_POLL", 600.0)

    call = asyncio.create_task(double.call(21))
    await settle(store, Change.completed(b"42"))

    assert await asyncio.wait_for(call, 60) == 42


async def test_a_lost_notification_only_makes_it_slow(store: MemoryStore, double: Double, monkeypatch):
    """BR-16: the poll behind it finds the result."""

    class Deaf:
        async def wait(self, timeout: float) -> None:
            await asyncio.sleep(timeout)

    @asynccontextmanager
    async def deaf(job_id):
        yield Deaf()

    monkeypatch.setattr(store, "watch", deaf)
    call = asyncio.create_task(double.call(21))
    await settle(store, Change.completed(b"42"))

    assert await asyncio.wait_for(call, 60) == 42


@pytest.mark.parametrize("result", [b"null", None])
async def test_null_is_a_result(store: MemoryStore, app: App, result):
    """BR-16: it never resolved in the original."""

    @app.task
    async def nothing() -> None: ...

    call: asyncio.Task[object] = asyncio.create_task(nothing.call())
    await settle(store, Change.completed(result))

    assert await asyncio.wait_for(call, 60) is None


async def test_a_result_comes_back_as_the_annotation_says(store: MemoryStore, app: App):
    @app.task
    async def sizes() -> dict[int, tuple[int, ...]]:
        return {}

    call = asyncio.create_task(sizes.call())
    await settle(store, Change.completed(sizes.dump_result({1: (2, 3)})))

    assert await call == {1: (2, 3)}


async def test_a_duplicate_waits_for_the_job_that_is_there(store: MemoryStore, double: Double):
    bound = double.options(id="d-1")
    calls = [asyncio.create_task(bound.call(21)) for _ in range(3)]
    await settle(store, Change.completed(b"42"))

    assert await asyncio.gather(*calls) == [42, 42, 42]
    assert len(await store.history("d-1")) == 3  # enqueued, claimed, completed: it ran once


async def test_a_result_that_is_kept_is_returned_at_once(store: MemoryStore, double: Double):
    bound = double.options(id="d-1", wait=0)
    await bound.enqueue(21)
    await settle(store, Change.completed(b"42"))

    assert await bound.call(21) == 42


async def test_a_call_under_a_key_that_is_held_waits_for_its_owner(store: MemoryStore, double: Double):
    owner = await double.options(key="k").enqueue(21)
    call = asyncio.create_task(double.options(key="k").call(21))
    await asyncio.sleep(0.01)  # the key is free again as soon as its owner has finished
    job = await settle(store, Change.completed(b"42"))

    assert job.id == owner.id
    assert await asyncio.wait_for(call, 60) == 42


async def test_a_job_that_dies_raises_with_its_reason_and_error(store: MemoryStore, double: Double):
    call = asyncio.create_task(double.call(21))
    await settle(store, Change.bury(Failure("ValueError", "no such number"), "max_attempts_exceeded"))

    with pytest.raises(JobFailed, match=r"is dead \(max_attempts_exceeded\): ValueError: no such number") as failed:
        await call
    assert failed.value.reason == "max_attempts_exceeded"
    assert failed.value.error == Failure("ValueError", "no such number")


async def test_a_duplicate_of_a_dead_job_fails_at_once(store: MemoryStore, double: Double):
    """BR-16: it waited out the timeout in the original."""
    bound = double.options(id="d-1", reuse=False)
    await bound.enqueue(21)
    await settle(store, Change.bury(Failure("ValueError"), "explicit_fail"))

    with pytest.raises(JobFailed):
        await asyncio.wait_for(bound.call(21), 60)


async def test_a_job_that_is_cancelled_raises(store: MemoryStore, app: App, double: Double):
    call = asyncio.create_task(double.options(id="d-1").call(21))
    while await app.jobs.get("d-1") is None:
        await asyncio.sleep(0)
    await app.jobs.cancel("d-1")

    with pytest.raises(JobCancelled, match="'d-1' was cancelled"):
        await asyncio.wait_for(call, 60)


async def test_a_call_that_waits_too_long_raises_and_the_job_goes_on(store: MemoryStore, app: App, double: Double):
    with pytest.raises(
        WaitTimeout,
        match=r"has not finished within 0.03 s. The job continues. Get its result later with .*options\(wait=…\)",
    ) as late:
        await double.options(wait="30ms").call(21)

    job = await settle(store, Change.completed(b"42"))
    assert job.id == late.value.job
    assert await app.jobs.result(job) == 42


async def test_a_call_may_wait_for_ever(store: MemoryStore, double: Double):
    call = asyncio.create_task(double.options(wait=None).call(21))
    await asyncio.sleep(0.2)
    assert not call.done()
    await settle(store, Change.completed(b"42"))

    assert await call == 42


async def test_a_result_that_is_no_longer_kept_is_said_to_be_expired(
    store: MemoryStore, clock: HandClock, double: Double
):
    """BR-14."""
    bound = double.options(id="d-1", keep_result=60)
    await bound.enqueue(21)
    await settle(store, Change.completed(b"42"))
    clock.advance(61)

    with pytest.raises(ResultExpired, match="'d-1' completed, but its result is no longer kept"):
        await bound.options(rerun_expired=False).call(21)


async def test_a_call_whose_result_is_no_longer_kept_runs_the_job_again(
    store: MemoryStore, clock: HandClock, app: App, double: Double
):
    bound = double.options(id="d-1", keep_result=60)
    await bound.enqueue(21)
    await settle(store, Change.completed(b"42"))
    assert await bound.call(21) == 42
    clock.advance(61)
    assert (await bound.enqueue(21)).is_duplicate
    call = asyncio.create_task(bound.call(21))
    await settle(store, Change.completed(b"43"))

    assert await asyncio.wait_for(call, 60) == 43
    assert the(await app.jobs.get("d-1")).generation == 2


async def test_a_job_that_made_way_for_a_newer_one_is_told_by_its_history(store: MemoryStore, app: App, double: Double):
    """The waiter sleeps through the end of its generation and the beginning of the next."""
    call = asyncio.create_task(double.options(id="d-1").call(21))
    await settle(store, Change.bury(Failure("ValueError", "no"), "explicit_fail"))
    again = await double.options(id="d-1").enqueue(22)

    assert (again.is_duplicate, again.generation) == (False, 2)
    with pytest.raises(JobFailed, match="ValueError: no"):
        await asyncio.wait_for(call, 60)


async def test_a_retry_in_between_does_not_end_the_wait(store: MemoryStore, clock: HandClock, double: Double):
    call = asyncio.create_task(double.call(21))
    await settle(store, Change.retry(Failure("OSError"), delay=1_000))
    await asyncio.sleep(0.1)
    assert not call.done()

    clock.advance(2)
    job = await settle(store, Change.completed(b"42"))
    assert (await call, job.attempt) == (42, 2)


async def test_a_result_that_does_not_fit_is_the_callers_to_see(store: MemoryStore, double: Double):
    call = asyncio.create_task(double.call(21))
    await settle(store, Change.completed(b'"many"'))

    with pytest.raises(PayloadInvalid, match="the result of task 'double' does not fit"):
        await call


async def test_nothing_is_enqueued_when_the_payload_is_wrong(app: App, double: Double):
    with pytest.raises(PayloadInvalid):
        await double.call("twenty-one")  # type: ignore[arg-type]

    assert await app.jobs.count() == []


# ── app.jobs.result ───────────────────────────────────────────────────────────────────────────


async def test_a_result_can_be_asked_for_later_and_waited_for(store: MemoryStore, app: App, double: Double):
    answer = await double.enqueue(21)

    with pytest.raises(WaitTimeout, match="within 0 s"):
        await app.jobs.result(answer)
    asking = asyncio.create_task(app.jobs.result(answer, wait="5s"))
    await settle(store, Change.completed(b"42"))

    assert await asking == 42
    assert await app.jobs.result(answer.id) == 42


async def test_a_result_of_a_task_this_app_does_not_have_comes_back_as_plain_data(store: MemoryStore, double: Double):
    answer = await double.enqueue(21)
    await settle(store, Change.completed(b'{"a":[1]}'))

    assert await App(store).jobs.result(answer.id) == {"a": [1]}


async def test_a_result_of_no_job_is_not_found(app: App):
    with pytest.raises(JobNotFound, match="there is no job 'nobody'"):
        await app.jobs.result("nobody")


async def test_the_waiters_leave_nothing_behind(store: MemoryStore, double: Double):
    call = asyncio.create_task(double.call(21))
    job = await take(store)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert len(store._watchers) == 0
    assert the((await store.get([job.id]))[0]).state is State.RUNNING
