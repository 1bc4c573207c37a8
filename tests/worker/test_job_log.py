"""The log of a job: `ctx.log` in a task with `keep_log=True`, stored in batches with the job."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from millrace import App, Context, LogLine, RetryPolicy, StoreError
from millrace.app.handler.job_log import FIRST_LINES, MOST_BYTES, MOST_LINES, JobLog, make_line, read_log
from millrace.domain.job import Job
from millrace.store.memory import MemoryStore
from millrace.testing.builders import a_spec
from millrace.testing.faults import FaultyStore
from tests.worker.stage import Stage, virtual

AT_ONCE = RetryPolicy(initial=0, jitter=0)


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


@virtual
async def test_the_lines_of_a_run_are_stored_with_the_job(stage: Stage) -> None:
    @stage.app.task(keep_log=True)
    async def resize(ctx: Context, width: int) -> None:
        ctx.log("resizing", width=width)
        await asyncio.sleep(2)
        ctx.log.warning("slow: %d ms", 2_000, extra={"step": "scale"})
        ctx.log.debug("not kept")

    job = await resize.enqueue(200)
    await stage.burst()

    first, second = await job.log()
    assert (first.attempt, first.level, first.text, first.fields) == (1, "INFO", "resizing", {"width": 200})
    assert (second.level, second.text, second.fields) == ("WARNING", "slow: 2000 ms", {"step": "scale"})
    record = (await job.status()).record
    assert record.started_at is not None
    assert [line.instant - record.started_at for line in (first, second)] == [0, 2_000]
    assert second.at.tzinfo is not None and (await job.status()).log == [first, second]


@virtual
async def test_a_task_without_the_option_keeps_no_log(stage: Stage) -> None:
    @stage.app.task
    async def work(ctx: Context) -> None:
        ctx.log("only logged")

    job = await work.enqueue()
    await stage.burst()
    assert await job.log() == [] and (await job.status()).record.log is None


@virtual
async def test_every_attempt_adds_its_lines_also_when_it_fails(stage: Stage) -> None:
    @stage.app.task(keep_log=True, max_attempts=3, retry=AT_ONCE)
    async def work(ctx: Context) -> None:
        ctx.log(f"try {ctx.attempt}")
        if ctx.attempt < 3:
            raise ValueError("not yet")

    job = await work.enqueue()
    await stage.burst()
    assert [(line.attempt, line.text) for line in await job.log()] == [(1, "try 1"), (2, "try 2"), (3, "try 3")]


@virtual
async def test_a_traceback_is_a_line(stage: Stage) -> None:
    @stage.app.task(keep_log=True, max_attempts=1)
    async def work(ctx: Context) -> None:
        try:
            raise ValueError("inside")
        except ValueError:
            ctx.log.exception("it failed")
        raise RuntimeError

    job = await work.enqueue()
    await stage.burst()
    [line] = await job.log()
    assert line.level == "ERROR" and line.text.startswith("it failed\nTraceback") and "ValueError: inside" in line.text


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@virtual
async def test_a_log_call_that_cannot_be_formatted_does_not_fail_the_job(stage: Stage) -> None:
    wrong = "no %s %s"

    @stage.app.task(keep_log=True, max_attempts=1)
    async def work(ctx: Context) -> str:
        cyclic: dict[str, Any] = {}
        cyclic["self"] = cyclic
        ctx.log.info(wrong, "x")
        ctx.log.info("no %d", Unspeakable())
        ctx.log.info(Unspeakable())
        ctx.log(Unspeakable())
        ctx.log("fields", broken=Unspeakable(), whole=1)
        ctx.log("fields", cyclic=cyclic)
        try:
            raise ValueError("inside")
        except ValueError:
            ctx.log.warning("caught", exc_info=1)  # type: ignore[arg-type]  # logging takes it
        return "done"

    job = await work.enqueue()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("millrace.handler"), "propagate", False)  # pytest raises what logging reports
        await stage.burst()

    assert await job.result() == "done"
    lines = await job.log()
    no_text = "<Unspeakable: its text is unavailable: RuntimeError>"
    assert [line.text for line in lines[:4]] == [
        "no %s %s (its 1 arguments cannot be inserted: not enough arguments for format string)",
        "no %d (its 1 arguments cannot be inserted: %d format: a real number is required, not Unspeakable)",
        f"{no_text} (its 0 arguments cannot be inserted: no text)",
        "%s (its 1 arguments cannot be inserted: no text)",
    ]
    assert lines[4].fields == {"broken": no_text, "whole": "1"}
    assert lines[5].fields == {"cyclic": "{'self': {...}}"}
    assert lines[6].text.startswith("caught\nTraceback") and lines[6].text.endswith("ValueError: inside")


@virtual
async def test_a_thousand_lines_cost_one_write_per_second(stage: Stage) -> None:
    counted = FaultyStore(stage.store)
    app = App(counted)

    @app.task(keep_log=True)
    async def chatty(ctx: Context) -> None:
        for number in range(1_000):
            ctx.log(f"line {number}")
            await asyncio.sleep(0.01)

    stage.app = app
    job = await chatty.enqueue()
    async with stage.working():
        while (await job.status()).state != "completed":
            await asyncio.sleep(0.1)
    assert 8 <= counted.calls["extend"] <= 14
    assert counted.calls["settle"] == 1
    lines = await job.log()
    assert len(lines) == MOST_LINES and lines[-1].text == "line 999"


@virtual
async def test_lines_of_a_running_job_can_be_read_and_survive_its_worker(stage: Stage) -> None:
    @stage.app.task(keep_log=True, max_attempts=None, lease="10s", retry=AT_ONCE)
    async def work(ctx: Context) -> None:
        ctx.log(f"begins {ctx.attempt}")
        if ctx.attempt == 1:
            await asyncio.sleep(3)
            ctx.log("never stored")
            await asyncio.get_running_loop().create_future()

    job = await work.enqueue()
    worker = stage.worker()
    running = asyncio.create_task(worker.run(handle_signals=False))
    await asyncio.sleep(2.5)
    assert texts(await job.log()) == ["begins 1"]
    stage.store.failing |= dict.fromkeys(("extend", "settle", "beat"), StoreError("away"))  # as if it were killed now
    await asyncio.sleep(0.6)
    running.cancel()
    await asyncio.wait([running])
    stage.store.failing.clear()
    async with stage.working():
        await stage.until(job.id, "completed")
    assert texts(await job.log()) == ["begins 1", "begins 2"]


async def test_lines_from_threads_of_a_handler_are_all_kept() -> None:
    app = App(MemoryStore())

    @app.task(keep_log=True)
    def work(ctx: Context) -> None:
        threads = [threading.Thread(target=ctx.log, args=(f"line {number}",)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    async with app, app.worker():
        job = await work.enqueue()
        await job.result(wait=600)
        assert sorted(texts(await job.log())) == sorted(f"line {number}" for number in range(20))


async def test_each_job_of_a_batch_has_its_own_log() -> None:
    app = App(MemoryStore())

    @app.batch_task(size=3, keep_log=True)
    async def work(ctxs: list[Context], items: list[int]) -> list[None]:
        for ctx, item in zip(ctxs, items, strict=True):
            ctx.log("item", number=item)
        return [None for _ in items]

    async with app, app.worker():
        jobs = await work.enqueue_many([(1,), (2,), (3,)])
        for job in jobs:
            await job.result(wait=600)
        assert [[line.fields for line in await job.log()] for job in jobs] == [[{"number": n}] for n in (1, 2, 3)]


async def test_the_records_of_logging_stay_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    app = App(MemoryStore())

    @app.task(keep_log=True)
    async def kept(ctx: Context) -> None:
        ctx.log("hello", name="ada")
        ctx.log.info("bye")

    @app.task
    async def plain(ctx: Context) -> None:
        ctx.log("hello", name="ada")
        ctx.log.info("bye")

    with caplog.at_level(logging.INFO, "millrace.handler"):
        async with app, app.worker():
            for task in (kept, plain):
                await (await task.enqueue()).result(wait=600)
    records = [record for record in caplog.records if record.name == "millrace.handler"]
    assert [record.funcName for record in records] == ["kept", "kept", "plain", "plain"]
    assert [record.getMessage().partition("] ")[2] for record in records] == ["hello", "bye", "hello", "bye"]
    assert [vars(record).get("name_") for record in records] == ["ada", None, "ada", None]


# ── bounds ────────────────────────────────────────────────────────────────────────────────────


def a_job(**facts: Any) -> Job:
    return Job(a_spec(), 1, 1, "running", 0, 0, started_at=1_000, attempt=1, **facts)  # type: ignore[arg-type]


def filled(log: JobLog, count: int, size: int = 10, job: Job | None = None) -> list[LogLine]:
    for number in range(count):
        log.add(make_line(job or a_job(), number, logging.INFO, f"{number:05}".ljust(size, "."), {}))
    return read_log(log.unwritten())


def test_of_too_many_lines_the_first_and_the_latest_stay() -> None:
    lines = filled(JobLog(None), 1_000)
    assert len(lines) == MOST_LINES
    assert [line.text[:5] for line in lines[:FIRST_LINES]] == [f"{number:05}" for number in range(FIRST_LINES)]
    gap = lines[FIRST_LINES]
    assert (gap.text, gap.dropped) == ("… 801 lines dropped", 801)
    assert [int(line.text[:5]) for line in lines[FIRST_LINES + 1 :]] == list(range(851, 1_000))


def test_long_lines_are_cut_and_the_whole_log_stays_small() -> None:
    log = JobLog(None)
    lines = filled(log, 100, size=100_000)
    stored = log.unwritten()
    assert stored is not None and len(stored) <= MOST_BYTES
    assert all(len(line.text) <= 4_000 for line in lines) and lines[-1].text.startswith("00099")
    assert sum(line.dropped or 1 for line in lines) == 100


def test_the_bounds_hold_over_all_attempts() -> None:
    log = JobLog(None)
    filled(log, 300)
    for attempt in range(2, 6):
        log = JobLog(log.unwritten())
        lines = filled(log, 100)
        assert len(lines) == MOST_LINES
        assert sum(line.dropped or 1 for line in lines) == 300 + 100 * (attempt - 1)
        assert lines[0].text.startswith("00000") and lines[-1].text.startswith("00099")


def test_fields_that_are_not_json_become_text() -> None:
    job = a_job()
    line = make_line(job, 0, logging.INFO, "\udcff", {"path": object, "size": 3})
    assert line.text == "\\udcff" and line.fields["path"].startswith("<class")
    assert make_line(job, 0, logging.INFO, "", {"blob": "x" * 10_000}).fields == {
        "…": "the fields have 10,011 bytes; 4,096 are kept"
    }


def test_a_log_is_written_once_and_again_when_it_has_changed() -> None:
    log = JobLog(None)
    assert log.unwritten() is None
    filled(log, 1)
    stored = log.unwritten()
    assert stored is not None and log.unwritten() is stored
    filled(log, 1)
    log.written(stored)  # the store has the first line only
    newer = log.unwritten()
    assert newer is not None and len(read_log(newer)) == 2
    log.written(newer)
    assert log.unwritten() is None
