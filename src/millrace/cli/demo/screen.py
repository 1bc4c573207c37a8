"""Shows the demo on a terminal, in a fixed layout that is redrawn eight times a second."""

from __future__ import annotations

import sys
import termios
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from millrace.cli.output import STYLES
from millrace.cli.text import safe
from millrace.demo import victim
from millrace.demo.board import STEP, Board, BoardLine, Note
from millrace.demo.run import FRONT, STAND_IN, Demo
from millrace.demo.workload import SLOTS

COLUMNS = (("waiting", 9), ("running", 9), ("retrying", 10), ("dead", 6))
COUNT = 11  # room for "1,234/5,678"
NAME = 9
WIDEST = 130
LOCAL = 3  # index of the local modes in the list that termios returns
NOTE_STYLES = {"retry": "yellow", "dead": "red", "KILLED": "bold white on red", "recovered": "bold green"}
WORKERS = ((FRONT, SLOTS), (victim.NAME, victim.SLOTS), (STAND_IN, victim.SLOTS))


class Screen:
    def __init__(self, run: Demo, console: Console | None = None) -> None:
        self._run = run
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        fine = "utf" in self._console.encoding
        self._full, self._empty, self._on, self._off = ("█", "░", "●", "○") if fine else ("#", ".", "*", "o")
        self._levels = " ▁▂▃▄▅▆▇█" if fine else " ..::-=+#"
        self._restore: Callable[[], None] = lambda: None
        self._live = Live(console=self._console, auto_refresh=False, transient=True, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._restore = _quiet_terminal()
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)
        self._restore()

    def frame(self) -> None:
        self._live.update(self.picture(), refresh=True)

    def picture(self) -> Group:
        width, height = self._console.size
        width = min(width, WIDEST)
        lines = [*self._head(width), Text(), *self._queues(width), Text(), *self._workers(width), Text()]
        lines += self._notes(max(2, min(12, height - len(lines) - 2)))
        for line in lines:
            line.truncate(width - 1, overflow="ellipsis")
        return Group(*lines)

    # ── its parts ─────────────────────────────────────────────────────────────────────────────

    def _head(self, width: int) -> list[Text]:
        run = self._run
        clock = f"{run.clock():4.1f} s of about {run.settings.seconds:g}"
        title = Text.assemble((" Millrace ", "bold black on cyan"), "  a small web shop, on one SQLite file")
        title.append(clock.rjust(max(1, width - 1 - len(title))), "bright_black")
        return [title, Text(f" {run.stage} · {run.board.finished:,} of {run.board.total:,} jobs done")]

    def _queues(self, width: int) -> list[Text]:
        bar = width - 4 - NAME - COUNT - sum(size for _, size in COLUMNS)
        head = " " + "queue".ljust(NAME + bar + 1) + "done".rjust(COUNT)
        lines = [Text(head + "".join(name.rjust(size) for name, size in COLUMNS), "bold")]
        lines += [self._queue(name, line, bar) for name, line in self._run.board.queues.items()]
        return [*lines, self._throughput(self._run.board, bar)]

    def _queue(self, name: str, line: BoardLine, bar: int) -> Text:
        text = Text(f" {name:<{NAME}}")
        left = bar
        for state, style in (("completed", "green"), ("dead", "red"), ("cancelled", "bright_black")):
            part = min(left, _share(line.now[state], line.total, bar))
            text.append(self._full * part, style)
            left -= part
        text.append(self._empty * left, "bright_black")
        text.append(f"{line.finished:,}/{line.total:,}".rjust(COUNT + 1))
        for word, size in COLUMNS:
            count = line.now[word]
            text.append(f"{count:,}".rjust(size), STYLES.get(word, "cyan") if count else "bright_black")
        return text

    def _throughput(self, board: Board, bar: int) -> Text:
        steps = board.throughput(self._run.now, bar)
        most = max([*steps, 1])
        drawn = "".join(self._levels[-(-step * (len(self._levels) - 1) // most)] for step in steps)
        recent = sum(steps[-1000 // STEP :])
        return Text.assemble(f" {'a second':<{NAME}}", (drawn, "cyan"), f"{recent:,}".rjust(COUNT + 1))

    def _workers(self, width: int) -> list[Text]:
        return [self._worker(name, slots) for name, slots in WORKERS]

    def _worker(self, name: str, slots: int) -> Text:
        run = self._run
        held = run.board.held_by(name)
        text = Text(f" {name:<12}")
        strike = run.strike
        if name == victim.NAME and strike is not None:
            text.append(f"killed with -9 (pid {strike.pid})", "bold red")
            words = f"{len(held)} jobs wait for a lease to expire" if held else "its jobs were taken over"
            return text.append(f"  {words}", "yellow" if held else "green")
        if name == STAND_IN and name not in run.workers:
            return text.append("not needed yet", "bright_black")
        text.append(self._on * len(held), "blue")
        text.append(self._off * max(0, slots - len(held)), "bright_black")
        tasks = Counter(one.task for one in held)
        return text.append("  " + ", ".join(f"{task} ×{n}" if n > 1 else task for task, n in sorted(tasks.items())))

    def _notes(self, room: int) -> list[Text]:
        notes = _selected_notes(self._run.board.notes, room)
        began = self._run.board.began or 0
        return [_note(note, began) for note in notes] + [Text()] * (room - len(notes))


def _quiet_terminal() -> Callable[[], None]:
    """Stop the terminal from echoing typed characters on the screen, and from discarding typed input on Ctrl-C. Return
    a function that restores the terminal's settings.
    """
    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, ValueError, OSError):  # no terminal to read from
        return lambda: None
    still = [*before]
    still[LOCAL] = (before[LOCAL] & ~termios.ECHO) | termios.NOFLSH
    termios.tcsetattr(sys.stdin, termios.TCSANOW, still)
    return lambda: termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def _selected_notes(notes: Sequence[Note], room: int) -> list[Note]:
    """Return the newest notes, oldest first. Notes about retries are frequent, so they get at most half of the
    lines.
    """
    chosen: list[Note] = []
    retries = 0
    for note in reversed(notes):
        retries += note.kind == "retry"
        if len(chosen) < room and (note.kind != "retry" or retries <= room // 2):
            chosen.append(note)
    return chosen[::-1]


def _note(note: Note, began: int) -> Text:
    when = Text(f" {(note.at - began) / 1000:6.1f} s  ", "bright_black")
    when.append(note.kind, NOTE_STYLES.get(note.kind, "bright_black"))
    when.append(" " * (11 - len(note.kind)) + (f"{note.task:<16}" if note.task else ""))
    return when.append(safe(note.text), "bright_black")


def _share(part: int, whole: int, width: int) -> int:
    """Return the width of one part of the bar. A part with at least one job has at least one character, so that a
    single dead job is visible.
    """
    return 0 if not part else max(1, part * width // max(1, whole))
