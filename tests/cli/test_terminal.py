"""What a person at a terminal sees, and is asked."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.process import PATIENCE, Shell

pytestmark = pytest.mark.slow  # every command is an interpreter that starts


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    del shell.environ["NO_COLOR"]
    shell.environ |= {"TERM": "xterm-256color", "COLUMNS": "160", "LINES": "50"}
    shell.sh("millrace init; for i in 1 2; do millrace submit pack --queue line --id job-$i --delay 1h; done")
    return shell


def at_terminal(shell: Shell, *arguments: str, answer: str = "", **more: str) -> tuple[int, str]:
    """Run it with a terminal on all three sides; what was shown, as the terminal got it."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "millrace", *arguments],
        cwd=shell.folder,
        env={**shell.environ, **more},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    if answer:
        os.write(master, answer.encode())
    shown = b""
    try:
        while part := os.read(master, 65_536):
            shown += part
    except OSError:  # Linux says so when the other side is closed
        pass
    os.close(master)
    return process.wait(PATIENCE), shown.decode().replace("\r\n", "\n")


def test_a_table_has_colours_and_ages(shell: Shell):
    code, shown = at_terminal(shell, "list")

    assert code == 0
    assert "\x1b[35mscheduled" in shown and " ago" in shown
    assert "\t" not in shown


def test_no_color_is_respected(shell: Shell):
    _, shown = at_terminal(shell, "list", NO_COLOR="1")

    assert "scheduled" in shown and "\x1b[3" not in shown


def test_a_dumb_terminal_gets_what_a_pipe_gets(shell: Shell):
    _, shown = at_terminal(shell, "list", TERM="dumb")

    assert shown.startswith("id\tstate\t") and "\x1b" not in shown


def test_acting_on_many_asks_first(shell: Shell):
    code, shown = at_terminal(shell, "cancel", "--queue", "line", answer="n\n")
    assert code == 1 and "Cancel 2 jobs? [y/N]" in shown and "job-1" in shown

    code, shown = at_terminal(shell, "cancel", "--queue", "line", answer="y\n")
    assert code == 0 and "2 jobs cancelled" in shown


def test_ctrl_c_at_a_question_changes_nothing(shell: Shell):
    code, _ = at_terminal(shell, "drain", "line", answer="\x04")  # no answer at all: the end of input
    assert code == 1

    code, shown = at_terminal(shell, "list", "--status", "waiting")
    assert "job-1" in shown and "job-2" in shown
