"""docs/testing.md is true: its project is put together as it stands there, and its tests pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from millrace import App
from millrace.testing import on_memory

TEXT = (Path(__file__).resolve().parents[2] / "docs/testing.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", TEXT, re.DOTALL))
SETTINGS = "\n".join(re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL))
FAILURE = "\n".join(re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)).rstrip()


def test_the_project_of_the_page_passes_its_own_tests(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(SETTINGS + 'pythonpath = ["."]\n', encoding="utf-8")

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=580)

    assert done.returncode == 0, done.stdout + done.stderr
    tests = sum(text.count("def test_") for text in FILES.values())
    assert f"{tests} passed" in done.stdout
    assert not list(tmp_path.glob("jobs.db*"))


def test_every_program_of_the_page_names_its_file():
    assert len(FILES) == TEXT.count("```python") >= 6


async def test_the_failure_it_shows_is_the_one_that_comes():
    app = App()

    @app.task(queue="mail")
    async def send_email(to: str) -> None: ...

    with on_memory(app) as mill:
        job = await send_email.enqueue("bob@example.com")
        with pytest.raises(AssertionError) as error:
            mill.assert_enqueued(send_email, to="ada@example.com", queue="mail")

    [shown] = re.findall(r"send_email (\S+) on", FAILURE)
    assert str(error.value) == FAILURE.replace(shown, job.id)
