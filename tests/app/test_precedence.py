"""Lease, timeout, retry, max_attempts and keep_result: the more specific wins. Job, task, queue, worker, app, and what
is built in."""

from __future__ import annotations

import asyncio
from itertools import combinations
from typing import Any

import msgspec
import pytest

from millrace import App, InvalidInput, RetryPolicy, Spec, State
from millrace.app.telemetry.log_context import current_job
from millrace.domain.job import SECOND
from millrace.domain.request import Extension, Receipt
from millrace.testing.builders import a_claim
from tests.worker.stage import Stage, virtual

LEVELS = ("job", "task", "queue", "worker", "app")
SAID: dict[str, dict[str, Any]] = {
    "lease": {"job": 11, "task": 12, "worker": 13, "app": 14, "queue": 15},
    "timeout": {"job": 21, "task": None, "worker": 23, "app": 24, "queue": 25},
    "retry": {level: [31 + n] for n, level in enumerate(LEVELS)},
    "max_attempts": {"job": None, "task": 2, "worker": 3, "app": 5, "queue": 6},
    "keep_result": {"job": 0, "task": 41, "worker": 42, "app": None, "queue": 43},
}
BUILT_IN = Spec("id", "task")


def as_carried(name: str, value: Any) -> Any:
    if name == "retry":
        return RetryPolicy(delays=(value[0] * SECOND,))
    return value * SECOND if name in ("lease", "timeout", "keep_result") and value is not None else value


def stage_with(stage: Stage, **defaults: Any) -> Stage:
    stage.app = App(stage.store, **defaults)
    return stage


async def seen_by_a_handler(stage: Stage, given: dict[str, dict[str, Any]]) -> Spec:
    """The policy under which a job runs, where each level says what is given for it."""
    seen: list[Spec] = []
    stage_with(stage, **given.get("app", {}))

    stage.app.queue("default", **given.get("queue", {}))

    @stage.app.task(**given.get("task", {}))
    async def work() -> None:
        job = current_job.get()
        assert job is not None
        seen.append(job.spec)

    await work.options(**given.get("job", {})).enqueue()
    await stage.burst(**given.get("worker", {}))
    [spec] = seen
    return spec


@pytest.mark.parametrize("name", SAID)
def test_of_all_that_say_it_the_most_specific_decides(name: str):
    for size in range(len(LEVELS) + 1):
        for levels in combinations(LEVELS, size):

            @virtual
            async def story(stage: Stage, levels: tuple[str, ...] = levels):
                spec = await seen_by_a_handler(stage, {level: {name: SAID[name][level]} for level in levels})
                wanted = as_carried(name, SAID[name][levels[0]]) if levels else getattr(BUILT_IN, name)
                assert getattr(spec, name) == wanted, levels

            story()


@pytest.mark.parametrize("level", ["job", "task"])
def test_what_is_said_wins_also_where_it_is_what_would_hold_anyway(level: str):
    said = {"lease": 30, "timeout": 300, "retry": BUILT_IN.retry, "max_attempts": 4, "keep_result": 3600}
    others = {"lease": 5, "timeout": 6, "retry": [7], "max_attempts": 8, "keep_result": 9}

    @virtual
    async def story(stage: Stage):
        spec = await seen_by_a_handler(stage, {level: said, "worker": others, "app": others})
        assert [getattr(spec, name) for name in SAID] == [getattr(BUILT_IN, name) for name in SAID]

    story()


@virtual
async def test_a_job_enqueued_by_name_gets_what_its_task_says_where_it_runs(stage: Stage):
    seen: list[Spec] = []

    @stage.app.task(timeout=7, max_attempts=9)
    async def work() -> None:
        job = current_job.get()
        assert job is not None
        seen.append(job.spec)

    await stage.store.enqueue(
        [Spec("plain", "work", payload=b"{}"), Spec("own", "work", payload=b"{}", max_attempts=2)]
    )
    await stage.burst(timeout=8, lease=5)

    assert [(spec.id, spec.timeout, spec.max_attempts, spec.lease) for spec in seen] == [
        ("plain", 7_000, 9, 5_000),
        ("own", 7_000, 2, 5_000),
    ]


@virtual
async def test_retry_delays_of_a_job_win_over_the_function_of_its_task(stage: Stage):
    @stage.app.task(retry=lambda failures: 100.0)
    async def fail() -> None:
        raise ValueError("no")

    by_task, by_job = await fail.enqueue(), await fail.options(retry=[5]).enqueue()
    await stage.burst(retry=[1])

    now = await stage.store.now()
    waits = [((await stage.job(job.id)).available_at - now) / 1000 for job in (by_task, by_job)]
    assert waits[0] > 50
    assert waits[1] <= 5


@pytest.mark.parametrize(("task", "worker"), [(60, 3), (3, 60)])
def test_a_worker_extends_the_lease_of_a_job_by_what_its_task_says(task: int, worker: int):
    @virtual
    async def story(stage: Stage):
        asked: list[int | None] = []
        extend = stage.store.extend

        async def watched(extensions: list[Extension]) -> list[Receipt]:
            asked.extend(extension.by for extension in extensions)
            return await extend(extensions)

        stage.store.extend = watched  # type: ignore[method-assign, assignment]

        @stage.app.task(lease=task)
        async def work() -> None:
            await asyncio.sleep(100)

        job = await work.enqueue()
        await stage.burst(lease=worker)

        done = await stage.job(job.id)
        assert (done.state, done.failures, done.attempt) == (State.COMPLETED, 0, 1)
        assert set(asked) == {task * SECOND}

    story()


@virtual
async def test_a_lost_job_is_judged_by_the_defaults_of_who_takes_it_over(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    job = await work.enqueue()
    await stage.store.claim(a_claim(lease=1, worker="gone"))
    async with stage.worker(max_attempts=1, reap_interval=1.0):
        dead = await stage.until(job.id)
    assert (dead.state, dead.failures) == (State.DEAD, 1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"lease": 0}, "lease"),
        ({"timeout": "soon"}, "timeout"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"retry": lambda failures: 1.0}, "only a task can have a function"),
    ],
)
def test_defaults_that_make_no_sense_are_refused_at_once(wrong: dict[str, Any], says: str):
    with pytest.raises(InvalidInput, match=says):
        App("memory://", **wrong)
    app = App("memory://")
    app.task(name="work")(lambda: None)
    with pytest.raises(InvalidInput, match=says):
        app.worker(**wrong)


@virtual
async def test_a_job_that_is_enqueued_into_another_queue_has_the_defaults_of_that_queue(stage: Stage):
    app = App(stage.store, timeout=9)
    app.queue("mail", timeout=30, max_attempts=8)
    app.queue("slow", timeout="1h")

    @app.task(queue="mail", retry=[1])
    async def work() -> None: ...

    spec = work.spec()
    assert (spec.timeout, spec.max_attempts, work.options.timeout) == (30 * SECOND, 8, 30 * SECOND)
    slow = work.options(queue="slow")
    assert (slow.spec().timeout, slow.spec().max_attempts, slow.options.timeout) == (3600 * SECOND, 4, 3600 * SECOND)
    assert slow.spec().retry == spec.retry
    assert work.options(queue="other").spec().timeout == 9 * SECOND
    assert work.options(timeout=5).options(queue="slow").spec().timeout == 5 * SECOND
    again = slow.options(queue="mail").spec()
    assert again == msgspec.structs.replace(spec, id=again.id, token=again.token)


@virtual
async def test_a_job_enqueued_by_name_gets_the_defaults_of_its_queue_where_it_runs(stage: Stage):
    seen: list[Spec] = []
    stage.app = App(stage.store)
    stage.app.queue("mail", timeout=30)

    @stage.app.task(queue="mail", max_attempts=9)
    async def work() -> None:
        job = current_job.get()
        assert job is not None
        seen.append(job.spec)

    await stage.store.enqueue([Spec("a", "work", "mail", payload=b"{}"), Spec("b", "work", "other", payload=b"{}")])
    await stage.burst(queues=["mail", "other"], timeout=7)
    assert [(spec.timeout, spec.max_attempts) for spec in seen] == [(30 * SECOND, 9), (7 * SECOND, 9)]


def test_defaults_of_a_queue_are_declared_once_and_before_its_tasks():
    app = App("memory://")
    app.queue("mail", timeout=30)

    @app.task(queue="slow")
    async def work() -> None: ...

    with pytest.raises(InvalidInput, match="'mail' has defaults already"):
        app.queue("mail", lease=5)
    with pytest.raises(InvalidInput, match="'slow' already has tasks, .*: work. Declare the defaults"):
        app.queue("slow", timeout=5)
    with pytest.raises(InvalidInput, match="queue 'fast': there is no option 'timeuot'. Did you mean 'timeout'?"):
        app.queue("fast", timeuot=5)  # type: ignore[call-arg]
    assert app.queue("slow").name == "slow"


@pytest.mark.parametrize(("keep", "kept"), [(0, None), (30, 30 * SECOND), (None, None)])
def test_a_worker_may_decide_how_long_results_are_kept(keep: int | None, kept: int | None):
    @virtual
    async def story(stage: Stage):
        @stage.app.task
        async def work() -> int:
            return 7

        @stage.app.task(keep_result="2h")
        async def own() -> int:
            return 8

        job, other = await work.enqueue(), await own.enqueue()
        await stage.burst(keep_result=keep)
        done, theirs = await stage.job(job.id), await stage.job(other.id)
        assert done.result == (None if keep == 0 else b"7")
        assert done.result_expired is (keep == 0)
        assert done.finished_at is not None and theirs.finished_at is not None
        assert done.result_until == (None if kept is None else done.finished_at + kept)
        assert theirs.result_until == theirs.finished_at + 7200 * SECOND

    story()
