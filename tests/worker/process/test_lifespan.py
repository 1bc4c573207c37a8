"""The lifespan of an app whose handlers run in processes: each child process has its own."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from millrace import App, InvalidInput, JobFailed
from tests.worker.process import handlers, with_lifespan

app = with_lifespan.app


async def test_each_process_enters_and_leaves_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    monkeypatch.setenv(with_lifespan.NOTES, str(notes))
    async with app.worker(processes=1):
        assert await with_lifespan.in_process.call() == (True, 1)
        assert await with_lifespan.in_process_later.call() == (True, 2)
    lines = [line.split() for line in notes.read_text().splitlines()]
    assert Counter(what for what, _ in lines) == {"starts": 2, "ends": 2}
    assert len({pid for _, pid in lines}) == 2
    assert str(os.getpid()) in {pid for _, pid in lines}


async def test_injected_parameters_are_made_and_cleaned_up_in_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    monkeypatch.setenv(with_lifespan.NOTES, str(notes))
    async with app.worker(processes=1):
        assert await with_lifespan.injected.options(id="a").call(1) == "1 a 1 A 1"
        assert await with_lifespan.injected_later.options(id="b").call(2) == "2 b 2 B 2"
        with pytest.raises(JobFailed, match="LookupError: negative"):
            await with_lifespan.injected_later.options(max_attempts=1).call(-1)
    lines = [line.split()[0] for line in notes.read_text().splitlines()]
    assert lines[2:] == ["later", "job", "later", "job", "shared", "ends", "ends"]


async def test_a_process_whose_lifespan_fails_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(with_lifespan.NOTES, str(tmp_path / "notes"))
    async with app.worker(processes=1):
        pid = await with_lifespan.ends_the_lifespan.call()
        assert await with_lifespan.in_process.call() == (True, 1)
        assert await with_lifespan.ends_the_lifespan.call() != pid


async def test_an_async_handler_and_its_providers_run_in_one_task(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    monkeypatch.setenv(with_lifespan.NOTES, str(notes))
    async with app.worker(processes=1):
        assert await with_lifespan.uses_bound.options(max_attempts=1).call() == "bound"
        with pytest.raises(JobFailed, match="timeout"):
            await with_lifespan.too_long.call()
    assert "cleaned" in notes.read_text()


async def test_a_process_whose_start_up_fails_stops_the_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(with_lifespan.NOTES, str(tmp_path / "fail"))
    with pytest.raises(InvalidInput, match=r"LifespanFailed: .* at start-up: ConnectionError: no database"):
        await app.worker(processes=1).run()


async def test_a_task_that_a_process_finds_only_as_a_function_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(with_lifespan.NOTES, str(tmp_path / "notes"))
    other = App("memory://")
    other.lifespan(with_lifespan.lifespan)
    other.task(process=True)(handlers.add)
    with pytest.raises(InvalidInput, match="the app's lifespan needs the task in place of its function"):
        await other.worker().run()
