"""Processes that die without a word, on one SQLite file, one server or one directory: nothing is lost, nothing is held
twice.
"""

import asyncio
import fcntl
import os
import signal
from pathlib import Path

import pytest

from millrace.app.app import App
from millrace.domain.job import Spec
from millrace.store.sqlite import SqliteStore
from proof.programs.kill9 import Fleet, Settings, run, url_of
from proof.programs.kill9_jobs import QUEUES, read_ledger
from tests.narrowing import the


@pytest.mark.slow
def test_nothing_is_lost_or_held_twice_while_workers_are_killed(tmp_path):
    seed = int(os.environ.get("MILLRACE_SEED", "1"))

    verdict = run(Settings(seconds=8, jobs=3_000, seed=seed, slowest=1.0), tmp_path)

    print(verdict)
    assert verdict.problems == [], f"MILLRACE_SEED={seed} pytest tests/proof/test_kill9.py"
    assert verdict.facts["kills"] >= 5
    assert verdict.facts["completed"] == 3_000
    assert verdict.facts["takeovers"] > 0
    assert verdict.facts["stops past the lease"] > 0


@pytest.mark.slow
def test_nothing_is_lost_or_held_twice_on_a_server_while_workers_are_killed(tmp_path):
    verdict = run(Settings(seconds=8, jobs=3_000, seed=2, slowest=1.0, url=url_of("redis", tmp_path)), tmp_path)

    print(verdict)
    assert verdict.problems == []
    assert verdict.facts["kills"] >= 5
    assert verdict.facts["completed"] == 3_000
    assert verdict.facts["takeovers"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_lost_or_held_twice_in_a_directory_while_workers_are_killed(tmp_path):
    settings = Settings(seconds=6, jobs=600, workers=4, seed=3, slowest=0.8, url=url_of("directory", tmp_path))

    verdict = run(settings, tmp_path)

    print(verdict)
    assert verdict.problems == []
    assert verdict.facts["kills"] >= 5
    assert verdict.facts["completed"] == 600
    assert verdict.facts["takeovers"] > 0
    assert verdict.facts["stops past the lease"] > 0


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_fifty_thousand_jobs_outlive_a_minute_of_kills(tmp_path):
    verdict = run(Settings(seconds=60, jobs=50_000, patience=240), tmp_path)

    print(verdict)
    assert verdict.problems == []
    assert verdict.facts["kills"] >= 30
    assert verdict.facts["completed"] == 50_000


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("store", "jobs"), [("redis", 30_000), ("postgres", 30_000), ("directory", 3_000)])
def test_a_store_outlives_a_hundred_kills_of_its_clients(tmp_path, store, jobs):
    settings = Settings(seconds=150, jobs=jobs, patience=240, slowest=1.5, url=url_of(store, tmp_path))
    verdict = run(settings, tmp_path)

    print(verdict)
    assert verdict.problems == []
    assert verdict.facts["kills"] >= 100
    assert verdict.facts["completed"] == jobs


@pytest.mark.slow
async def test_a_worker_that_stood_still_past_its_lease_cannot_settle(tmp_path):
    """SIGSTOP is what a suspended laptop or a frozen container looks like to the others."""
    fleet = Fleet(Settings(seconds=0, jobs=0, workers=0, producers=0, slots=1), tmp_path)
    fleet.start()
    async with App(SqliteStore(fleet.database)) as app:
        try:
            sleeper = fleet.add_worker()
            await app.store.enqueue([Spec("job", "on_loop", QUEUES[0], b'{"takes": 3000}', lease=3_000)])
            await until(lambda: ("began", "job") in facts(fleet, sleeper))
            await stop_outside_a_commit(sleeper.process, fleet.database)
            rescuer = fleet.add_worker()
            await until(lambda: ("ended", "job") in facts(fleet, rescuer))
            sleeper.process.send_signal(signal.SIGCONT)
            await until(lambda: ("lost", "job") in facts(fleet, sleeper))
            [job] = await app.store.get(["job"])
            history = await app.store.history("job")
        finally:
            fleet.clear()

    assert the(job).state == "completed"
    assert [event.kind for event in history] == ["enqueued", "claimed", "reclaimed", "retried", "claimed", "completed"]
    assert history[-1].worker == rescuer.name


async def stop_outside_a_commit(process, database) -> None:
    """Stop a process while it does not hold the file: inside a commit it would stop every other writer with it."""
    with open(f"{database}-lock", "rb") as turn:
        while True:
            process.send_signal(signal.SIGSTOP)
            await until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
            try:
                fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                process.send_signal(signal.SIGCONT)
                await asyncio.sleep(0.01)
            else:
                return


def facts(fleet, worker) -> set[tuple[str, str]]:
    file = fleet.ledgers / f"{worker.name}.log"
    return {(word, job) for word, job, *_ in read_ledger(file)} if file.exists() else set()


async def until(condition, patience: float = 120.0) -> None:
    async with asyncio.timeout(patience):
        while not condition():
            await asyncio.sleep(0.02)
