"""Workers that are killed with -9 again and again: every job runs to its end, and none is held by two."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.store.postgres import PostgresStore
from millrace.testing.builders import a_spec
from millrace.testing.invariants import assert_holds, gather
from tests.servers.postgres import url_for

JOBS = 1_500
PROGRAM = """
import asyncio, sys
from millrace import App

app = App(sys.argv[1])

@app.task(queue="killed")
async def slow(n: int) -> int:
    await asyncio.sleep(0.05)
    return n

async def main() -> None:
    async with app:
        await app.worker(["killed"], slots=6, lease="2s").run()

asyncio.run(main())
"""


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_whatever_is_killed_every_job_runs_to_its_end(tmp_path: Path) -> None:
    url = url_for(tmp_path)
    store = PostgresStore(url)
    await store.connect()
    chance = random.Random(1)
    kills = completed = 0
    try:
        settings = {"task": "slow", "queue": "killed", "max_attempts": None, "max_stalls": None}
        await store.enqueue([a_spec(id=f"{n}", payload=b'{"n":1}', **settings) for n in range(JOBS)])
        while completed < JOBS:
            worker = subprocess.Popen([sys.executable, "-c", PROGRAM, url])
            for _ in range(chance.randint(15, 30)):
                await asyncio.sleep(0.1)
                [counts] = await store.count()
                completed = counts.completed
            worker.kill()
            worker.wait()
            kills += 1
        assert_holds(await gather(store, since=0))
    finally:
        await store.close()

    assert kills >= 3
