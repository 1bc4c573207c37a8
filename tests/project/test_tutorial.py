"""The tutorial works when it is pasted: every file, every command, in the order of the page."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from millrace import App
from tests.project.page import BLOCK, FILE, Block, Session

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
WORKER, SERVER = "millrace worker", "millrace serve"  # they run until they are stopped
GENEROUS = 120  # seconds


@dataclass
class Reader:
    """Someone who follows the page, in a folder of their own."""

    folder: Path
    environment: dict[str, str]
    port: int  # of the dashboard, instead of the usual one
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, "utf-8")

    def paste(self, commands: str) -> str:
        """Run the commands of a block one by one; return what they print. Lasting ones go on in the background."""
        printed = ""
        for command in commands.strip().splitlines():
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                self.environment[name] = value
            elif command in (WORKER, SERVER):
                self.start(command)
            else:
                printed += self.run(command)
        return printed

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=GENEROUS,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, command: str) -> None:
        port = ["--port", str(self.port)] if command == SERVER else []
        self.running[command] = subprocess.Popen([*command.split(), *port], cwd=self.folder, env=self.environment)

    def stop(self, command: str) -> int:
        """Press Ctrl-C."""
        process = self.running.pop(command)
        process.send_signal(signal.SIGINT)
        return process.wait(GENEROUS)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE")}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    reader = Reader(tmp_path, {**kept, "PATH": path}, port)
    yield reader
    for process in reader.running.values():
        process.kill()
        process.wait()


def until(condition: str, reader: Reader) -> str:
    """Repeat a command until it succeeds."""
    end = monotonic() + GENEROUS
    while monotonic() < end:
        with contextlib.suppress(AssertionError):
            return reader.run(condition)
        sleep(0.2)
    return reader.run(condition)


def is_served(port: int) -> bool:
    end = monotonic() + GENEROUS
    while monotonic() < end:
        try:
            with urlopen(f"http://127.0.0.1:{port}/") as page:
                return bool(page.status == 200)
        except URLError:
            sleep(0.2)
    return False


@pytest.mark.slow
async def test_the_tutorial_works_when_it_is_pasted(reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    session = Session(PAGE, reader.folder, lambda: capsys.readouterr().out)
    monkeypatch.chdir(reader.folder)
    monkeypatch.syspath_prepend(str(reader.folder))
    install, *blocks = [(match[1], match[2]) for match in BLOCK.finditer(PAGE.read_text("utf-8"))]
    assert install[1].endswith("pip install '.[cli,web,cron]'\n")  # which the tests of the extras run
    printed = ""
    for language, block in blocks:
        if language == "text":
            assert printed == block
        elif language == "sh":
            if "millrace dead" in block:
                until("millrace dead --json | grep ValueError", reader)  # after its retries
            if "millrace replay" in block:
                mend(reader)
            printed = reader.paste(block)
            if SERVER in block:
                assert is_served(reader.port)
        elif name := FILE.match(block):
            reader.write(name[1], block)
        else:
            await session.run(Block(block, 0, None))

    assert "completed" in reader.run("millrace status welcome-bob")
    assert reader.stop(WORKER) == 0
    for value in vars(session.module).values():
        if isinstance(value, App):
            await value.close()
    sys.modules.pop("tasks")


def mend(reader: Reader) -> None:
    """Do what the page says: replace the body of the task, and start the worker again."""
    tasks = (reader.folder / "tasks.py").read_text("utf-8")
    check = tasks[tasks.index("    if ") : tasks.index("    return f")]
    reader.write("tasks.py", tasks.replace(check, ""))
    assert reader.stop(WORKER) == 0
    reader.start(WORKER)
