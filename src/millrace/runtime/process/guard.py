"""The guard: when a worker is killed, whatever its children had started ends too.

A child sees to its own end (`main.py`), but the system may kill it together with the worker, before it can take
along what it has started. The guard is one small process per worker that is told of every child and reads until the
worker's end of the pipe is closed. Run as a program it needs nothing but the standard library.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

END_WAIT = 2.0


class Guard:
    """The worker's side. Telling it never blocks and never fails: it is there for the worst case only."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin.fileno()
        os.set_blocking(self._pipe, False)

    def watch(self, pid: int) -> None:
        self._tell(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        self._tell(f"-{pid}\n")

    def _tell(self, line: str) -> None:
        with suppress(OSError):
            os.write(self._pipe, line.encode())

    def close(self) -> None:
        """It ends by itself at the end of the pipe, in a moment."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def stand() -> None:
    """Until the worker is gone."""
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
    stand()
    sys.exit(0)
