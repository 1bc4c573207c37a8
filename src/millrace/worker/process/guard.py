"""The guard: a small process that kills the processes of a worker's children if the worker is killed.

When its worker is gone, a child kills the processes that it has started (`main.py`). But the system may kill worker and
child at the same time. So each worker starts a guard and sends it the process id of every child through a pipe. When
the pipe is closed, the worker is gone, and the guard kills the processes. This file is also the guard's program, so it
imports only the standard library.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

END_WAIT = 2.0


class ProcessGuard:
    """The worker's handle for its guard. Writing to the guard never blocks and never raises."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin.fileno()
        os.set_blocking(self._pipe, False)

    def watch(self, pid: int) -> None:
        self._write(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        self._write(f"-{pid}\n")

    def _write(self, line: str) -> None:
        with suppress(OSError):
            os.write(self._pipe, line.encode())

    def close(self) -> None:
        """Close the pipe, and wait for the guard to exit."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def run() -> None:
    """Read process ids until the worker is gone, then kill the process groups of its children."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched: set[int] = set()
    with os.fdopen(0, "rb", buffering=0) as pipe:
        rest = b""
        while data := pipe.read(4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                (watched.add if line.startswith(b"+") else watched.discard)(int(line[1:]))
    for pid in watched:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    run()
    sys.exit(0)
