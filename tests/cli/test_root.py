"""The root: help, versions, misspelt commands, where options may stand, stores and apps that are not there."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import millrace
from millrace.cli import exits
from millrace.cli.root import SECTIONS
from tests.cli.process import Shell, ended, eventually
from tests.cli.stage import Stage

COMMANDS = [name for commands in SECTIONS.values() for name, *_ in commands]
ROOT = Path(__file__).resolve().parents[2]


def test_help_names_every_command_and_every_exit_code(bare: Stage):
    for arguments in ((), ("--help",), ("-h",)):
        text = bare(*arguments).out
        assert all(re.search(rf"^  {name}  ", text, re.MULTILINE) for name in COMMANDS)
        assert all(
            re.search(rf"^    {code} +{re.escape(words)}", text, re.MULTILINE) for code, words in exits.MEANING.items()
        )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_teaches_by_example(bare: Stage, command: str):
    text = bare(command, "--help").out

    assert f"Usage: millrace {command}" in text
    assert f"millrace {command}" in text.partition("Options:")[2] or command == "config"


def test_the_documentation_has_every_command_code_and_setting():
    text = (ROOT / "docs" / "cli.md").read_text()

    assert [name for name in COMMANDS if not re.search(rf"^\|.*`{name}[ `].*\|", text, re.MULTILINE)] == []
    assert [code for code in exits.MEANING if f"| {code} |" not in text] == []
    settings = millrace.app.settings.SETTINGS.values()
    assert [one.env for one in settings if one.env not in text and not one.of_object_stores] == []
    stores = (ROOT / "docs" / "stores.md").read_text()
    names = [name for one in settings if one.of_object_stores for name in (one.env, *one.aliases)]
    assert [name for name in names if name not in stores] == []


def test_the_version_is_shown(bare: Stage):
    assert bare("--version").out == f"millrace {millrace.__version__}\n"


def test_a_misspelt_command_is_guessed(bare: Stage):
    ran = bare.refused("qeues")

    assert ran.code == 2 and "Did you mean 'queues'?" in ran.err


def test_common_options_stand_before_or_after_the_command(cli: Stage):
    cli("submit", "pack")

    assert cli("--json", "list").json == cli("list", "--json").json
    assert cli.refused("--url", "sqlite:///other.db", "queues").code == 3


def test_without_a_store_it_says_how_to_name_one(bare: Stage):
    ran = bare.refused("queues")

    assert ran.code == 2
    assert all(word in ran.err for word in ("--url", "MILLRACE_URL", "pyproject.toml", "--app", "millrace init"))


def test_a_misspelt_path_does_not_become_an_empty_store(bare: Stage):
    for command in (("queues",), ("submit", "a"), ("list",), ("pause", "q"), ("tail",)):
        ran = bare.refused(*command, "--url", "sqlite:///jbos.db", "--json")
        assert (ran.code, ran.out) == (3, "") and "millrace init" in ran.err

    assert bare.refused("doctor", "--url", "sqlite:///jbos.db").code == 1
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("jobs.db", 2),
        ("ftp://x", 2),
        ("sqlite://jobs.db", 2),
        ("sqlite:///jobs.db?nothing=1", 2),
        ("redis://ada:secret@h/0", 3),
        ("sqlite:////nowhere/at/all/jobs.db", 3),
    ],
)
def test_a_store_that_cannot_be_is_told_apart_from_one_that_is_not_there(bare: Stage, url: str, code: int):
    ran = bare.refused("queues", "--url", url)

    assert ran.code == code
    assert "secret" not in ran.err


def test_a_file_that_is_no_database_is_a_trouble_of_the_store(bare: Stage):
    Path("text.db").write_text("hello " * 1000)

    assert bare.refused("queues", "--url", "sqlite:///text.db").code == 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere:app", "no module 'nowhere'"),
        ("tests.cli.shop:nothing", "Apps in it: app"),
        ("tests.cli.shop:send_email", "not a Millrace App"),
        ("os", "has no Millrace App"),
        ("a b:c", "does not name an app"),
        ("broken:app", "ZeroDivisionError: division by zero (broken.py, line 2)"),
        ("unfinished:app", "SyntaxError"),
        ("needs:app", "No module named 'nothing_like_it'"),
        ("leaves:app", "SystemExit"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_explained(bare: Stage, name: str, words: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("broken.py").write_text("def work():\n    return 1 / 0\n\nwork()\n")
    Path("unfinished.py").write_text("def work(:\n")
    Path("needs.py").write_text("import nothing_like_it\n")
    Path("leaves.py").write_text("import sys\n\nsys.exit(3)\n")

    ran = bare.refused("worker", "--app", name)

    assert ran.code == 2 and words in ran.err


def test_a_url_that_is_set_wins_over_the_apps_own_and_says_so(bare: Stage):
    bare("init")
    ran = bare("submit", "send_email", '{"to": "ada"}', "--app", "tests.cli.shop:app", "--url", "sqlite:///jobs.db")

    assert "not the app's own store memory://" in ran.err
    assert bare("queues", "--url", "sqlite:///jobs.db", "--json").json[0]["ready"] == 1


def test_init_makes_a_store_once_and_an_app_that_works(bare: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = bare("init", "--example", "first_tasks.py", "--json").json
    assert made == {"url": "sqlite:///jobs.db", "created": True, "file": "jobs.db", "example": "first_tasks.py"}
    assert bare("init", "--json").json["created"] is False
    assert bare.refused("init", "--example", "first_tasks.py").code == 2

    bare("submit", "send_email", '{"to": "ada"}', "--id", "x", "--app", "first_tasks:app")
    bare("worker", "--app", "first_tasks:app", "--burst")
    assert bare("status", "x", "--app", "first_tasks:app", "--json").json["result"] == "welcome sent to ada"


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path):
    program = "import sys; sys.modules['typer'] = None; sys.argv = ['millrace']; from millrace.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "The command line needs two more packages. Run: pip install 'typer>=0.12' 'rich>=13'\n"


WITHOUT_THE_EXTRA = (
    "import sys; sys.modules['typer'] = sys.modules['rich'] = sys.modules['pydantic'] = None; "
    "sys.argv = ['millrace', *sys.argv[1:]]; from millrace.cli import main; main()"
)


def test_without_the_extra_a_worker_runs_with_the_settings_as_options(tmp_path: Path):
    shell = Shell(tmp_path)
    shell.run("init")
    shell.run("submit", "send_email", '{"to": "ada"}', "--id", "x")
    command = [sys.executable, "-c", WITHOUT_THE_EXTRA, "worker", "--slots", "2"]

    with subprocess.Popen(command, cwd=tmp_path, env=shell.environ, stderr=subprocess.PIPE, text=True) as worker:
        eventually(lambda: '"completed"' in shell.run("status", "x", "--json").stdout)
        worker.send_signal(signal.SIGTERM)
        assert ended(worker)[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slots", "none"], "--slots must be a whole number"),
        ([], "a worker needs your app"),
        (["--burst"], "unrecognized arguments: --burst"),
    ],
)
def test_without_the_extra_wrong_options_are_usage_errors(tmp_path: Path, words: list[str], said: str):
    command = [sys.executable, "-c", WITHOUT_THE_EXTRA, "worker", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 2 and said in done.stderr


def test_help_does_not_load_rich_a_store_or_a_worker(tmp_path: Path):
    """Startup time is what a person feels most; these are what would make it felt."""
    program = (
        "import sys; from millrace.cli.root import run; run(['--help']); "
        "print(sorted({'rich', 'sqlite3', 'pydantic', 'millrace.worker.worker'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.stderr == "[]\n"


@pytest.mark.parametrize(("typed", "offered"), [("millrace li", "list"), ("millrace list --status de", "dead")])
def test_the_shell_completes_commands_and_states(tmp_path: Path, typed: str, offered: str):
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_MILLRACE_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-m", "millrace"],
        cwd=tmp_path,
        env={**os.environ, **words},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.split() == [offered], done.stderr


def test_a_command_loads_its_own_module_and_not_the_others(tmp_path: Path):
    program = (
        "import sys; from millrace.cli.root import run; run(['config', '--json']); "
        "print(*sorted(name for name in sys.modules if name.startswith('millrace.cli.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)

    loaded = set(done.stderr.split())
    assert "millrace.cli.config" in loaded
    assert not loaded & {
        "millrace.cli.jobs.submit",
        "millrace.cli.workers.worker",
        "millrace.cli.doctor.command",
        "millrace.cli.demo.command",
    }


def test_what_init_says_to_do_next_works_as_it_stands(bare: Stage, monkeypatch: pytest.MonkeyPatch):
    """Without the app a job goes to the default queue, which a worker of the example does not serve."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    said = bare("init", "--example", "next_tasks.py").err
    exported = re.search(r"^Next: export (.+)$", said, re.MULTILINE)
    typed = re.findall(r"^(?:Then|and): +millrace (.+)$", said, re.MULTILINE)
    assert exported is not None and len(typed) == 2
    for name, _, value in (one.partition("=") for one in exported[1].split()):
        monkeypatch.setenv(name, value)

    worker, submit = map(shlex.split, typed)
    job_id = bare(*submit).out.strip()
    bare(*worker, "--burst")

    assert bare("status", job_id, "--json").json["state"] == "completed"


def test_a_command_ends_in_order_but_does_not_finalize_the_interpreter():
    """A thread of a native driver that needs the interpreter while it is finalized would abort the process."""
    program = """
import atexit, sys, threading, time
import millrace.cli.root as root
from millrace.cli import main

class Kept:
    def __del__(self, write=sys.stdout.write):
        write("finalized")

def run(arguments):
    root.kept = Kept()
    atexit.register(print, "exit function")
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    print("command")
    return 3

root.run = run
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)

    assert (done.returncode, done.stdout.split("\n"), done.stderr) == (
        3,
        ["command", "thread", "exit function", ""],
        "",
    )
