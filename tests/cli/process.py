"""The command line as the shell starts it: a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0


class Shell:
    """Commands in a folder, on the store `jobs.db` in it, with the app of `tests/cli/shop.py`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")},
            "MILLRACE_URL": "sqlite:///jobs.db",
            "MILLRACE_APP": "tests.cli.shop:app",
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
        }

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "millrace", *arguments],
            cwd=self.folder,
            env={**self.environ, **more},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def sh(self, script: str) -> subprocess.CompletedProcess[str]:
        """A line of bash in which `millrace` is the command under test."""
        line = f'millrace() {{ "{sys.executable}" -m millrace "$@"; }}; {script}'
        return subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    @contextlib.contextmanager
    def started(self, *arguments: str, **more: str) -> Iterator[subprocess.Popen[str]]:
        """A command that goes on; whatever becomes of the test, nothing of it is left behind."""
        process = subprocess.Popen(
            [sys.executable, "-m", "millrace", *arguments],
            cwd=self.folder,
            env={**self.environ, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a process group, as a shell at a terminal would give it
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            _, err = process.communicate()
            print(err)  # shown when the test failed


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def eventually(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Running, or at least not yet collected by whoever started it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
