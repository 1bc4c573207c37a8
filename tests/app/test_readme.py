"""The README's own promises; that its examples run is held by tests/project/test_docs.py, like those of every page."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.process import Shell
from tests.cli.stage import Stage
from tests.project.page import blocks_of

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST = blocks_of(README)[0]


@pytest.mark.parametrize("store", ["memory://", "sqlite:///jobs.db"])
def test_the_first_program_prints_the_same_on_every_store(tmp_path, store):
    program = FIRST.text.replace("sqlite:///jobs.db", store)

    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=580)

    assert done.returncode == 0, done.stderr
    assert done.stdout == FIRST.output


def test_the_first_program_fits_on_a_screen():
    lines = [line for line in FIRST.text.splitlines() if line]

    assert len(lines) <= 12
    assert README[: README.index(FIRST.text)].count("\n") < 10


def test_the_commands_it_shows_can_be_typed_as_they_stand(tmp_path, monkeypatch):
    [tasks] = [block for block in blocks_of(README) if block.file == "tasks.py"]
    (tmp_path / "tasks.py").write_text(tasks.text, encoding="utf-8")
    [shown] = [block.text for block in blocks_of(README, "sh") if "millrace submit" in block.text]
    export, *commands = shown.splitlines()
    for setting in shlex.split(export)[1:]:
        monkeypatch.setenv(*setting.split("=", 1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tasks", raising=False)
    cli = Stage(monkeypatch)
    cli("init")

    try:
        answers = [cli(*shlex.split(command)[1:]) for command in commands]  # each exits 0
    finally:
        sys.modules.pop("tasks", None)

    assert len(answers) == 6
    assert "completed" in answers[2].out
    assert [event["kind"] for event in answers[3].json] == ["enqueued", "claimed", "completed"]


def test_the_blocking_example_works_with_a_worker_in_another_process(tmp_path: Path):
    [tasks] = [block for block in blocks_of(README) if block.file == "tasks.py"]
    (tmp_path / "tasks.py").write_text(tasks.text, encoding="utf-8")
    [blocking] = blocks_of(README, "py")
    shell = Shell(tmp_path)
    assert "`millrace worker --app tasks:app`" in README

    with shell.started("worker", "--app", "tasks:app", MILLRACE_URL="", MILLRACE_APP=""):
        done = subprocess.run(
            [sys.executable, "-c", f"from tasks import send_email\n{blocking.text.replace('10s', '100s')}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    assert (done.returncode, done.stdout) == (0, "welcome sent to ada@example.com\n"), done.stderr


def test_every_block_of_shell_is_tested():
    """`pip install` is tested by tests/project/test_extras.py, `make` below, and `millrace` above."""
    lines = [line for block in blocks_of(README, "sh") for line in block.text.splitlines()]

    assert len(lines) > 12
    assert [line for line in lines if not re.match(r"pip install '\.\[|make |export MILLRACE|millrace ", line)] == []


def test_every_make_target_it_names_exists():
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert {"setup", "test", "nightly", "bench", "demo"} <= set(targets)
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_what_it_calls_the_test_command_is_what_continuous_integration_runs():
    assert re.search(r"^make test\b.*continuous integration", README, re.MULTILINE)
    assert "make test" in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
