"""The pytest plugin, as a user's project has it: found by itself, one empty store per test, also under xdist."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from millrace.testing import plugin

SHOP = """
import os

from millrace import App

app = App("sqlite:///shop.db")
other = App("sqlite:///other.db")

@app.task(queue="mail")
async def send(to: str) -> str:
    if to == "nobody":
        raise ConnectionError("no such person")
    return to

@app.task(process=True)
def crunch(n: int) -> list[int]:
    return [n * n, os.getpid()]

@other.task
async def count(n: int) -> int:
    return n + 1
"""

SETTINGS = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
millrace_app = shop:app
pythonpath = .
filterwarnings = error
"""

GOOD = """
import asyncio
import os

import millrace
import pytest
import shop

@pytest.mark.parametrize("name", ["ada", "bob", "cleo"])
def test_each_test_has_an_empty_store(millrace_harness, name):
    millrace_harness.refute_enqueued()
    asyncio.run(shop.send.enqueue(name))
    millrace_harness.assert_enqueued(shop.send, to=name, count=1)
    assert millrace_harness.sync.drain().completed == 1

async def test_async_tests_too(millrace_harness):
    millrace_harness.refute_enqueued()
    job = await shop.send.enqueue("ada")
    await millrace_harness.drain()
    assert millrace_harness.result(job) == "ada"

async def test_several_apps(millrace_harness, millrace_on_memory):
    other = millrace_on_memory(shop.other)
    job = await shop.count.enqueue(1)
    await other.drain()
    assert other.result(job) == 2
    millrace_harness.refute_enqueued()

async def test_the_module_is_not_hidden(millrace_harness):
    assert isinstance(shop.send, millrace.Task)

async def test_handlers_in_processes(millrace_harness):
    job = await shop.crunch.enqueue(7)
    await millrace_harness.drain()
    square, pid = millrace_harness.result(job)
    assert square == 49 and pid != os.getpid()

def test_the_app_is_put_back_between_tests():
    assert shop.app.store.url == "sqlite:///shop.db"
"""

BAD = """
import shop

async def test_a_handler_that_fails(millrace_harness):
    await shop.send.enqueue("nobody")
    await millrace_harness.drain()

async def test_an_argument_that_differs(millrace_harness):
    await shop.send.enqueue("bob")
    millrace_harness.assert_enqueued(shop.send, to="ada")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    return tmp_path


def pytest_in(folder: Path, *more: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", *more]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=580)
    return done.returncode, done.stdout + done.stderr


def test_pytest_finds_the_plugin_by_itself():
    assert [point.value for point in entry_points(group="pytest11", name="millrace")] == ["millrace.testing.plugin"]


def test_no_fixture_has_the_name_of_the_package():
    """Else `import millrace` at the top of a test module would be hidden in every test that asks for it."""
    assert not hasattr(plugin, "millrace")


@pytest.mark.parametrize("more", [(), ("-n", "2")])
def test_a_project_gets_an_empty_store_for_each_test(project: Path, more: tuple[str, ...]):
    (project / "test_good.py").write_text(GOOD)

    code, output = pytest_in(project, *more)

    assert code == 0, output
    assert "8 passed" in output
    assert not list(project.glob("*.db*"))


def test_what_went_wrong_is_in_the_report(project: Path):
    (project / "test_bad.py").write_text(BAD)

    code, output = pytest_in(project)

    assert code == 1
    assert "2 failed" in output
    assert "ConnectionError: no such person" in output
    assert "- to = 'ada'" in output and "+ to = 'bob'" in output


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("", "needs to know the app under test"),
        ("millrace_app = shop:ap", "'shop:ap' cannot be imported: AttributeError"),
        ("millrace_app = os:sep", "not a millrace.App"),
    ],
)
def test_a_wrong_setting_is_explained(project: Path, setting: str, complaint: str):
    (project / "pytest.ini").write_text(f"[pytest]\npythonpath = .\n{setting}\n")
    (project / "test_it.py").write_text("def test_it(millrace_harness): ...\n")

    code, output = pytest_in(project)

    assert code == 1
    assert complaint in output
    assert "Traceback" not in output


def test_a_fixture_of_ones_own_names_the_app(project: Path):
    (project / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (project / "conftest.py").write_text(
        "import pytest\nimport shop\n\n@pytest.fixture\ndef millrace_app():\n    return shop.other\n"
    )
    (project / "test_it.py").write_text(
        "import shop\n\ndef test_it(millrace_harness):\n    assert millrace_harness.app is shop.other\n"
    )

    code, output = pytest_in(project)

    assert code == 0, output
