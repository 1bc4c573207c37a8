"""Batch handlers in processes: one call in a child for many jobs, and each job with an end of its own."""

from __future__ import annotations

import os
from typing import Any

from millrace import Context, RetryPolicy, State
from tests.worker.process import handlers
from tests.worker.stage import Stage, until

AT_ONCE = RetryPolicy(initial=1, maximum=1)


def batch_task(stage: Stage, handler: Any, **options: Any) -> Any:
    return stage.app.batch_task(process=True, **{"timeout": 60, "retry": AT_ONCE, "size": 50, **options})(handler)


async def test_a_batch_is_handled_in_another_process_and_each_job_ends_on_its_own():
    stage = Stage()
    measure = batch_task(stage, handlers.measure, max_attempts=1)

    answers = [await measure.enqueue(text) for text in ("abc", "", "later", "never", "abcdef")]
    await stage.burst(processes=1)
    short, empty, snoozed, buried, long = [await stage.job(answer.id) for answer in answers]

    length, together, pid = measure.load_result(short.result)
    assert (length, together, measure.load_result(long.result)[0]) == (3, 5, 6)
    assert pid != os.getpid()
    assert (empty.state, empty.reason, empty.error and empty.error.type) == (
        State.DEAD,
        "max_attempts_exceeded",
        "ValueError",
    )
    assert (snoozed.snoozes, snoozed.failures) == (1, 0)
    assert (buried.reason, buried.error and buried.error.message) == ("explicit_fail", "no")


async def test_contexts_work_over_the_pipe_and_middleware_is_around_each_job():
    stage = Stage()
    seen: list[Any] = []

    @stage.app.middleware
    async def look(ctx: Context, call_next: Any) -> Any:
        result = await call_next()
        seen.append(result)
        return result + 1

    follow_up = batch_task(stage, handlers.follow_up)
    answers = await follow_up.enqueue_many([(1,), (2,)])
    await stage.burst(queues=["default"], processes=1)

    assert [(await stage.job(answer.id)).result for answer in answers] == [b"11", b"21"]
    assert sorted(seen) == [10, 20]
    assert [(await stage.job(f"f{n}")).payload for n in (1, 2)] == [b'{"number":1}', b'{"number":2}']


async def test_a_job_that_kills_its_process_takes_the_others_of_its_batch_along_once_only():
    stage = Stage()
    fatal = batch_task(stage, handlers.batch_that_dies, max_attempts=None, linger=0.2)

    answers = await fatal.enqueue_many([(n,) for n in (12, 13)])
    async with stage.working(processes=1):
        neighbour, poison = [await stage.until(answer.id) for answer in answers]

    assert (poison.state, poison.reason, poison.stalls) == (State.DEAD, "stalled", 3)
    assert poison.error is not None and "exited with code 4" in poison.error.message
    assert (neighbour.state, neighbour.attempt, neighbour.stalls) == (State.COMPLETED, 2, 1)


async def test_a_batch_past_its_timeout_is_stopped_and_a_stop_gives_it_back(tmp_path):
    stage = Stage()
    slow = batch_task(stage, handlers.batch_that_hangs, timeout=0.4, max_attempts=1)
    endless = stage.app.batch_task(name="endless", process=True, size=2)(handlers.batch_that_hangs)

    async with stage.working(grace=0.5) as worker:
        late = await slow.enqueue_many([(str(tmp_path / "late"),)] * 2)
        assert [(await stage.until(one.id)).reason for one in late] == ["timeout"] * 2
        given = await endless.enqueue_many([(str(tmp_path / "given"),)] * 2)
        await until((tmp_path / "given").exists, 60)
        await worker.stop(deadline=0.1)

    jobs = [await stage.job(one.id) for one in given]
    assert [(job.state, job.failures, job.releases) for job in jobs] == [(State.WAITING, 0, 1)] * 2
    assert (worker.stats.zombies, worker.stats.children) == (0, 0)
