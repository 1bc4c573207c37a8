"""Every line of the log knows its job, whoever writes it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from millrace import App, JobLogFilter
from millrace.cli.workers.logs import start_logging
from tests.worker.process import logging_handlers


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.addFilter(JobLogFilter())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    library, handler = logging.getLogger("some.library"), Kept()
    library.addHandler(handler)
    library.setLevel(logging.INFO)
    yield handler
    library.removeHandler(handler)


async def run(app: App) -> None:
    async with asyncio.timeout(60):
        await app.worker(burst=True).run(handle_signals=False)


@pytest.mark.parametrize("layered", [False, True], ids=["plain", "with middleware"])
async def test_lines_of_libraries_know_the_job_on_the_loop_and_in_threads(kept: Kept, layered: bool):
    app = App("memory://")
    library = logging.getLogger("some.library")
    library.info("before")

    @app.task(name="on-loop")
    async def on_loop(n: int) -> None:
        await asyncio.sleep(0.01)
        library.info("loop %s", n)
        await asyncio.create_task(inner(n))

    async def inner(n: int) -> None:
        library.info("inner %s", n)

    @app.task(name="in-thread")
    def in_thread(n: int) -> None:
        library.info("thread %s", n)

    if layered:

        @app.middleware
        async def layer(ctx, call_next):
            library.info("layer of %s", ctx.id)
            return await call_next()

    async with app:
        jobs = [await on_loop.enqueue(n=n) for n in range(5)] + [await in_thread.enqueue(n=n) for n in range(5)]
        await run(app)
    library.info("after")

    told = {record.getMessage(): (record.job, record.task, record.attempt) for record in kept.records}  # type: ignore[attr-defined]
    assert told.pop("before") == told.pop("after") == (None, None, None)
    for n in range(5):
        assert told[f"loop {n}"] == told[f"inner {n}"] == (jobs[n].id, "on-loop", 1)
        assert told[f"thread {n}"] == (jobs[5 + n].id, "in-thread", 1)
    assert len(told) == (25 if layered else 15)
    if layered:
        assert all(record.job in record.getMessage() for record in kept.records if "layer" in record.getMessage())  # type: ignore[attr-defined]


async def test_lines_in_a_process_of_its_own_know_the_job():
    app = App("memory://")
    plain = app.task(process=True)(logging_handlers.told_in_process)
    on_loop = app.task(process=True)(logging_handlers.told_on_a_loop_in_a_process)
    async with app:
        jobs = [await task.enqueue() for _ in range(2) for task in (plain, on_loop)]
        async with asyncio.timeout(60):
            await app.worker(burst=True, slots=1).run(handle_signals=False)
        assert [await app.jobs.result(job) for job in jobs] == [job.id for job in jobs]


async def test_the_workers_log_in_json_has_the_job_and_hides_what_is_to_be_hidden(monkeypatch: pytest.MonkeyPatch):
    root = logging.getLogger()
    before = root.handlers[:], root.level
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    app = App("memory://")

    @app.task(name="pack")
    async def pack() -> None:
        extra = {"payload": {"user": "ada", "password": "hunter22"}, "api_key": "abc", "number": 7, "odd": {1: {2}}}
        logging.getLogger("some.library").warning("working", extra=extra)

    try:
        start_logging("info", "json", ["number"])
        async with app:
            job = await pack.enqueue()
            await run(app)
    finally:
        root.handlers[:], root.level = before
        logging.getLogger("millrace").setLevel(logging.NOTSET)
    [line] = [json.loads(text) for text in out.getvalue().splitlines() if "working" in text]
    assert (line["job"], line["task"], line["queue"], line["attempt"]) == (job.id, "pack", "default", "1")
    assert line["payload"] == {"user": "ada", "password": "[redacted]"}
    assert (line["api_key"], line["number"]) == ("[redacted]", "[redacted]")
