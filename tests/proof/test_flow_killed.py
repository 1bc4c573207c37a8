"""A flow on one SQLite file whose workers are killed: it resumes, and every result is handed on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from proof.programs.flow_worker import PARTS, RESULT, flow_of, shop

ROOT = Path(__file__).parents[2]
KILLS_AT = (1, 10, 20, PARTS, 2 * PARTS - 5)  # completed jobs at which the worker is killed
PATIENCE = 200


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_flow_resumes_wherever_its_worker_is_killed(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with shop(url) as app, asyncio.timeout(PATIENCE):
        flow = await flow_of(app).enqueue()
        for done in KILLS_AT:
            process = worker(url)
            try:
                while (await flow.status()).done < done:
                    await asyncio.sleep(0.01)
            finally:
                process.kill()
                process.wait()
        process = worker(url)
        try:
            result = await flow.result(wait=PATIENCE)
        finally:
            process.kill()
            process.wait()
        status = await flow.status()

    assert result == RESULT
    assert (status.total, status.done) == (2 * PARTS + 2, 2 * PARTS + 2)


def worker(url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "proof.programs.flow_worker", url], cwd=ROOT)
