"""What becomes of a job is what its handler said, or what happened to it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace import Bury, Context, Retry, RetryPolicy, Snooze, Spec, State
from millrace.domain.event import Kind
from tests.worker.stage import Stage, virtual


@virtual
async def test_a_failing_job_is_retried_with_backoff_until_its_budget_is_used_up(stage: Stage):
    starts: list[float] = []

    @stage.app.task(max_attempts=3, retry=RetryPolicy(initial=1_000, factor=2, jitter=0))
    async def fail() -> None:
        starts.append(asyncio.get_running_loop().time())
        raise ValueError("no luck")

    job = await fail.enqueue()
    async with stage.working() as worker:
        dead = await stage.until(job.id)

    assert (dead.state, dead.reason, dead.failures) == (State.DEAD, "max_attempts_exceeded", 3)
    assert dead.error is not None
    assert (dead.error.type, dead.error.message) == ("ValueError", "no luck")
    assert "raise ValueError" in dead.error.traceback
    first, second, third = starts
    assert second - first == pytest.approx(1.0, abs=0.01)
    assert third - second == pytest.approx(2.0, abs=0.01)
    assert (worker.stats.retried, worker.stats.buried, worker.stats.failed) == (2, 1, 3)


@virtual
async def test_a_tasks_own_backoff_is_asked_for_each_retry(stage: Stage):
    asked: list[int] = []

    def curve(failures: int) -> float:
        asked.append(failures)
        return 7.0 * failures

    @stage.app.task(max_attempts=3, retry=curve)
    async def fail() -> None:
        raise ValueError

    job = await fail.enqueue()
    async with stage.working():
        await stage.until(job.id)

    assert asked == [1, 2]
    history = await stage.store.history(job.id)
    assert [event.delay for event in history if event.kind is Kind.RETRIED] == [7_000, 14_000]


@virtual
async def test_a_backoff_that_fails_leaves_the_retry_policy_in_charge(stage: Stage):
    def curve(failures: int) -> float:
        return float("nan")

    @stage.app.task(max_attempts=2, retry=curve)
    async def fail() -> None:
        raise ValueError

    job = await fail.enqueue()
    await stage.burst()

    assert (await stage.job(job.id)).state is State.WAITING


@pytest.mark.parametrize("say", ["raise", "return"])
def test_a_handler_may_ask_for_a_retry_after_its_own_delay(say: str):
    @virtual
    async def story(stage: Stage):
        @stage.app.task
        async def busy():
            return _say(say, Retry("busy", after="90s"))

        job = await busy.enqueue()
        await stage.burst()

        waiting = await stage.job(job.id)
        assert (waiting.state, waiting.failures) == (State.WAITING, 1)
        assert (await stage.store.history(job.id))[-1].delay == 90_000

    story()


@pytest.mark.parametrize("say", ["raise", "return"])
def test_a_snooze_is_a_wish_and_not_a_failure(say: str):
    @virtual
    async def story(stage: Stage):
        @stage.app.task(max_attempts=1)
        async def later():
            return _say(say, Snooze(60))

        job = await later.enqueue()
        worker = await stage.burst()

        waiting = await stage.job(job.id)
        assert (waiting.state, waiting.failures, waiting.snoozes) == (State.WAITING, 0, 1)
        assert worker.stats.snoozed == 1

    story()


@pytest.mark.parametrize("say", ["raise", "return"])
def test_a_handler_may_give_up_at_once(say: str):
    @virtual
    async def story(stage: Stage):
        @stage.app.task(max_attempts=10)
        async def hopeless():
            return _say(say, Bury("no such user"))

        job = await hopeless.enqueue()
        await stage.burst()

        dead = await stage.job(job.id)
        assert (dead.state, dead.reason) == (State.DEAD, "explicit_fail")
        assert dead.error is not None and dead.error.message == "no such user"

    story()


def _say(how: str, verdict: Exception) -> Exception:
    if how == "raise":
        raise verdict
    return verdict


@virtual
async def test_a_timeout_is_retried_by_the_worker_itself_while_its_lease_is_live(stage: Stage):  # BO-17
    @stage.app.task(timeout=5, lease=2, max_attempts=2, retry=RetryPolicy(initial=1_000, jitter=0))
    async def hang() -> None:
        await asyncio.sleep(3_600)

    job = await hang.enqueue()
    async with stage.working():
        dead = await stage.until(job.id)

    assert (dead.state, dead.reason, dead.stalls) == (State.DEAD, "timeout", 0)
    kinds = await stage.kinds(job.id)
    assert kinds == [Kind.ENQUEUED, Kind.CLAIMED, Kind.RETRIED, Kind.CLAIMED, Kind.BURIED]
    history = await stage.store.history(job.id)
    assert history[2].duration == pytest.approx(5_000, abs=50)


@virtual
async def test_a_timeout_may_be_final(stage: Stage):
    @stage.app.task(timeout=5, on_timeout="bury", max_attempts=9)
    async def hang() -> None:
        await asyncio.sleep(3_600)

    job = await hang.enqueue()
    await stage.burst()

    dead = await stage.job(job.id)
    assert (dead.state, dead.reason, dead.failures) == (State.DEAD, "timeout", 1)


@virtual
async def test_each_job_has_its_own_timeout(stage: Stage):
    ended: list[tuple[int, float]] = []
    clock = asyncio.get_running_loop().time
    begun = clock()

    @stage.app.task(max_attempts=1)
    async def hang(n: int) -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            ended.append((n, round(clock() - begun)))

    for n in (30, 10, 20):
        await hang.options(timeout=n).enqueue(n=n)
    await stage.burst()

    assert ended == [(10, 10), (20, 20), (30, 30)]


@virtual
async def test_a_payload_that_does_not_fit_is_buried_without_a_retry(stage: Stage):
    @stage.app.task(max_attempts=9)
    async def typed(n: int) -> None: ...

    await stage.store.enqueue([Spec(id="bad", task="typed", payload=b'{"n": "x"}', max_attempts=9)])
    await stage.burst()

    dead = await stage.job("bad")
    assert (dead.state, dead.reason) == (State.DEAD, "payload_invalid")


@virtual
async def test_a_result_over_a_mebibyte_buries_the_job_at_once(stage: Stage):
    @stage.app.task(max_attempts=4)
    async def verbose(length: int) -> str:
        return "x" * (length - 2)  # and two quotes

    kept, refused = [await verbose.enqueue(length=(1 << 20) + more) for more in (0, 1)]
    await stage.burst()

    assert (await stage.job(kept.id)).state is State.COMPLETED
    dead = await stage.job(refused.id)
    assert dead.state is State.DEAD and dead.error is not None
    assert (dead.reason, dead.attempt) == ("result_invalid", 1)
    assert "1,048,577 bytes" in dead.error.message and "return a reference" in dead.error.message


async def test_a_result_that_cannot_be_encoded_buries_the_job_at_once():
    """In every way to run a handler: its effects are not repeated."""
    stage = Stage()  # in real time: a thread does not hold up a virtual clock
    runs: list[str] = []

    async def layer(ctx: Context, call_next: Any) -> Any:
        return await call_next()

    @stage.app.task(max_attempts=4)
    async def odd():
        runs.append("async def")
        return object()

    @stage.app.task(max_attempts=4)
    def threaded():
        runs.append("def")
        return float("nan")

    @stage.app.task(max_attempts=4, middleware=[layer])
    async def layered():
        runs.append("middleware")
        return {1: object()}

    @stage.app.batch_task(size=2, max_attempts=4)
    async def together(numbers: list[int]) -> list[Any]:
        runs.append("batch")
        return [object() for _ in numbers]

    jobs = [await task.enqueue() for task in (odd, threaded, layered)]
    jobs += [await together.enqueue(n) for n in range(2)]
    await stage.burst()

    assert sorted(runs) == ["async def", "batch", "def", "middleware"]
    for job in jobs:
        dead = await stage.job(job.id)
        assert (dead.state, dead.reason, dead.failures) == (State.DEAD, "result_invalid", 1)
        assert dead.error is not None
        assert dead.error.type == "ResultInvalid"
        assert f"the result of task {dead.task!r}" in dead.error.message


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError(), GeneratorExit, BaseException("odd")])
def test_no_exception_of_a_handler_ends_its_worker(error: BaseException):
    @virtual
    async def story(stage: Stage):
        @stage.app.task(max_attempts=1)
        async def leave() -> None:
            raise error

        @stage.app.task
        async def fine() -> int:
            return 1

        lost, good = await leave.enqueue(), await fine.enqueue()
        async with stage.working():
            assert (await stage.until(lost.id)).state is State.DEAD
            assert (await stage.until(good.id)).state is State.COMPLETED

    story()


@virtual
async def test_a_handler_that_cancels_its_own_task_does_not_spin(stage: Stage):
    runs = 0

    @stage.app.task
    async def confused() -> None:
        nonlocal runs
        runs += 1
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    answer = await confused.enqueue()
    async with stage.working():
        await asyncio.sleep(10)

    job = await stage.job(answer.id)
    assert (job.failures, job.releases) == (0, runs)
    assert 2 <= runs <= 11
