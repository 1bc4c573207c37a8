"""Runs the examples as their first lines say: in a folder of their own, as processes, on free ports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PATIENCE = 300.0


class Example:
    """A copy of an example in a folder of its own. Its relative paths lead there."""

    def __init__(self, name: str, folder: Path, examples: Path = EXAMPLES) -> None:
        source = examples / name
        self.folder = folder / source.stem
        if source.is_dir():
            shutil.copytree(source, self.folder, ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3", "*.db*"))
        else:
            self.folder.mkdir()
            shutil.copy(source, self.folder)
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
        self.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # as when activated

    def run(self, *command: str) -> str:
        """Run a command of Python (`-m uvicorn …`, `main.py`) to its end, and return what it printed."""
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    @contextmanager
    def running(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command of Python inside the block, and stop it with SIGTERM afterwards."""
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                out, _ = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
            print(out)  # shown if the test failed
