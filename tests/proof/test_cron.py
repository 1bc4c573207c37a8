"""Three schedulers on one SQLite file, killed and started again around their ticks: none skipped, none doubled."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.domain.job import SECOND
from millrace.domain.rules.cron import instant_text
from proof.programs.cron_worker import app_on

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 8.0
PATIENCE = 120.0


class Node:
    """One scheduler process; a new one under the same name after each kill."""

    def __init__(self, folder: Path, name: str) -> None:
        self.database, self.up = folder / "jobs.db", folder / f"{name}.up"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.up.unlink(missing_ok=True)
        program = [sys.executable, "-m", "proof.programs.cron_worker", str(self.database), str(self.up)]
        return subprocess.Popen(program, cwd=ROOT)

    def kill_and_start(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = self._start()

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=PATIENCE)


@pytest.mark.slow
async def test_no_tick_is_skipped_or_doubled_while_schedulers_are_killed(tmp_path: Path) -> None:
    chance = random.Random(os.urandom(8))
    nodes = [Node(tmp_path, f"n{number}") for number in range(3)]
    kills = 0
    try:
        until(lambda: all(node.up.exists() for node in nodes))
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or kills < 5:  # on a busy machine it takes long until there is one to kill
            # Mostly right at a tick, when somebody is about to write.
            to_tick = 1 - time.time() % 1
            time.sleep(max(0.0, to_tick + chance.uniform(-0.05, 0.05)) if chance.random() < 0.7 else chance.random())
            running = [node for node in nodes if node.up.exists()]
            if running:
                chance.choice(running).kill_and_start()
                kills += 1
        await until_ticked(tmp_path / "jobs.db")
    finally:
        codes = [node.end() for node in nodes]

    assert kills >= 5
    assert set(codes) <= {0, -signal.SIGTERM}  # stopped in good order, or before it had begun
    app = app_on(tmp_path / "jobs.db")
    async with app:
        schedules = {schedule.name: schedule for schedule in await app.schedules.page()}
        jobs = [job async for job in everything(app)]
    assert set(schedules) == {"calendar", "interval"}
    for name, schedule in schedules.items():
        ticks = sorted((job.spec.headers or {})["millrace-tick"] for job in jobs if f"cron:{name}:" in job.id)
        assert len(ticks) >= SECONDS
        first = schedule.mark - (len(ticks) - 1) * SECOND
        assert ticks == [instant_text(first + number * SECOND) for number in range(len(ticks))]
        assert schedule.last_tick == schedule.mark
        assert [job.generation for job in jobs] == [1] * len(jobs)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def until_ticked(database: Path) -> None:
    """Each schedule has as many ticks as seconds have passed at least: those that are up catch up."""
    async with asyncio.timeout(PATIENCE), app_on(database) as app:
        while True:
            ids = [job.id async for job in everything(app)]
            if all(sum(f"cron:{name}:" in one for one in ids) >= SECONDS for name in ("calendar", "interval")):
                return
            await asyncio.sleep(0.1)


async def everything(app):
    for partition in await app.store.partitions(1):
        async for page in app.store.scan(partition):
            for job in page:
                yield job
