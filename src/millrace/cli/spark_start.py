"""How a command starts Spark: in silence, unless it fails or takes its time.

A JVM greets whoever starts it with lines about itself. They are kept back until it is up, and shown only when it does
not come up. Afterwards, Spark's Python processes complain that others have gone before them; what really went wrong is
raised, and said by the command. So nothing of it is shown, unless it is handlers who speak there.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STDERR = 2  # not sys.stderr: the JVM is given the file descriptor
SOON = 1.0  # seconds of silence at a terminal
LAST_WORDS = 0.5  # seconds for a JVM that did not come up


@contextmanager
def quietly(what: str = "starting Spark", *, spoken: bool = False) -> Iterator[None]:
    """Start a JVM inside: `what` is said at a terminal when it is not up soon. `spoken`: once it is up, pass on what
    it and its processes say."""
    try:
        shown = os.dup(STDERR)
    except OSError:  # closed, so nobody listens
        yield
        return
    words = _Words(shown)
    up = threading.Event()
    waiting = threading.Thread(target=_say, args=(what, shown, up), daemon=True)
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


class _Words:
    """What is written to the standard error of this process and of those that it starts: kept until it is shown or
    forgotten; then only the others still write here. A thread reads it, because nobody knows when a JVM speaks."""

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._lock = threading.Lock()
        self._kept: list[bytes] | None = []
        self._spoken = True
        self._source, sink = os.pipe()
        os.set_blocking(self._source, False)
        os.dup2(sink, STDERR)
        os.close(sink)
        self._reader = threading.Thread(target=self._read, name="words of the JVM", daemon=True)
        self._reader.start()

    def show(self) -> None:
        with self._lock:
            self._write(self._all())
        self._restore()
        self._reader.join(LAST_WORDS)  # a JVM that is gone has nothing more to say

    def forget(self, spoken: bool) -> None:
        with self._lock:
            self._all()
            self._spoken = spoken
        self._restore()

    def _all(self) -> bytes:
        """What was said so far; from here on nothing is kept."""
        while self._take():
            pass
        kept, self._kept = self._kept or [], None
        return b"".join(kept)

    def _restore(self) -> None:
        """Last, because the reader ends, and closes what it holds, when nobody can write any more."""
        os.dup2(self._shown, STDERR)

    def _read(self) -> None:
        heard = select.poll()
        heard.register(self._source, select.POLLIN)
        while True:
            heard.poll()
            with self._lock:
                if self._take() == b"":
                    break
        os.close(self._source)
        os.close(self._shown)

    def _take(self) -> bytes | None:
        """What there is: None when that is nothing yet, empty when nobody can write any more."""
        try:
            said = os.read(self._source, 65_536)
        except BlockingIOError:
            return None
        if self._kept is not None:
            self._kept.append(said)
        elif self._spoken:
            self._write(said)
        return said

    def _write(self, said: bytes) -> None:
        with suppress(OSError):  # a pipe that nobody reads any more
            while said:
                said = said[os.write(self._shown, said) :]


def _say(what: str, shown: int, up: threading.Event) -> None:
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
