"""What a worker logs, in any program that runs one: failures, deaths, lost leases, start and stop."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace import App, Bury, InvalidInput, Retry, State
from millrace.testing.builders import a_reclaim
from tests.project.page import assert_printed, blocks_of
from tests.worker.process import handlers
from tests.worker.stage import Stage, virtual

ROOT = Path(__file__).resolve().parents[2]
FACTS = ("job", "task", "queue", "attempt", "worker")


@pytest.fixture
def app() -> App:
    return App("memory://")


def of_jobs(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "millrace.jobs"]


def shown(record: logging.LogRecord) -> str:
    return logging.Formatter("%(levelname)s %(message)s").format(record)


async def run(app: App, **options: Any) -> None:
    async with asyncio.timeout(60):
        await app.worker(burst=True, name="w", **options).run(handle_signals=False)


async def test_a_failure_that_is_retried_is_a_warning_and_a_death_is_an_error(
    app: App, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "millrace")

    @app.task(max_attempts=2, retry=[0])
    async def charge(card: int) -> None:
        raise ConnectionError(f"no answer for {card}")

    job = await charge.enqueue(4711)
    await run(app)

    failed, dead = of_jobs(caplog)
    assert [record.levelname for record in (failed, dead)] == ["WARNING", "ERROR"]
    assert "failed" in failed.getMessage() and "again in" in failed.getMessage()
    assert "is dead (max_attempts_exceeded)" in dead.getMessage()
    for attempt, record in enumerate((failed, dead), 1):
        assert "ConnectionError: no answer for 4711" in record.getMessage()
        assert [getattr(record, name) for name in FACTS] == [job.id, "charge", "default", attempt, "w"]
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], ConnectionError)
        assert 'raise ConnectionError(f"no answer for {card}")' in shown(record)


@pytest.mark.parametrize("how", ["def", "middleware", "batch", "process", "Retry", "Bury"])
async def test_every_way_to_run_a_handler_logs_its_traceback(app: App, caplog: pytest.LogCaptureFixture, how: str):
    caplog.set_level(logging.WARNING, "millrace")

    async def layer(ctx: Any, call_next: Any) -> Any:
        return await call_next()

    def boom() -> None:
        raise {"Retry": Retry("no"), "Bury": Bury("no")}.get(how, ValueError("no"))

    async def boom_soon() -> None:
        boom()

    async def boom_together(numbers: list[int]) -> None:
        boom()

    if how == "batch":
        await app.batch_task(max_attempts=1)(boom_together).enqueue(1)
    elif how == "process":
        await app.task(process=True, max_attempts=1)(handlers.fail).enqueue("no")
    else:
        layers = [layer] if how == "middleware" else []
        handler: Any = boom if how == "def" else boom_soon
        await app.task(max_attempts=1, middleware=layers, name="boom")(handler).enqueue()
    await run(app, processes=1)

    [record] = of_jobs(caplog)
    assert record.levelname == "ERROR"
    assert "Traceback" in shown(record)
    assert ("in fail" if how == "process" else "in boom") in shown(record)


async def test_where_redaction_hides_something_the_text_is_logged_without_it(
    app: App, caplog: pytest.LogCaptureFixture
):
    @app.task(max_attempts=1)
    async def login(password: str, iban: str) -> None:
        raise PermissionError(f"refused: {password} {iban}")

    await login.enqueue(password="hunter22-secret", iban="DE00-1234-5678")
    await login.enqueue(password="hunter22-secret", iban="DE00-1234-5678")
    await run(app, redact=["iban"])

    for record in of_jobs(caplog):
        assert record.exc_info is None
        assert "Traceback" in shown(record) and "refused: [redacted]" in shown(record)
        assert "hunter22" not in shown(record) and "DE00" not in shown(record)


def test_a_lost_lease_is_a_warning_with_the_facts_of_its_job(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "millrace")

    @virtual
    async def story(stage: Stage):
        @stage.app.task(lease=10)
        async def work() -> None:
            await asyncio.sleep(30)

        job = await work.enqueue()
        stage.store.delays["extend"] = 20.0
        async with stage.worker(name="w", monitor=False):
            await stage.until(job.id, State.RUNNING)
            await asyncio.sleep(12)
            await stage.store.reclaim(a_reclaim(worker="other"))
            await asyncio.sleep(60)
        [record] = of_jobs(caplog)
        assert (record.levelname, record.__dict__["job"], record.__dict__["worker"]) == ("WARNING", job.id, "w")
        assert "was taken over" in record.getMessage()

    story()


def test_a_program_that_configures_nothing_sees_the_traceback_of_its_job(tmp_path: Path):
    """docs/logging.md: Python's handler of last resort shows warnings and errors."""
    [block] = blocks_of((ROOT / "docs" / "logging.md").read_text(encoding="utf-8"), "py")
    (tmp_path / "program.py").write_text(block.text, encoding="utf-8")

    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert_printed(block, done.stdout)
    assert "is dead (max_attempts_exceeded)" in done.stderr
    assert done.stderr.count("Traceback (most recent call last):") == 1
    assert 'raise ConnectionError(f"no answer for card {card}")' in done.stderr
    assert done.stderr.rstrip().endswith("ConnectionError: no answer for card 4711")


async def test_the_attributes_of_a_record_hide_none_of_logging(app: App, caplog: pytest.LogCaptureFixture):
    @app.task(max_attempts=1)
    async def boom() -> None:
        raise ValueError("no")

    await boom.enqueue()
    caplog.set_level(logging.DEBUG, "millrace")
    await run(app)

    standard = vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "taskName"}
    assert {*FACTS, "reason", "failures"} & standard == set()
    for record in of_jobs(caplog):
        assert set(FACTS) <= vars(record).keys() - standard


async def test_an_embedded_worker_that_fails_says_so_at_once(caplog: pytest.LogCaptureFixture):
    """Its error is raised where the block ends, and a server's block ends when the server does."""
    worker = App("memory://").worker(name="w")

    await worker.__aenter__()
    async with asyncio.timeout(60):
        while not caplog.records:
            await asyncio.sleep(0.01)
    with pytest.raises(InvalidInput, match="a worker needs a queue"):
        await worker.__aexit__(None, None, None)

    [record] = caplog.records
    assert (record.levelname, record.getMessage()) == ("ERROR", "worker w has failed; it runs no jobs any more")
    assert record.exc_info is not None and record.__dict__["worker"] == "w"


async def test_a_worker_says_when_it_starts_and_when_it_has_stopped(app: App, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "millrace")

    @app.task
    async def work() -> None: ...

    await work.enqueue()
    await run(app)

    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "millrace.worker"]
    assert lines == [
        ("INFO", "worker w: 1 task from default, 10 slots, on memory://"),
        ("INFO", "worker w has stopped: 1 completed, 0 failed, 0 given back"),
    ]
    assert of_jobs(caplog) == []  # what went well is for those who debug


async def test_whoever_debugs_reads_of_every_job(app: App, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "millrace")

    @app.task
    async def work() -> None: ...

    job = await work.enqueue()
    await run(app)

    said = [record.getMessage() for record in of_jobs(caplog)]
    assert said[0] == f"work {job.id} claimed"
    assert said[1].startswith(f"work {job.id} completed after ")
