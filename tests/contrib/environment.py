"""Environments with the real orchestrators, each installed once, under `.contrib/`, from a file in `pins/`.

Airflow and Dagster pin many packages, some of them in versions that Millrace's own environment does not have.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINS = Path(__file__).parent / "pins"
CACHE = ROOT / ".contrib"


def python_with(name: str) -> Path:
    """Return the interpreter of an environment with the pinned packages, in which this tree is installed as it is."""
    home, pins = CACHE / name, PINS / f"{name}.txt"
    python = home / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]

    def install_pins() -> None:
        run([sys.executable, "-m", "venv", "--clear", str(home)])
        run([*pip, "-r", str(pins)])

    _if_changed(pins, home / "pins.txt", install_pins)
    _if_changed(
        ROOT / "pyproject.toml",
        home / "project.toml",
        lambda: run([*pip, "--no-build-isolation", "--editable", str(ROOT)]),
    )
    return python


def run(command: list[str]) -> None:
    subprocess.run(command, check=True)


def _if_changed(source: Path, stamp: Path, install: Callable[[], None]) -> None:
    """Call `install` unless the stamp says that it was called for the present content of `source`."""
    wanted = source.read_text("utf-8")
    if not stamp.exists() or stamp.read_text("utf-8") != wanted:
        install()
        stamp.write_text(wanted, "utf-8")
