"""What a handler may know and say about its own run."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from millrace import Context, InvalidInput, PayloadInvalid, RetryPolicy, Spec, State
from millrace.app.handler.verdict import Aborted
from millrace.domain.request import Reclaim
from tests.worker.stage import Stage, until, virtual


@virtual
async def test_a_handler_knows_its_job_its_attempt_and_its_fence(stage: Stage):
    seen: list[tuple[object, ...]] = []

    @stage.app.task(queue="mail", max_attempts=2, retry=RetryPolicy(initial=0, jitter=0))
    async def work(ctx: Context) -> None:
        seen.append((ctx.id, ctx.queue, ctx.task, ctx.attempt, ctx.is_retry, ctx.failures, ctx.generation))
        seen.append(ctx.fence)
        assert ctx.fence == (ctx.seq, ctx.attempt)
        if not ctx.is_retry:
            raise ValueError

    job = await work.enqueue()
    await stage.burst()

    assert seen[0] == (job.id, "mail", "work", 1, False, 0, 1)
    assert seen[2] == (job.id, "mail", "work", 2, True, 1, 1)
    assert seen[3] > seen[1]  # the fence grows with every claim


@virtual
async def test_a_handler_knows_how_much_time_it_has_left(stage: Stage):
    left: list[float | None] = []

    @stage.app.task(timeout=10)
    async def bounded(ctx: Context) -> None:
        await asyncio.sleep(4)
        left.append(ctx.remaining)

    @stage.app.task(timeout=None)
    async def unbounded(ctx: Context) -> None:
        left.append(ctx.remaining)

    await bounded.enqueue()
    await unbounded.enqueue()
    await stage.burst()

    assert left == [None, pytest.approx(6)]


@virtual
async def test_a_task_that_a_handler_started_can_wait_for_the_abort(stage: Stage):
    told: list[str] = []

    @stage.app.task(timeout=5, max_attempts=1)
    async def work(ctx: Context) -> None:
        async def helper() -> None:
            await ctx.aborted.wait()
            told.append("aborted")

        beside = asyncio.create_task(helper())
        try:
            await asyncio.sleep(100)
        finally:
            await beside

    job = await work.enqueue()
    await stage.burst()

    assert told == ["aborted"]
    assert (await stage.job(job.id)).reason == "timeout"


async def test_a_thread_learns_of_its_abort_by_looking():
    stage = Stage()
    ended = threading.Event()

    @stage.app.task(timeout=0.1, max_attempts=1)
    def work(ctx: Context) -> None:
        try:
            while True:
                try:
                    ctx.check()
                    ctx.cancelled.wait(0.01)
                except Exception:
                    raise AssertionError("an abort is no error that a handler's own `except` takes") from None
        except Aborted:
            ended.set()
            raise

    job = await work.enqueue()
    await stage.burst()

    assert ended.is_set()
    assert (await stage.job(job.id)).reason == "timeout"


@virtual
async def test_progress_travels_with_the_next_heartbeat(stage: Stage):
    @stage.app.task(lease=3)
    async def work(ctx: Context) -> None:
        ctx.progress({"done": 1})
        ctx.progress({"done": 2})
        await asyncio.sleep(100)

    job = await work.enqueue()
    async with stage.working() as worker:
        await asyncio.sleep(2)
        assert (await stage.job(job.id)).progress == b'{"done":2}'
        await worker.stop(deadline=0)


@virtual
async def test_progress_that_is_no_json_is_refused_where_it_is_said(stage: Stage):
    refused: list[str] = []

    @stage.app.task
    async def work(ctx: Context) -> None:
        try:
            ctx.progress(object())
        except PayloadInvalid as error:
            refused.append(str(error))

    await work.enqueue()
    await stage.burst()

    assert "JSON" in refused[0]


@virtual
async def test_children_are_enqueued_in_the_step_that_completes_their_parent(stage: Stage):
    children: list[str] = []

    @stage.app.task
    async def child(n: int) -> int:
        return n

    @stage.app.task
    async def parent(ctx: Context) -> None:
        children.append(ctx.enqueue(child, n=1))
        children.append(ctx.enqueue(child.options(delay=30), n=2))
        children.append(ctx.carry(Spec(id="given", task="child", payload=b'{"n":3}')))
        [nothing_yet] = await stage.store.get([children[0]])
        assert nothing_yet is None

    await parent.enqueue()
    await stage.burst()

    states = [(await stage.job(job_id)).state for job_id in children]
    assert states == [State.COMPLETED, State.WAITING, State.COMPLETED]


@virtual
async def test_a_run_that_fails_enqueues_no_children_and_its_next_attempt_does(stage: Stage):
    @stage.app.task
    async def child() -> None: ...

    @stage.app.task(retry=RetryPolicy(initial=0, jitter=0))
    async def parent(ctx: Context) -> None:
        ctx.carry(Spec(id=f"child-of-attempt-{ctx.attempt}", task="child"))
        if ctx.attempt == 1:
            raise ValueError

    await parent.enqueue()
    await stage.burst()

    found = await stage.store.get(["child-of-attempt-1", "child-of-attempt-2"])
    assert [job is not None for job in found] == [False, True]


@virtual
async def test_a_run_that_lost_its_lease_enqueues_no_children(stage: Stage):  # the fence covers what a run carries
    @stage.app.task
    async def child() -> None: ...

    @stage.app.task(lease=1, max_attempts=1)
    async def parent(ctx: Context) -> None:
        ctx.carry(Spec(id="orphan", task="child"))
        stage.store.failing["extend"] = ConnectionError("cut off")
        await _take_over(stage)

    await parent.enqueue()
    worker = await stage.burst(reap_interval=1_000)

    assert worker.stats.lost == 1
    assert await stage.store.get(["orphan"]) == [None]


async def _take_over(stage: Stage) -> None:
    """The lease has expired without its holder's knowing, and another worker finds it."""
    tables = stage.store._tables
    for record in [tables.by_seq(seq) for seq in tables._leases.smallest(10)]:
        assert record is not None
        record.lease_until = 0
        tables.update(record)
    assert await stage.store.reclaim(Reclaim("rival"))


@virtual
async def test_a_child_that_no_store_takes_is_refused_where_it_is_made(stage: Stage):
    @stage.app.task(max_attempts=1)
    async def parent(ctx: Context) -> None:
        ctx.carry(Spec(id="", task="child"))

    job = await parent.enqueue()
    await stage.burst()

    dead = await stage.job(job.id)
    assert dead.error is not None and dead.error.type == InvalidInput.__name__


@virtual
async def test_log_lines_say_which_job_they_are_about(stage: Stage):
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger = logging.getLogger("millrace.handler")
    keep = Keep()
    logger.addHandler(keep)

    @stage.app.task
    async def work(ctx: Context) -> None:
        ctx.log.warning("%d rows", 3, extra={"rows": 3})

    job = await work.enqueue()
    try:
        await stage.burst()
    finally:
        logger.removeHandler(keep)

    [record] = records
    assert record.getMessage() == f"[{job.id}] 3 rows"
    assert (record.job, record.attempt, record.rows) == (job.id, 1, 3)  # type: ignore[attr-defined]


@virtual
async def test_the_abort_signal_is_seen_by_whoever_looks_after_it_was_given(stage: Stage):
    contexts: list[Context] = []

    @stage.app.task(timeout=1, max_attempts=1)
    async def work(ctx: Context) -> None:
        contexts.append(ctx)
        await asyncio.sleep(100)

    await work.enqueue()
    async with stage.working():
        await until(lambda: contexts and contexts[0]._why is not None)

        assert contexts[0].cancelled.is_set()
        assert contexts[0].aborted.is_set()
        with pytest.raises(Aborted, match="timeout"):
            contexts[0].check()
