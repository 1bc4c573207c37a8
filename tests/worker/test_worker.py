"""A worker takes the jobs it is meant to take, runs each once, and keeps its slots full."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from millrace import LocalEvent, RetryPolicy, Spec, State
from millrace.domain.event import Kind
from tests.worker.stage import Stage, until, virtual


@virtual
async def test_a_job_is_run_once_and_its_result_and_duration_are_kept(stage: Stage):
    @stage.app.task
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0.25)
        return a + b

    job = await add.enqueue(a=1, b=2)
    worker = await stage.burst()

    done = await stage.job(job.id)
    assert (done.state, msgspec.json.decode(done.result or b"")) == (State.COMPLETED, 3)
    history = await stage.store.history(job.id)
    assert [event.kind for event in history] == [Kind.ENQUEUED, Kind.CLAIMED, Kind.COMPLETED]
    assert history[-1].duration == 250
    assert history[-1].worker == worker.id
    assert worker.stats.completed == worker.stats.claimed == 1


@virtual
async def test_a_result_is_written_with_the_serde_of_its_job(stage: Stage):
    @stage.app.task
    async def echo(text: str) -> str:
        return text

    payload = msgspec.msgpack.encode({"text": "hi"})
    await stage.store.enqueue([Spec(id="packed", task="echo", payload=payload, serde="msgpack")])
    await stage.burst()

    assert msgspec.msgpack.decode((await stage.job("packed")).result or b"") == "hi"


@virtual
async def test_a_job_whose_task_nobody_knows_stays_ready(stage: Stage):
    @stage.app.task
    async def known() -> None: ...

    await stage.store.enqueue([Spec(id="stranger", task="unknown")])
    job = await known.enqueue()
    await stage.burst()

    assert (await stage.job(job.id)).state is State.COMPLETED
    assert (await stage.kinds("stranger")) == [Kind.ENQUEUED]


@virtual
async def test_a_job_whose_task_nobody_knows_may_be_buried(stage: Stage):
    @stage.app.task
    async def known() -> None: ...

    await stage.store.enqueue([Spec(id="stranger", task="unknown")])
    await stage.burst(unknown_task="bury")

    dead = await stage.job("stranger")
    assert (dead.state, dead.reason) == (State.DEAD, "unknown_task")


@virtual
async def test_a_worker_takes_only_the_tasks_and_queues_it_was_told_to(stage: Stage):
    @stage.app.task
    async def one() -> None: ...
    @stage.app.task
    async def two() -> None: ...
    @stage.app.task(queue="other")
    async def three() -> None: ...

    jobs = [await task.enqueue() for task in (one, two, three)]
    await stage.burst(queues=["default"], tasks=["one"])

    states = [(await stage.job(job.id)).state for job in jobs]
    assert states == [State.COMPLETED, State.WAITING, State.WAITING]


@virtual
async def test_a_worker_without_queues_serves_those_of_all_tasks(stage: Stage):
    @stage.app.task(queue="mail")
    async def send() -> None: ...
    @stage.app.task(queue="video")
    async def render() -> None: ...

    jobs = [await send.enqueue(), await render.enqueue()]
    await stage.burst()

    assert [(await stage.job(job.id)).state for job in jobs] == [State.COMPLETED] * 2


@virtual
async def test_slots_bound_what_runs_at_once_and_each_is_refilled_as_it_frees(stage: Stage):  # L-01
    running = most = 0

    @stage.app.task
    async def nap(seconds: float) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(seconds)
        running -= 1

    await nap.enqueue(seconds=60)
    await nap.enqueue_many([{"seconds": 1}] * 20)
    begun = asyncio.get_running_loop().time()
    worker = await stage.burst(slots=3)

    assert most == 3
    assert worker.stats.completed == 21
    assert asyncio.get_running_loop().time() - begun == pytest.approx(60, abs=1)  # the short ones went beside it


@virtual
async def test_what_ends_together_is_refilled_by_one_claim_and_settled_by_one_call(stage: Stage):
    @stage.app.task
    async def nap() -> None:
        await asyncio.sleep(1)

    await nap.enqueue_many([{}] * 100)
    await stage.burst(slots=50)

    assert [claim.limit for claim in stage.store.claims[:2]] == [50, 50]
    assert stage.store.batches == [50, 50]


@virtual
async def test_many_workers_share_a_queue_and_no_job_runs_twice(stage: Stage):  # L-02
    runs: Counter[int] = Counter()

    @stage.app.task
    async def once(n: int) -> None:
        runs[n] += 1
        await asyncio.sleep(stage.random.random())

    await once.enqueue_many([{"n": n} for n in range(500)])
    workers = [stage.worker(slots=7, name=f"w{i}", burst=True) for i in range(5)]
    await asyncio.gather(*(worker.run(handle_signals=False) for worker in workers))

    assert runs == Counter(range(500))
    assert all(worker.stats.completed > 50 for worker in workers)


@virtual
async def test_the_next_of_a_group_starts_as_soon_as_the_one_before_it_is_settled(stage: Stage):
    @stage.app.task
    async def step() -> None: ...

    jobs = await step.options(group="g").enqueue_many([{}] * 20)
    begun = asyncio.get_running_loop().time()
    async with stage.working(poll_min=1.0):
        await stage.until(jobs[-1].id)

    assert asyncio.get_running_loop().time() - begun < 1.0


@virtual
async def test_a_store_that_fails_for_a_while_is_asked_again(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    job = await work.enqueue()
    stage.store.failing["claim"] = ConnectionError("refused")
    errors: list[object] = []
    stage.app.on("error", lambda event: errors.append(event.error))
    async with stage.working() as worker:
        await asyncio.sleep(30)
        del stage.store.failing["claim"]
        await stage.until(job.id)

    assert 5 < len(errors) < 100  # neither silent nor a storm
    assert worker.stats.errors == len(errors)


@virtual
async def test_local_listeners_hear_what_the_store_has_confirmed(stage: Stage):  # R-09, L-11
    heard: list[tuple[str, object]] = []

    @stage.app.task(max_attempts=2, retry=RetryPolicy(initial=1, jitter=0))
    async def work(n: int) -> int:
        if n == 0:
            raise ValueError
        return n

    for kind in ("worker_started", "claimed", "completed", "retried", "failed", "worker_stopping", "worker_stopped"):
        stage.app.on(kind, lambda event: heard.append((event.kind, event.result)))
    good, bad = await work.enqueue(n=7), await work.enqueue(n=0)
    async with stage.working():
        await stage.until(good.id)
        await stage.until(bad.id)

    assert heard[0] == ("worker_started", None)
    assert ("completed", 7) in heard
    assert [kind for kind, _ in heard].count("claimed") == 3
    assert [kind for kind, _ in heard].count("retried") == 1
    assert [kind for kind, _ in heard].count("failed") == 1
    assert heard[-2:] == [("worker_stopping", None), ("worker_stopped", None)]


@virtual
async def test_a_worker_that_has_nothing_to_serve_says_so(stage: Stage):
    from millrace import InvalidInput, UnknownTask

    with pytest.raises(InvalidInput, match="needs a queue"):
        await stage.worker().run(handle_signals=False)
    with pytest.raises(UnknownTask, match="nope"):
        await stage.worker(queues=["default"], tasks=["nope"]).run(handle_signals=False)
    with pytest.raises(InvalidInput, match="slot"):
        stage.worker(slots=0)
    with pytest.raises(InvalidInput, match="; remove `tasks`"):
        stage.worker(tasks=["a"], unknown_task="bury")


@virtual
async def test_a_worker_is_run_once(stage: Stage):
    from millrace import InvalidInput

    @stage.app.task
    async def work() -> None: ...

    worker = await stage.burst()
    with pytest.raises(InvalidInput, match="make another"):
        await worker.run(handle_signals=False)


@virtual
async def test_a_full_worker_does_not_claim(stage: Stage):
    @stage.app.task
    async def nap() -> None:
        await asyncio.sleep(100)

    await nap.enqueue_many([{}] * 5)
    async with stage.working(slots=2) as worker:
        await until(lambda: worker.stats.running == 2)
        claims = len(stage.store.claims)
        await asyncio.sleep(50)
        assert len(stage.store.claims) == claims
        await worker.stop(deadline=0)


@virtual
async def test_async_listeners_have_ended_when_the_worker_has(stage: Stage):
    heard: list[str] = []

    async def slow(event: LocalEvent) -> None:
        await asyncio.sleep(0.5)
        heard.append(event.kind)

    stage.app.on("completed", slow)
    stage.app.on("worker_stopped", slow)
    await stage.app.task(nothing).enqueue()
    await stage.burst()

    assert heard == ["completed", "worker_stopped"]


async def nothing() -> None: ...
