"""Behaviour that requirements ask for and that no other file is about."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import millrace
from millrace import App, Bury, Context, QueueError, RetryPolicy, State
from millrace.domain.change import Change
from millrace.domain.event import Kind
from millrace.domain.hashing import fnv1a
from millrace.domain.job import Spec
from millrace.domain.request import Claim, Reclaim
from millrace.store.memory import MemoryStore
from tests.worker.stage import Stage, until, virtual


@virtual
async def test_that_a_job_runs_and_how_it_ended_are_each_one_step(stage: Stage):
    """W-18, R-18: the handler finds its own record running, and no look ever finds a part of an end."""
    seen: list[tuple[State, int, bool]] = []

    @stage.app.task
    async def work(ctx: Context) -> str:
        job = await stage.job(ctx.id)
        seen.append((job.state, job.attempt, job.lease_id is not None))
        return "done"

    job = await work.enqueue()
    await stage.burst()

    assert seen == [(State.RUNNING, 1, True)]
    ended = await stage.job(job.id)
    assert (ended.state, ended.lease_id, ended.result) == (State.COMPLETED, None, b'"done"')
    assert [(event.kind, event.state) for event in await stage.store.history(job.id)] == [
        (Kind.ENQUEUED, State.WAITING),
        (Kind.CLAIMED, State.RUNNING),
        (Kind.COMPLETED, State.COMPLETED),
    ]


async def test_the_facts_of_a_lane_outlive_the_program(tmp_path: Path):
    """W-09: what waits, what holds the lane, its attempt, its counters and its pause."""
    url = f"sqlite:///{tmp_path}/jobs.db?durability=relaxed"

    def made() -> tuple[App, Any]:
        app = App(url)

        @app.pool("orders", lanes=2, max_attempts=2, retry=RetryPolicy(initial=3_600, jitter=0))
        async def handle(name: str) -> None:
            if name == "bad":
                raise RuntimeError(name)

        return app, handle

    app, handle = made()
    async with app:
        for name, key in (("good", "a"), ("bad", "a"), ("later", "a"), ("other", "b")):
            await handle.options(partition=key).enqueue(name)
        await app.worker(burst=True).run(handle_signals=False)
        await handle.pool.pause(lane=fnv1a("b") % 2)
        before = await handle.pool.status()

    app, handle = made()
    async with app:
        assert await handle.pool.status() == before
    first, second = (before.lanes[fnv1a(key) % 2] for key in "ab")
    assert fnv1a("a") % 2 != fnv1a("b") % 2
    assert (first.pending, first.processed, second.processed, second.state) == (2, 1, 1, "paused")


def test_queues_in_memory_are_spread_over_a_power_of_two_of_shards():
    """E-02, E-03: by FNV-1a of the queue's name, masked; published values of that hash are met."""
    store = MemoryStore()
    shards = store._tables._shards
    names = [f"queue-{n}" for n in range(200)]
    asyncio.run(filled(store, names))

    assert len(shards) & (len(shards) - 1) == 0 and 1 <= len(shards) <= 64
    for place, shard in enumerate(shards):
        assert {fnv1a(name) & (len(shards) - 1) for name in shard} <= {place}
    assert sorted(name for shard in shards for name in shard) == sorted(names)
    published = {"": 0x811C9DC5, "a": 0xE40C292C, "b": 0xE70C2DE5, "foobar": 0xBF9CF968}
    assert {text: fnv1a(text) for text in published} == published


async def filled(store: MemoryStore, names: list[str]) -> None:
    await store.enqueue([Spec(f"in {name}", "work", name, b"{}") for name in names])


@virtual
async def test_a_worker_fills_its_slots_first_then_takes_back_lost_jobs_then_sleeps(stage: Stage):
    """L-03, BL-06."""

    @stage.app.task
    async def work() -> None: ...

    await work.enqueue_many([{}] * 3)
    async with stage.working(slots=4) as worker:
        await until(lambda: worker.stats.completed == 3)
        await until(lambda: "reclaim" in stage.store.calls)

    calls = stage.store.calls
    assert calls.index("claim") < calls.index("settle") < len(calls)
    assert calls.index("claim") < calls.index("reclaim")
    assert stage.store.claims[0].limit == 4


@virtual
async def test_a_stop_takes_nothing_new_waits_and_is_told(stage: Stage):
    """L-04."""
    heard: list[str] = []
    for kind in ("completed", "worker_stopping", "worker_stopped"):
        stage.app.on(kind, lambda event: heard.append(event.kind))

    @stage.app.task
    async def work() -> None:
        await asyncio.sleep(5)

    first, second = await work.enqueue(), await work.enqueue()
    async with stage.working(slots=1) as worker:
        await until(lambda: worker.stats.running == 1)
        await worker.stop()

    assert heard == ["worker_stopping", "completed", "worker_stopped"]
    assert [(await stage.job(one.id)).state for one in (first, second)] == [State.COMPLETED, State.WAITING]


@virtual
async def test_each_worker_is_told_apart_and_an_abort_reaches_one_job_only(stage: Stage):
    """L-05, R-13: drawn names differ, a given one is kept, and jobs carry it; of two runs only the cancelled ends."""
    aborted: list[str] = []

    @stage.app.task
    async def work(ctx: Context) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            aborted.append(ctx.id)
            raise

    one, other = await work.enqueue(), await work.enqueue()
    assert len({stage.worker().id for _ in range(50)}) == 50
    async with stage.working(slots=2, name="pod-7") as worker:
        await until(lambda: worker.stats.running == 2)
        assert {(await stage.job(job.id)).worker for job in (one, other)} == {"pod-7"}
        assert [record.info.id for record in await stage.store.workers()] == ["pod-7"]
        assert await stage.app.jobs.cancel(one, running="request") == "requested"
        await stage.until(one.id, "cancelled")
        await stage.until(other.id, "completed")

    assert aborted == [one.id]


async def test_one_program_may_only_produce_and_another_only_consume(tmp_path: Path):
    """R-01: the producer knows no handler, and nothing of it is running when the job is."""
    (tmp_path / "tasks.py").write_text(
        "from millrace import App\n"
        "app = App('sqlite:///jobs.db')\n"
        "@app.task\n"
        "async def work(n: int) -> int:\n"
        "    return n + 1\n"
    )
    produce = "import asyncio\nfrom millrace import App\nfrom millrace.domain.job import Spec\n"
    produce += "async def main():\n    async with App('sqlite:///jobs.db') as app:\n"
    produce += "        await app.enqueue([Spec('j', 'work', 'default', b'{\"n\": 1}')])\nasyncio.run(main())\n"
    consume = "import asyncio\nfrom tasks import app\nasyncio.run(app.worker(burst=True).run())\n"
    for program in (produce, consume):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=580
        )
        assert done.returncode == 0, done.stderr

    async with App(f"sqlite:///{tmp_path}/jobs.db") as app:
        assert await app.jobs.result("j") == 2


@virtual
async def test_fire_and_forget_request_and_response_and_once_per_id_by_one_task(stage: Stage):
    """R-02, R-08: handlers are coroutines or plain functions; start and stop are explicit."""
    ran: list[str] = []

    @stage.app.task(name="coroutine")
    async def coroutine(name: str) -> str:
        ran.append(name)
        return name.upper()

    job = await coroutine.options(id="once").enqueue("a")
    assert (await coroutine.options(id="once").enqueue("a")).is_duplicate
    await asyncio.sleep(5)
    assert ran == []  # nothing runs before a worker was started
    async with stage.working():
        assert await coroutine.call("b") == "B"
        await stage.until(job.id)
    assert (await coroutine.options(id="once").enqueue("a")).enqueued.status == "completed"
    assert await coroutine.options(id="once").call("a") == "A"
    await coroutine.enqueue("c")
    await asyncio.sleep(5)
    assert sorted(ran) == ["a", "b"]  # nor after it was stopped


async def test_a_plain_function_is_a_handler_and_sees_the_abort():
    """R-08: what the design calls a callback is a function in a thread."""
    app = App("memory://")
    saw: list[bool] = []

    @app.task(timeout=0.2, max_attempts=1)
    def work(ctx: Context) -> None:
        saw.append(ctx.cancelled.wait(60))

    async with app, app.worker():
        job = await work.enqueue()
        async with asyncio.timeout(60):
            while (found := await app.jobs.get(job)) is None or found.state != "dead":
                await asyncio.sleep(0.02)
            while not saw:
                await asyncio.sleep(0.02)
    assert saw == [True] and found.reason == "timeout"


def test_every_kind_of_error_has_a_class_of_its_own():
    """R-10: importable by name, all under one root, none the child of another by accident."""
    wanted: tuple[str, ...]
    wanted = ("WaitTimeout", "JobFailed", "JobNotFound", "JobCancelled", "StoreError", "PayloadInvalid", "QueueFull")
    wanted += ("LeaseLost", "ResultExpired", "DuplicateKey", "CursorExpired", "UnknownTask", "MissingDriver")
    found = [getattr(millrace, name) for name in wanted]

    assert all(
        issubclass(one, QueueError) and name in millrace.__all__ for name, one in zip(wanted, found, strict=True)
    )
    assert [(a, b) for a in found for b in found if a is not b and issubclass(a, b)] == []


@virtual
async def test_an_error_that_a_job_ended_with_comes_to_whoever_asks(stage: Stage):
    """R-10: by class, with what happened."""

    @stage.app.task(max_attempts=1)
    async def work(how: str) -> None:
        raise Bury("never") if how == "bury" else KeyError("lost")

    async with stage.working():
        with pytest.raises(millrace.JobFailed) as failed:
            await work.call("raise")
        with pytest.raises(millrace.JobFailed) as buried:
            await work.call("bury")
    with pytest.raises(millrace.WaitTimeout):
        await work.options(wait=1).call("nobody runs it")
    with pytest.raises(millrace.JobNotFound):
        await stage.app.jobs.result("nowhere")
    assert failed.value.error is not None and failed.value.error.type == "KeyError"
    assert (failed.value.reason, buried.value.reason) == ("max_attempts_exceeded", "explicit_fail")


async def test_the_states_that_people_ask_for_are_told_apart():
    """R-14: queued, processing, failing, completed and failed, by their words here and by those of other queues."""
    app = App(store := MemoryStore())
    async with app:
        await store.enqueue(
            [Spec(name, "work", "q", b"{}") for name in ("done", "dead", "failing", "running", "queued")]
        )
        jobs = await store.claim(Claim(("q",), "w", 4))
        changes = (Change.completed(), Change.bury(None, "explicit_fail"), Change.retry(None, delay=60_000))
        await store.settle([(job.lease, change) for job, change in zip(jobs, changes, strict=False)])
        words = {
            "queued": "queued",
            "processing": "running",
            "failing": "failing",
            "completed": "done",
            "failed": "dead",
        }

        found = {word: [job.id async for job in app.jobs.find(state=word)] for word in words}

    assert found == {word: [name] for word, name in words.items()}


async def test_every_step_of_a_job_is_an_event_of_its_kind():
    """R-19: enqueued, claimed, retried, completed, buried, cancelled, reclaimed, replayed, one for each transition."""
    store = MemoryStore()
    await store.enqueue([Spec("a", "work", "q", b"{}"), Spec("b", "work", "q", b"{}"), Spec("c", "work", "q", b"{}")])
    a, b = await store.claim(Claim(("q",), "w", 2))
    await store.settle([(a.lease, Change.retry(None, delay=0)), (b.lease, Change.bury(None, "explicit_fail"))])
    await store.cancel(["c"])
    await store.replay(["b"])
    [again] = await store.claim(Claim(("q",), "w", 1, lease=1))
    while not (lost := await store.reclaim(Reclaim("other", 1))):
        await asyncio.sleep(0.002)
    await store.settle([(lost[0].lease, Change.completed())])

    kinds = {job_id: [str(event.kind) for event in await store.history(job_id)] for job_id in "abc"}
    assert again.id == "a"
    assert kinds["a"] == ["enqueued", "claimed", "retried", "claimed", "reclaimed", "completed"]
    assert kinds["b"] == ["enqueued", "claimed", "buried", "replayed"]
    assert kinds["c"] == ["enqueued", "cancelled"]


@virtual
async def test_an_id_may_be_derived_from_the_payload(stage: Stage):
    """R-21: the same content is the same job, whoever enqueues it."""

    @stage.app.task
    async def work(order: dict[str, int]) -> int:
        return order["n"]

    def id_of(order: dict[str, int]) -> str:
        return sha256(json.dumps(order, sort_keys=True).encode()).hexdigest()[:16]

    orders = [{"n": 1, "of": 2}, {"of": 2, "n": 1}, {"n": 2, "of": 2}]
    answers = [await work.options(id=id_of(order)).enqueue(order) for order in orders]

    assert [answer.is_duplicate for answer in answers] == [False, True, False]
    assert len({answer.id for answer in answers}) == 2


async def test_a_directory_keeps_jobs_for_the_next_program_and_tells_another_of_new_ones(tmp_path: Path):
    """R-25: whole files under names of their own, and a sleeper in another store is woken by a file that appears."""
    url = f"file://{tmp_path}/store"
    async with App(url) as app:
        await app.enqueue([Spec("kept", "work", "q", b"{}")])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if path.name.endswith(".tmp")] == []
    assert any("kept" in path.name for path in files)

    async with App(url) as one, App(url) as other:
        reader, writer = await one.connected(), await other.connected()
        [kept] = await reader.claim(Claim(("q",), "w", 5))
        assert kept.id == "kept"
        asleep = asyncio.create_task(reader.wait(["q"], None, 60))
        await asyncio.sleep(0.05)
        await writer.enqueue([Spec("new", "work", "q", b"{}")])
        async with asyncio.timeout(60):
            await asleep
        assert [job.id for job in await reader.claim(Claim(("q",), "w", 5))] == ["new"]
