"""Starts Spark for a command and hides the log lines of the start, unless it fails.

A JVM prints several lines when it starts. They are captured, and shown only if the start fails. Later, Spark's Python
processes print errors when other processes have ended. This output is dropped, because the command itself reports real
errors. It is shown only if the command runs handlers, because handlers may print something.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STDERR = 2  # not sys.stderr: the JVM inherits the file descriptor
SOON = 1.0  # seconds until a terminal shows that Spark is starting
LAST_WORDS = 0.5  # seconds to read the last output of a JVM that failed


@contextmanager
def quietly(what: str = "starting Spark", *, spoken: bool = False) -> Iterator[None]:
    """Capture stderr while a JVM starts inside this block. If the start takes longer than a second, a terminal shows
    `what`. With `spoken`, output that the JVM and its processes write later is shown.
    """
    try:
        shown = os.dup(STDERR)
    except OSError:  # closed: there is no reader
        yield
        return
    words = _CapturedStderr(shown)
    up = threading.Event()
    waiting = threading.Thread(target=_announce, args=(what, shown, up), daemon=True)
    waiting.start()
    try:
        yield
    except BaseException:
        _end(up, waiting)
        words.show()
        raise
    else:
        _end(up, waiting)
        words.forget(spoken)


class _CapturedStderr:
    """Captures stderr of this process and its children in a pipe. After `show` or `forget`, this process has its own
    stderr again, and only its children still write to the pipe. A thread reads the pipe, because a JVM may write at any
    time.
    """

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._lock = threading.Lock()
        self._kept: list[bytes] | None = []
        self._spoken = True
        self._source, sink = os.pipe()
        os.set_blocking(self._source, False)
        os.dup2(sink, STDERR)
        os.close(sink)
        self._reader = threading.Thread(target=self._read, name="jvm-stderr", daemon=True)
        self._reader.start()

    def show(self) -> None:
        with self._lock:
            self._write(self._all())
        self._restore()
        self._reader.join(LAST_WORDS)  # a JVM that ended writes no more

    def forget(self, spoken: bool) -> None:
        with self._lock:
            self._all()
            self._spoken = spoken
        self._restore()

    def _all(self) -> bytes:
        """Return all output so far, and stop keeping output."""
        while self._take():
            pass
        kept, self._kept = self._kept or [], None
        return b"".join(kept)

    def _restore(self) -> None:
        """Give this process its own stderr again. Call this last: the reader thread ends as soon as all writers are
        closed.
        """
        os.dup2(self._shown, STDERR)

    def _read(self) -> None:
        poller = select.poll()
        poller.register(self._source, select.POLLIN)
        while True:
            poller.poll()
            with self._lock:
                if self._take() == b"":
                    break
        os.close(self._source)
        os.close(self._shown)

    def _take(self) -> bytes | None:
        """Read the available output, keep it or pass it on, and return it. Return None if there is no output yet, and
        empty bytes at the end of the pipe.
        """
        try:
            data = os.read(self._source, 65_536)
        except BlockingIOError:
            return None
        if self._kept is not None:
            self._kept.append(data)
        elif self._spoken:
            self._write(data)
        return data

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # the pipe is closed
            while data:
                data = data[os.write(self._shown, data) :]


def _announce(what: str, shown: int, up: threading.Event) -> None:
    if up.wait(SOON) or not os.isatty(shown) or os.environ.get("TERM") == "dumb":
        return
    from rich.console import Console

    with open(shown, "w", closefd=False) as terminal:
        console = Console(file=terminal, highlight=False, markup=False, emoji=False)
        with console.status(f"{what} …"):
            up.wait()


def _end(up: threading.Event, waiting: threading.Thread) -> None:
    up.set()
    waiting.join()
