"""Kill producers and workers at random: what the shop has and what the queue has still agree, purchase by purchase."""

import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from millrace import App
from millrace.testing.invariants import assert_holds, gather

PROGRAM = Path(__file__).resolve().parents[2] / "proof" / "programs" / "shop.py"


def start(path, role, name):
    command = [sys.executable, str(PROGRAM), str(path), role, name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def play(path, seed, kills):
    chance = random.Random(seed)
    running = []
    try:
        for number in range(kills):
            running += [start(path, role, f"{role[0]}{number}") for role in ("produce", "work")]
            for process in running[-2:]:
                assert process.stdout.readline() == "up\n"
            time.sleep(chance.uniform(0.0, 0.4))
            for process in running[-2:]:
                process.kill()
    finally:
        for process in running:
            process.kill()
            process.wait()
            process.stdout.close()


async def judge(path):
    app = App(f"sqlite:///{path}")
    async with app:
        deadline = time.monotonic() + 300
        while any(row.waiting or row.running for row in await app.jobs.count()):
            assert time.monotonic() < deadline, await app.jobs.count()
            done = subprocess.run([sys.executable, str(PROGRAM), str(path), "finish", "last"], check=True, timeout=300)
            assert done.returncode == 0
        jobs = {job.id: job async for job in app.jobs.find(page=1_000)}
        assert_holds(await gather(app.store, since=0))
    with closing(sqlite3.connect(path)) as shop:
        purchases = dict(shop.execute("SELECT id, mailed FROM purchase").fetchall())
    assert len(jobs) > 3
    assert purchases.keys() == jobs.keys()
    assert set(purchases.values()) == {1}
    assert {job.state for job in jobs.values()} == {"completed"}


async def story(tmp_path, seed, kills):
    path = tmp_path / "shop.db"
    app = App(f"sqlite:///{path}")
    async with app:
        await app.connected()
    with closing(sqlite3.connect(path)) as shop:
        shop.execute("CREATE TABLE purchase (id TEXT PRIMARY KEY, mailed INTEGER NOT NULL DEFAULT 0)")
    play(path, seed, kills)
    await judge(path)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_purchases_and_their_jobs_agree_whoever_is_killed(tmp_path):
    await story(tmp_path, seed=1, kills=4)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10))
async def test_purchases_and_their_jobs_agree_whoever_is_killed_and_however_often(tmp_path, seed):
    await story(tmp_path, seed, kills=25)
