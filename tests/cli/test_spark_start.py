"""Spark is started in silence: its JVM's lines are shown when it does not come up, and later on only on request."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import textwrap
import time

import pytest

from millrace.cli.pipeline import spark_start
from millrace.cli.pipeline.spark_start import quietly


def greet(words: str) -> None:
    """As a JVM does: it writes to the file descriptor that it was given."""
    subprocess.run(["sh", "-c", f"echo {words} >&2"], check=True)


def awaited(capfd: pytest.CaptureFixture[str], words: str) -> str:
    """What was written once `words` have come through."""
    shown, end = "", time.monotonic() + 60
    while words not in shown and time.monotonic() < end:
        shown += capfd.readouterr().err
        time.sleep(0.01)
    return shown


def test_what_is_said_at_a_good_start_is_not_shown(capfd: pytest.CaptureFixture[str]):
    with quietly():
        greet("incubator modules")
        print("a warning", file=sys.__stderr__, flush=True)
    greet("afterwards")

    assert capfd.readouterr().err == "afterwards\n"


def test_what_is_said_at_a_start_that_fails_is_shown(capfd: pytest.CaptureFixture[str]):
    def start() -> None:
        with quietly():
            greet("cannot bind")
            raise ConnectionError

    with pytest.raises(ConnectionError):
        start()
    print("our own words", file=sys.__stderr__, flush=True)

    assert capfd.readouterr().err == "cannot bind\nour own words\n"  # before the words that explain it


@pytest.mark.parametrize("spoken", [True, False])
def test_what_is_said_by_one_that_is_up_is_passed_on_where_handlers_speak(
    spoken: bool, capfd: pytest.CaptureFixture[str]
):
    with quietly(spoken=spoken):
        lasting = subprocess.Popen(
            ["sh", "-c", "echo hello >&2; echo up; read one; echo $one >&2"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert lasting.stdout is not None and lasting.stdout.readline() == "up\n"
    lasting.communicate("a handler's words\n")

    if spoken:
        assert awaited(capfd, "words\n") == "a handler's words\n"
    else:
        greet("afterwards")
        assert awaited(capfd, "afterwards\n") == "afterwards\n"


def test_nothing_is_left_open(capfd: pytest.CaptureFixture[str]):
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = files()
    for _ in range(3):
        with quietly():
            greet("hello")
    end = time.monotonic() + 60
    while files() > before and time.monotonic() < end:
        time.sleep(0.01)

    assert files() == before


PROGRAM = """
    import os, sys, time
    from millrace.cli.pipeline import spark_start

    spark_start.SOON = 0.05
    {closing}
    with spark_start.quietly("starting Spark on mars"):
        time.sleep(0.5)
    print("done")
"""


def program(closing: str = "") -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(PROGRAM).format(closing=closing)]


def at_terminal(command: list[str], **environ: str) -> str:
    master, slave = pty.openpty()
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", **environ},
        check=True,
        timeout=300,
    )
    os.close(slave)
    shown = b""
    try:
        while part := os.read(master, 65_536):
            shown += part
    except OSError:  # Linux says so when the other side is closed
        pass
    os.close(master)
    assert done.stdout == b"done\n"
    return shown.decode()


def test_a_person_is_told_what_takes_so_long():
    assert "starting Spark on mars …" in at_terminal(program())
    assert at_terminal(program(), TERM="dumb") == ""


def test_a_quick_start_and_a_pipe_are_told_nothing():
    slow = subprocess.run(program(), capture_output=True, text=True, check=True, timeout=580)

    assert (slow.stdout, slow.stderr) == ("done\n", "")
    assert at_terminal(program("spark_start.SOON = 30")) == ""
    assert spark_start.SOON >= 1


def test_without_a_standard_error_it_starts_as_well():
    done = subprocess.run(program("os.close(2)"), stdout=subprocess.PIPE, text=True, check=True, timeout=580)

    assert done.stdout == "done\n"
