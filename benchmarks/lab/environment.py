"""The peers' environments: each made once, under `.bench/`, from a file of pins in `benchmarks/pins/`.

Apart from Millrace's, so that nobody who installs the project gets its rivals, and from each other's, so that each has
the newest client library that it can use. A peer on Node has a `package.json` for its pins.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".bench"
PINS = ROOT / "benchmarks" / "pins"
INSTALL_LIMIT = 300.0
FORGIVEN = {"oban"}  # whose `Requires-Python` is not looked at


class MissingTool(Exception):
    """A program that a peer needs is not installed."""


def python_with(name: str) -> Path:
    """The interpreter of an environment, installed now if its pins have changed since."""
    home, pins = CACHE / name, PINS / f"{name}.txt"

    def install() -> None:
        run([sys.executable, "-m", "venv", "--clear", str(home)])
        options = ["--ignore-requires-python"] if name in FORGIVEN else []
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, *options, "-r", str(pins)])

    _installed(home, pins, install)
    return home / "bin" / "python"


def node_with(name: str) -> tuple[Path, Path]:
    """Node, and the folder with the packages of a peer, installed now if its pins have changed since."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise MissingTool(f"{name} is left out: it needs node and npm, which were not found")
    home, pins = CACHE / name, PINS / f"{name}.json"

    def install() -> None:
        home.mkdir(exist_ok=True)
        shutil.copy(pins, home / "package.json")
        run([npm, "install", "--prefix", str(home), "--no-audit", "--no-fund", "--loglevel=error"])

    _installed(home, pins, install)
    return Path(node), home


def versions(name: str) -> dict[str, str]:
    """The pinned versions of an environment, by package."""
    packages = PINS / f"{name}.json"
    if packages.exists():
        found: dict[str, str] = json.loads(packages.read_text(encoding="utf-8"))["dependencies"]
        return found
    lines = (PINS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    pins = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {package.partition("[")[0]: version for package, _, version in pins}


def _installed(home: Path, pins: Path, install: Callable[[], None]) -> None:
    stamp, wanted = home / "installed.txt", pins.read_text(encoding="utf-8")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    print(f"installing {home.relative_to(ROOT)}", file=sys.stderr, flush=True)
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n", encoding="utf-8")
    install()
    stamp.write_text(wanted, encoding="utf-8")


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT, check=False)
    if done.returncode:
        sys.exit(
            f"The peers could not be installed: {' '.join(command)} failed.\n{done.stderr.strip()}\n"
            "Run with --no-peers to measure Millrace and the floor alone."
        )
