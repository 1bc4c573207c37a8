"""Behind PgBouncer in transaction mode, where a session belongs to nobody: every sentence, and an app."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace import App
from tests.servers.pgbouncer import pgbouncer
from tests.servers.postgres import shared_url, url_for

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def pooled() -> Iterator[str]:
    with pgbouncer(shared_url()) as url:
        yield url


@pytest.mark.timeout(1_800)
def test_every_sentence_holds_behind_a_transaction_pooler(pooled: str) -> None:
    given = {
        **os.environ,
        "MILLRACE_TEST_POSTGRES": f"{pooled}?pooler=transaction&notify=off",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    tests = ["tests/store/test_conformance.py", "tests/store/test_races.py"]
    how = ["-k", "postgres", "-q", "-p", "no:cacheprovider", "--timeout=600"]  # every statement is prepared each time
    command = [sys.executable, "-m", "pytest", *tests, *how]

    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-4_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 400
    assert "skipped" not in done.stdout


@pytest.mark.timeout(60)
@pytest.mark.parametrize("notify", ["on", "off"])
async def test_an_app_works_behind_a_transaction_pooler(pooled: str, tmp_path: Path, notify: str) -> None:
    schema = url_for(tmp_path).rpartition("schema=")[2]
    app = App(f"{pooled}?pooler=transaction&notify={notify}&schema={schema}")

    @app.task(max_attempts=3)
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker(slots=8):
        plain = await asyncio.gather(*(double.options(wait=30).call(n) for n in range(50)))
        lined = await asyncio.gather(*(double.options(wait=30, group=f"g{n % 3}").call(n) for n in range(20)))
        counts = await (await app.connected()).count()

    assert (plain, lined) == ([2 * n for n in range(50)], [2 * n for n in range(20)])
    assert [(row.completed, row.waiting, row.running) for row in counts] == [(70, 0, 0)]
