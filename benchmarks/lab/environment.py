"""The peers' own environment: made once, under `.bench/`, from the pins in `peers.txt`.

Apart from Millrace's, so that nobody who installs the project gets its rivals, and no pin of theirs meets one of ours.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".bench"
PINS = ROOT / "benchmarks" / "peers.txt"
INSTALL_LIMIT = 300.0


def peers_python() -> Path:
    """The interpreter that has the peers, installed now if the pins have changed since."""
    home = CACHE / "peers"
    python, stamp = home / "bin" / "python", home / "installed.txt"
    pins = PINS.read_text(encoding="utf-8")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != pins:
        print(f"installing the peers into {home.relative_to(ROOT)}", file=sys.stderr)
        CACHE.mkdir(exist_ok=True)
        (CACHE / ".gitignore").write_text("*\n", encoding="utf-8")
        run([sys.executable, "-m", "venv", "--clear", str(home)])
        run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(PINS)])
        stamp.write_text(pins, encoding="utf-8")
    return python


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT, check=False)
    if done.returncode:
        sys.exit(
            f"The peers could not be installed: {' '.join(command)} failed.\n{done.stderr.strip()}\n"
            "Run with --no-peers to measure Millrace and the floor alone."
        )
