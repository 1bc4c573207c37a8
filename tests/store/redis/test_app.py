"""A whole app on Redis: one URL is all that differs (README)."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from millrace import App
from tests.servers.redis_server import url_for

ROOT = Path(__file__).resolve().parents[3]


async def test_request_and_response_cross_the_server(tmp_path):
    app = App(url_for(tmp_path))

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker(slots=4):
        answers = await asyncio.gather(*(double.call(n=n) for n in range(20)))

    assert answers == [2 * n for n in range(20)]


def test_the_readme_runs_on_redis_by_its_url_alone(tmp_path):
    text = (ROOT / "README.md").read_text()
    examples = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if 'App("sqlite:///' in code]
    assert examples
    program = tmp_path / "example.py"
    program.write_text(re.sub(r'App\("sqlite:///[^"]*"\)', f"App({url_for(tmp_path)!r})", examples[0]))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}

    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=580, check=False
    )

    assert done.returncode == 0, done.stderr
