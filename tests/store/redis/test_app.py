"""A whole app on Redis: one URL is all that differs (README), and a worker that is killed leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millrace import App
from millrace.domain.job import State
from millrace.domain.request import Query
from millrace.store.connect import connect
from millrace.testing.invariants import assert_holds, gather
from tests.servers.redis_server import url_for

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import asyncio, os, sys
from millrace import App

app = App(os.environ["MILLRACE_URL"])

@app.task(max_attempts=5)
async def nap(n: int) -> int:
    await asyncio.sleep(0.05)
    return n

async def main() -> None:
    async with app:
        if sys.argv[1] == "put":
            await nap.enqueue_many([{"n": n} for n in range(200)])
        else:
            await app.worker(slots=4).run()

asyncio.run(main())
"""


async def test_request_and_response_cross_the_server(tmp_path):
    app = App(url_for(tmp_path))

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker(slots=4):
        answers = await asyncio.gather(*(double.call(n=n) for n in range(20)))

    assert answers == [2 * n for n in range(20)]


def run(program: Path, url: str, role: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "MILLRACE_URL": url, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    return subprocess.Popen([sys.executable, str(program), role], env=environment)


async def completed(url: str) -> int:
    store = connect(url)
    try:
        return sum(row.completed for row in await store.count())
    finally:
        await store.close()


@pytest.mark.slow
async def test_a_killed_worker_leaves_nothing_behind(tmp_path):
    """Two hundred short jobs, the worker killed after about a hundred: with usual settings all have run in a minute."""
    url, program = url_for(tmp_path), tmp_path / "naps.py"
    program.write_text(PROGRAM)
    assert run(program, url, "put").wait(60) == 0
    first = run(program, url, "work")
    while await completed(url) < 100:
        await asyncio.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    begun = time.monotonic()
    second = run(program, url, "work")
    try:
        while await completed(url) < 200:
            assert time.monotonic() - begun < 60
            await asyncio.sleep(0.2)
    finally:
        second.terminate()
        second.wait(30)
    store = connect(url)
    page = await store.find(Query(limit=1_000, state=State.COMPLETED.value))
    assert len(page.jobs) == 200
    assert_holds(await gather(store))
    await store.close()


def test_the_readme_runs_on_redis_by_its_url_alone(tmp_path):
    text = (ROOT / "README.md").read_text()
    examples = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if 'App("sqlite:///' in code]
    assert examples
    program = tmp_path / "example.py"
    program.write_text(re.sub(r'App\("sqlite:///[^"]*"\)', f"App({url_for(tmp_path)!r})", examples[0]))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}

    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
