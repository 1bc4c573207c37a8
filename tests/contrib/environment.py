"""Environments with the real orchestrators, each installed once, under `.contrib/`, from a file in `pins/`.

Airflow and Dagster pin many packages, some of them in versions that Millrace's own environment does not have.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINS = Path(__file__).parent / "pins"
CACHE = ROOT / ".contrib"


def python_with(name: str) -> Path:
    """Return the interpreter of an environment with this tree installed. It is installed again if its pins change."""
    home, pins = CACHE / name, PINS / f"{name}.txt"
    python, stamp = home / "bin" / "python", home / "installed.txt"
    wanted = pins.read_text("utf-8") + (ROOT / "pyproject.toml").read_text("utf-8")
    if not stamp.exists() or stamp.read_text("utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "-r", str(pins)], check=True)
        subprocess.run([*pip, "--no-build-isolation", "--editable", str(ROOT)], check=True)
        stamp.write_text(wanted, "utf-8")
    return python
