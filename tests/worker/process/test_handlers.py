"""`process=True`: a handler in a process of its own behaves like any other, and has the same context."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import pytest

from millrace import App, InvalidInput, JobFailed, RetryPolicy, State
from millrace.app.handler.job_log import read_log
from millrace.domain.event import Kind
from tests.worker.process import handlers
from tests.worker.stage import Stage, until


def task(stage: Stage, handler: Any, **options: Any) -> Any:
    return stage.app.task(process=True, **{"timeout": 60, **options})(handler)


async def test_a_handler_runs_in_another_process_and_its_result_comes_back():
    stage = Stage()
    add, moved = task(stage, handlers.add), task(stage, handlers.moved)
    add_later, whoami = task(stage, handlers.add_later), task(stage, handlers.whoami)

    async with stage.working():
        assert await add.call(40, b=2) == 42
        assert await add.call(1) == 2
        assert await add_later.call(a=20, b=3) == 23
        assert await moved.call(handlers.Point(1, 2), by=5) == handlers.Point(6, 7)
        assert (await whoami.call())[0] != os.getpid()


async def test_a_child_process_gets_the_results_of_parents_as_arguments():
    stage = Stage()
    add, moved = task(stage, handlers.add), task(stage, handlers.moved)
    start = moved.spec(handlers.Point(0, 0), by=1)

    async with stage.working():
        assert await stage.app.chain(add.spec(40), add).call() == 42
        *_, job = await stage.app.enqueue([start, moved.spec(start.output, by=2)])
        assert await job.result(wait=60) == handlers.Point(3, 3)


async def test_children_are_kept_warm_and_used_again():
    stage = Stage()
    whoami = task(stage, handlers.whoami)
    await whoami.enqueue_many([{}] * 20)

    jobs = [job.id for job in (await stage.store.find(_all())).jobs]
    worker = await stage.burst(slots=4, processes=1)

    seen = [whoami.load_result((await stage.job(job)).result) for job in jobs]
    assert len({pid for pid, _ in seen}) == 1
    assert sorted(count for _, count in seen) == list(range(1, 21))
    assert worker.stats.children == 0  # none is left


async def test_a_child_is_replaced_after_so_many_attempts():
    stage = Stage()
    whoami = task(stage, handlers.whoami)
    answers = await whoami.enqueue_many([{}] * 6)

    await stage.burst(slots=1, processes=1, max_jobs_per_child=2)

    seen = [whoami.load_result((await stage.job(answer.id)).result) for answer in answers]
    assert len({pid for pid, _ in seen}) == 3
    assert max(count for _, count in seen) == 2


async def test_a_child_that_has_grown_too_large_is_replaced():
    stage = Stage()
    whoami, grow = task(stage, handlers.whoami), task(stage, handlers.grow)
    limit = 150 * 2**20  # whatever this very process has held

    async with stage.working(slots=1, processes=1, max_memory_per_child=limit):
        first, _ = await whoami.call()
        assert (await whoami.call())[0] == first
        await grow.call(200)
        assert (await whoami.call())[0] != first


async def test_what_it_raises_comes_back_as_text():
    stage = Stage()
    fail = task(stage, handlers.fail, max_attempts=1)

    async with stage.working():
        with pytest.raises(JobFailed, match="LookupError: no such thing"):
            await fail.call("no such thing")
        job = (await stage.store.find(_all())).jobs[0]

    assert job.reason == "max_attempts_exceeded"
    assert job.error is not None
    assert "raise LookupError(text)" in job.error.traceback


async def test_sys_exit_in_a_handler_ends_the_attempt_and_not_the_child():
    stage = Stage()
    whoami, quit_politely = task(stage, handlers.whoami), task(stage, handlers.quit_politely, max_attempts=1)

    async with stage.working(slots=1, processes=1):
        first, _ = await whoami.call()
        job = await stage.until((await quit_politely.enqueue()).id)
        assert (job.state, job.error and job.error.type) == (State.DEAD, "SystemExit")
        assert (await whoami.call())[0] == first


@pytest.mark.parametrize("how", ["", "return "])
async def test_verdicts_may_be_raised_and_returned(how: str):
    stage = Stage()
    verdict = task(stage, handlers.verdict)

    answers = [await verdict.enqueue(how + which) for which in ("retry", "snooze", "bury")]
    await stage.burst(processes=1)
    retried, snoozed, buried = [await stage.job(answer.id) for answer in answers]

    assert (retried.state, retried.failures) == (State.WAITING, 1)
    assert retried.available_at - await stage.store.now() > 5_000
    assert retried.error is not None and (retried.error.type, retried.error.message) == ("Retry", "not yet")
    assert (snoozed.state, snoozed.failures, snoozed.snoozes) == (State.WAITING, 0, 1)
    assert (buried.state, buried.reason) == (State.DEAD, "explicit_fail")
    assert buried.error is not None and buried.error.message == "never"


async def test_a_payload_that_does_not_fit_is_buried_and_so_is_a_result_that_cannot_travel():
    stage = Stage()
    add, unbearable = task(stage, handlers.add), task(stage, handlers.unbearable, max_attempts=4)

    from millrace import Spec

    await stage.store.enqueue([Spec("odd", "add", payload=b'{"a": "text"}')])
    bad = await unbearable.enqueue()
    await stage.burst(processes=1)

    assert ((await stage.job("odd")).state, (await stage.job("odd")).reason) == (State.DEAD, "payload_invalid")
    job = await stage.job(bad.id)
    assert (job.state, job.reason, job.failures) == (State.DEAD, "result_invalid", 1)
    assert job.error is not None and "cannot be encoded" in job.error.message
    assert add.name == "add"


async def test_the_context_in_a_child_knows_what_any_other_does():
    stage = Stage()
    known = task(stage, handlers.known, queue="mail")

    async with stage.working(queues=["mail"]):
        answer = await known.options(id="k1", headers={"trace": "abc"}).enqueue()
        job = await stage.until("k1")

    assert known.load_result(job.result) == {
        "id": "k1",
        "queue": "mail",
        "task": "known",
        "attempt": 1,
        "failures": 0,
        "headers": {"trace": "abc"},
        "fence": [answer.seq, 1],
        "remaining": True,
    }


async def test_progress_and_log_lines_arrive_while_it_runs(tmp_path, caplog):
    stage = Stage()
    talk = task(stage, handlers.talk, keep_log=True)
    caplog.set_level(logging.INFO, "millrace.handler")

    async with stage.working():
        answer = await talk.enqueue(str(tmp_path / "gate"))
        await until(lambda: any("half of 2" in line.getMessage() for line in caplog.records), 60)
        async with asyncio.timeout(60):
            while (await stage.job(answer.id)).progress != b'{"done":1999}':  # the last of two thousand
                await asyncio.sleep(0.02)
        (tmp_path / "gate").touch()
        job = await stage.until(answer.id)

    assert job.state is State.COMPLETED
    [line] = [record for record in caplog.records if "half of 2" in record.getMessage()]
    assert line.getMessage() == f"[{answer.id}] half of 2"
    assert (line.levelname, vars(line)["job"], vars(line)["colour"]) == ("INFO", answer.id, "blue")
    assert "unheard of" not in caplog.text
    [kept] = read_log(job.log)
    assert (kept.attempt, kept.level, kept.text, kept.fields) == (1, "INFO", "half of 2", {"colour": "blue"})


async def test_children_that_it_enqueues_are_carried_by_its_end():
    stage = Stage()
    spread = task(stage, handlers.spread)

    async with stage.working(queues=["default"]):
        assert await spread.call(3) == ["r0", "r1", "r2"]

    carried = [await stage.job(f"r{i}") for i in range(3)]
    assert [(job.task, job.queue, job.payload) for job in carried] == [
        ("receipt", "shop", b'{"number":%d}' % i) for i in range(3)
    ]


async def test_its_output_goes_where_the_workers_goes(capfd):
    stage = Stage()
    loud = task(stage, handlers.loud)

    async with stage.working():
        await loud.call("hello")

    said = capfd.readouterr()
    assert "out hello\n" in said.out
    assert "err hello\n" in said.err


async def test_time_spent_waiting_for_a_child_is_not_held_against_a_job():
    stage = Stage()
    add_later = task(stage, handlers.add_later, timeout=2, max_attempts=1)
    looping = task(stage, handlers.looping_async, timeout=3, max_attempts=1)

    busy = await looping.enqueue("/dev/null")
    async with stage.working(slots=2, processes=1):
        waiting = await add_later.enqueue(1, 2)
        assert (await stage.until(busy.id)).reason == "timeout"
        assert (await stage.until(waiting.id)).state is State.COMPLETED


async def test_neighbours_on_the_loop_and_in_threads_share_the_worker_with_processes():
    stage = Stage()
    whoami = task(stage, handlers.whoami)

    @stage.app.task
    async def on_loop() -> int:
        return os.getpid()

    @stage.app.task
    def in_thread() -> int:
        return os.getpid()

    async with stage.working():
        there, here, also_here = await asyncio.gather(whoami.call(), on_loop.call(), in_thread.call())

    assert here == also_here == os.getpid() != there[0]


def test_what_no_process_could_find_is_refused_when_it_is_registered():
    app = App()

    def nested() -> None: ...

    with pytest.raises(InvalidInput, match="'nested'.*cannot reach .*Move it to the top of a module"):
        app.task(process=True)(nested)
    with pytest.raises(InvalidInput, match="cannot reach"):
        app.task(name="short", process=True)(lambda: None)
    with pytest.raises(InvalidInput, match="must be a function of a module"):
        app.task(name="join", process=True)(",".join)
    assert app.tasks == {}


@pytest.mark.parametrize("option", ["processes", "max_jobs_per_child", "max_memory_per_child"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "1GB"])
def test_limits_of_children_that_make_no_sense_are_refused(option: str, value: object):
    with pytest.raises(InvalidInput, match=f"{option} must be a whole number from 1 up, not {value!r}"):
        App().worker(**{option: value})  # type: ignore[arg-type]


async def test_a_function_that_is_not_where_it_says_is_refused_when_the_worker_starts():
    stage = Stage()

    def elsewhere() -> None: ...

    elsewhere.__qualname__, elsewhere.__module__ = "elsewhere", handlers.__name__
    task(stage, elsewhere)

    with pytest.raises(InvalidInput, match="needs its function to be 'elsewhere' of module 'tests.worker"):
        await stage.burst()


async def test_a_retry_policy_and_history_are_those_of_any_job():
    stage = Stage()
    fail = task(stage, handlers.fail, max_attempts=2, retry=RetryPolicy(initial=1, maximum=1))

    answer = await fail.enqueue("twice")
    async with stage.working():
        await stage.until(answer.id)

    kinds = await stage.kinds(answer.id)
    assert kinds == [Kind.ENQUEUED, Kind.CLAIMED, Kind.RETRIED, Kind.CLAIMED, Kind.BURIED]


def _all() -> Any:
    from millrace import Query

    return Query(limit=1_000)
