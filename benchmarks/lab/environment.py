"""The peers' environments: each made once, under `.bench/`, from a file of pins in `benchmarks/pins/`.

Apart from Millrace's, so that nobody who installs the project gets its rivals, and from each other's, so that each has
the newest client library that it can use.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".bench"
PINS = ROOT / "benchmarks" / "pins"
INSTALL_LIMIT = 300.0
FORGIVEN = {"oban"}  # whose `Requires-Python` is not looked at


def python_with(name: str) -> Path:
    """The interpreter of an environment, installed now if its pins have changed since."""
    home = CACHE / name
    python, stamp = home / "bin" / "python", home / "installed.txt"
    file = PINS / f"{name}.txt"
    pins = file.read_text(encoding="utf-8")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != pins:
        print(f"installing {home.relative_to(ROOT)}", file=sys.stderr, flush=True)
        CACHE.mkdir(exist_ok=True)
        (CACHE / ".gitignore").write_text("*\n", encoding="utf-8")
        run([sys.executable, "-m", "venv", "--clear", str(home)])
        options = ["--ignore-requires-python"] if name in FORGIVEN else []
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, *options, "-r", str(file)])
        stamp.write_text(pins, encoding="utf-8")
    return python


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT, check=False)
    if done.returncode:
        sys.exit(
            f"The peers could not be installed: {' '.join(command)} failed.\n{done.stderr.strip()}\n"
            "Run with --no-peers to measure Millrace and the floor alone."
        )
