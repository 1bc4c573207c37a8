"""What a person at a terminal sees, and is asked."""

from __future__ import annotations

import os
import pty
import re
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


def test_obliterate_wants_the_name_of_the_queue(shell: Shell):
    code, shown = at_terminal(shell, "obliterate", "line", answer="y\n")
    assert code == 1 and "2 jobs of queue line (2 waiting)" in shown and "Nothing was changed" in shown

    code, shown = at_terminal(shell, "obliterate", "line", answer="line\n")
    assert code == 0 and "2 jobs removed" in shown


def test_events_have_the_colours_of_what_they_lead_to(shell: Shell):
    shell.run("cancel", "job-1")
    _, shown = at_terminal(shell, "tail", "--no-follow", "--lines", "2")

    assert "\x1b[36menqueued" in shown and "\x1b[90mcancelled" in shown


def test_settings_of_a_queue_are_told_as_a_person_would_write_them(shell: Shell):
    _, shown = at_terminal(shell, "queues", "line", "--set", "rate=1000000", "--set", "keep_dead=7d", NO_COLOR="1")
    settings = re.sub(r"\x1b\[\d*m", "", shown).split("\n\n")[1]
    told = {line.split()[0]: line.split(maxsplit=1)[1] for line in settings.splitlines()}

    assert (told["rate"], told["keep_dead"], told["paused"]) == ("1000000", "7d", "no")
    assert told["paused_lanes"] == told["max_depth"] == "none"


def test_limits_are_shown_whole_on_a_narrow_terminal(shell: Shell):
    changes = ("--set", "rate=100", "--set", "max_running=20", "--set", "max_depth=1000")
    _, shown = at_terminal(shell, "queues", "line", *changes, NO_COLOR="1", COLUMNS="100")

    assert "…" not in shown


def test_a_list_of_drawn_ids_fits_a_narrow_terminal(shell: Shell):
    """A row each, with nothing cut short: columns that say nothing make room."""
    shell.run("submit", "pack", "--queue", "default")
    _, shown = at_terminal(shell, "list", NO_COLOR="1", COLUMNS="100")
    names, *rows = [line for line in re.sub(r"\x1b\[\d*m", "", shown).splitlines() if line]

    assert len(rows) == 3 and "…" not in shown
    assert names.split() == ["id", "state", "queue", "task", "enqueued", "details"]
    assert re.match(r"[0-9a-f-]{36}  ready +default +pack +\S+ ago +-", rows[0])


@pytest.mark.parametrize("columns", ["80", "70"])
def test_a_list_names_the_task_on_a_terminal_of_80_columns(shell: Shell, columns: str):
    shell.run("submit", "send_welcome_email", "--unchecked", "--queue", "default", "--priority", "3")
    _, shown = at_terminal(shell, "list", NO_COLOR="1", COLUMNS=columns)
    text = re.sub(r"\x1b\[\d*m", "", shown)

    assert "send_welcome_email" in text and "…" not in text
    assert max(map(len, text.splitlines())) <= int(columns)


def test_a_port_is_no_count(shell: Shell):
    _, shown = at_terminal(shell, "config", NO_COLOR="1")

    assert "8321" in shown and "8,321" not in shown


def test_states_without_a_job_make_room_for_the_others(shell: Shell):
    _, shown = at_terminal(shell, "queues", NO_COLOR="1")

    assert "scheduled" in shown and "blocked" not in shown


def test_events_are_told_by_the_time_of_day(shell: Shell):
    _, shown = at_terminal(shell, "tail", "--no-follow", "--lines", "1", NO_COLOR="1")

    assert re.search(
        r"^(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d\.\d{3}  enqueued +line  pack  job-2  due in ", shown, re.MULTILINE
    )


def test_a_job_whose_task_is_not_known_is_told_where_it_went(shell: Shell):
    _, shown = at_terminal(shell, "submit", "send_email", '{"to": "ada"}', MILLRACE_APP="")
    assert "It is in queue default. With --app" in shown

    _, shown = at_terminal(shell, "submit", "send_email", '{"to": "ada"}')
    assert "queue" not in shown
