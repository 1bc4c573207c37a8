"""Install the packages of some extras at the locked versions and hashes, and nothing else from the lock file.

`make demo` is often the first command, and should not install type checkers and test tools. pip resolves which
packages the extras need at the locked versions, and then installs those lines of the lock file.

    python tools/install_part.py web
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
EDITABLE = "editables"  # needed by the build backend for an editable install


def main(extras: Sequence[str]) -> int:
    lock = read_lock((ROOT / "requirements.lock").read_text("utf-8"))
    wanted = needed(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8")), extras)
    with tempfile.TemporaryDirectory() as scratch:
        pins, part = Path(scratch, "pins.txt"), Path(scratch, "part.txt")
        pins.write_text("".join(map(pin, lock.values())), "utf-8")
        names = resolved(wanted, pins)
        missing = sorted(names - lock.keys())
        if missing:
            print(f"requirements.lock does not hold {', '.join(missing)}. Run: make lock", file=sys.stderr)
            return 1
        part.write_text("".join(lock[name] for name in sorted(names)), "utf-8")
        return subprocess.run([*PIP, "--require-hashes", "--no-deps", "-r", str(part)], check=False).returncode


def needed(project: dict[str, Any], extras: Iterable[str]) -> list[str]:
    """Requirements of the project itself, these extras and the build backend."""
    asked = [*project["project"]["dependencies"], *project["build-system"]["requires"], EDITABLE]
    return asked + of_extras(project, extras)


def of_extras(project: dict[str, Any], extras: Iterable[str]) -> list[str]:
    """Requirements of these extras, also of those that they include, such as `millrace[cli]`. The project itself is
    not in the result: pip would look for it in an index.
    """
    found: list[str] = []
    for extra in extras:
        for requirement in project["project"]["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{project['project']['name']}\[([\w,-]+)\]", requirement)
            found += of_extras(project, own[1].split(",")) if own else [requirement]
    return found


def read_lock(text: str) -> dict[str, str]:
    """The lines of each package in the lock file, by name."""
    packages: dict[str, str] = {}
    name = None
    for line in text.splitlines(keepends=True):
        if found := re.match(r"([A-Za-z0-9][\w.-]*)==", line):
            name = normal(found[1])
        if name is not None and not line.startswith("#"):
            packages[name] = packages.get(name, "") + line
    return packages


def pin(lines: str) -> str:
    """The first line without the hashes: a constraint."""
    return lines.partition("\n")[0].rstrip("\\ ") + "\n"


def resolved(wanted: Iterable[str], pins: Path) -> set[str]:
    command = [*PIP, "--dry-run", "--ignore-installed", "--report", "-", "--constraint", str(pins), *wanted]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)  # pip has printed the reason
    return {normal(item["metadata"]["name"]) for item in json.loads(done.stdout)["install"]}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
