"""Shows the progress of the demo without a terminal: a line on stderr every two seconds."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from millrace.app.format import plural
from millrace.cli.text import safe
from millrace.demo.run import Demo

INTERVAL = 2.0  # seconds


class DemoLines:
    def __init__(self, run: Demo, *, quiet: bool) -> None:
        self._run = run
        self._quiet = quiet
        self._next = 0.0
        self._noted = 0
        self._stage = ""

    def __enter__(self) -> Self:
        self._say(f"A web shop on one SQLite file, for about {self._run.settings.seconds:g} seconds.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def frame(self) -> None:
        run = self._run
        fresh = [note for note in run.board.notes if note.at > self._noted]
        self._noted = max([note.at for note in fresh], default=self._noted)
        for note in fresh:
            if note.kind == "KILLED":
                self._line(note.text)
        recovered = sum(note.kind == "recovered" for note in fresh)
        if recovered:
            self._line(f"{plural(recovered, 'job')} recovered: the lease expired, and another worker took over")
        if run.stage != self._stage:
            self._stage = run.stage
            self._line(run.stage)
        elif run.clock() >= self._next:
            self._next = run.clock() + INTERVAL
            self._line(self._progress())

    def _progress(self) -> str:
        board = self._run.board
        states = {
            word: sum(line.now[word] for line in board.queues.values())
            for word in ("waiting", "running", "retrying", "dead")
        }
        counts = ", ".join(f"{count:,} {word}" for word, count in states.items() if count)
        return f"{board.finished:,} of {board.total:,} jobs finished" + (f" ({counts})" if counts else "")

    def _line(self, text: str) -> None:
        self._say(f"{self._run.clock():5.1f} s  {text}")

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(safe(text), file=sys.stderr, flush=True)
