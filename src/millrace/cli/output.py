"""Where output goes and how it looks: data on stdout, words on stderr.

One set of values, three looks. On a terminal: a table with colours and ages such as "3m ago". In a pipe: columns
between tabs under a line of names, instants in ISO 8601 and durations in seconds, nothing cut short. With --json:
one document, or one line per item where there is no end to wait for.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

import msgspec

from millrace.cli.text import ago, instant, safe, safe_block, span

STYLES = {
    "ready": "cyan",
    "running": "blue",
    "scheduled": "magenta",
    "retrying": "yellow",
    "blocked": "yellow",
    "completed": "green",
    "dead": "red",
    "cancelled": "bright_black",
    "alive": "green",
    "stale": "red",
    "paused": "yellow",
    "enqueued": "cyan",
    "claimed": "blue",
    "retried": "yellow",
    "reclaimed": "yellow",
    "buried": "red",
    "evicted": "red",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
}


PROSE = ("limits", "details", "error", "do")  # columns of words: they wrap, and no word of them is cut off


@dataclass(frozen=True)
class At:
    """An instant of the store, in milliseconds; on a terminal it is told as seen from `now`."""

    at: int | None
    now: int


@dataclass(frozen=True)
class Span:
    """A duration in milliseconds."""

    length: int | None


@dataclass(frozen=True)
class Word:
    """A word that has a colour of its own."""

    word: str


Cell = str | int | float | None | At | Span | Word


class Output:
    def __init__(self, json: bool = False) -> None:
        self.json = json
        self.log: logging.Logger | None = None  # takes the words of a command that keeps a log

    @property
    def terminal(self) -> bool:
        return _is_terminal(sys.stdout)

    # ── data ──────────────────────────────────────────────────────────────────────────────────

    def document(self, value: Any) -> None:
        """The one JSON document of a command."""
        self._write(msgspec.json.format(encoded(value), indent=2))

    def line(self, value: Any) -> None:
        """One of many JSON documents, each on a line and handed over at once."""
        self._write(encoded(value))
        sys.stdout.flush()

    def _write(self, text: str) -> None:
        if self.terminal and not text.isprintable():  # JSON leaves some control characters as they are
            text = "".join(one if one == "\n" or one.isprintable() else f"\\u{ord(one):04x}" for one in text)
        print(text)

    def table(
        self, names: Sequence[str], rows: Sequence[Sequence[Cell]], title: str | None = None, spare: Sequence[str] = ()
    ) -> None:
        """`spare` columns are left out on a terminal, where room is short, while they say nothing in any row."""
        if self.terminal:
            shown = [
                at for at, name in enumerate(names) if name not in spare or any(not _silent(row[at]) for row in rows)
            ]
            self._pretty([names[at] for at in shown], [[row[at] for at in shown] for row in rows], title)
            return
        print("\t".join(names))
        for row in rows:
            print("\t".join(map(_plain, row)))

    def row(self, cells: Sequence[Cell]) -> None:
        """One line of a table that has no end; as in a pipe, but for eyes on a terminal."""
        if not self.terminal:
            print("\t".join(map(_plain, cells)), flush=True)
            return
        from rich.text import Text

        line = Text("  ").join(Text(_told(cell), style=_style(cell)) for cell in cells if not _silent(cell))
        _console(sys.stdout).print(line, soft_wrap=True)
        sys.stdout.flush()

    def record(self, fields: Sequence[tuple[str, Cell]]) -> None:
        """Names and values of one thing, a line each; a value of several lines stands below its name."""
        if not self.terminal:
            for name, value in fields:
                print(f"{name}\t{_plain(value)}")
            return
        from rich.text import Text

        width = max((len(name) for name, _ in fields), default=0)
        console = _console(sys.stdout)
        for name, value in fields:
            told = _told(value, lines=True)
            if "\n" in told:
                told = "\n" + "\n".join(f"  {line}" for line in told.split("\n"))
            line = Text(f"{name:<{width}}  ", style="bold")
            console.print(line.append(Text(told, style=_style(value) or "not bold")), soft_wrap=True)

    def _pretty(self, names: Sequence[str], rows: Sequence[Sequence[Cell]], title: str | None) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, title=title, title_justify="left", title_style="bold", pad_edge=False)
        for index, name in enumerate(names):
            cells = [row[index] for row in rows if row[index] is not None]
            numbers = bool(cells) and all(isinstance(cell, int | float) for cell in cells)
            whole = name in ("id", "job", "state", "queue", "fingerprint", "status", "kind")
            whole = whole or (bool(cells) and all(isinstance(cell, At | Span) for cell in cells))
            table.add_column(
                name.replace("_", " "),
                header_style="bold",
                justify="right" if numbers else "left",
                no_wrap=whole or numbers,
                overflow="fold" if name in ("id", "example", *PROSE) else "ellipsis",
                min_width=12 if name in PROSE and cells else None,
            )
        for row in rows:
            table.add_row(*(Text(_told(cell), style=_style(cell, name)) for name, cell in zip(names, row, strict=True)))
        _console(sys.stdout).print(table)

    # ── words ─────────────────────────────────────────────────────────────────────────────────

    def say(self, text: str) -> None:
        """Tell the person; never data."""
        if self.log is not None:
            self.log.info("%s", text)
            return
        print(safe_block(text), file=sys.stderr)

    def hint(self, text: str) -> None:
        """What one might want next: for people only, so not when a program reads the output."""
        if self.terminal and not self.json:
            print(safe_block(text), file=sys.stderr)

    @contextmanager
    def progress(self, what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """A bar on a terminal, for work that takes a while; elsewhere nothing. The function takes the count so far."""
        if self.json or not _is_terminal(sys.stderr):
            yield lambda _done: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=_console(sys.stderr), transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)

    def confirm(self, question: str) -> bool | None:
        """Yes or no; None when there is nobody to ask."""
        if self.json or not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
            return None
        return (self.ask(f"{question} [y/N] ") or "").lower() in ("y", "yes")

    def ask(self, question: str) -> str | None:
        """The line that was typed; None when there is nobody to ask."""
        if self.json or not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
            return None
        print(safe(question), end="", file=sys.stderr, flush=True)
        return sys.stdin.buffer.readline().decode(errors="replace").strip()


def encoded(value: Any) -> str:
    """JSON, also of what was typed in bytes that are no text: a question mark stands for each of those."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), ensure_ascii=False).encode("utf-8", "replace").decode()


def _plain(cell: Cell) -> str:
    match cell:
        case None | At(at=None) | Span(length=None) | "":
            return "-"
        case At(at=int(at)):
            return instant(at)
        case Span(length=int(length)):
            return f"{length / 1000:g}"
        case Word(word=word):
            return safe(word)
        case float():
            return f"{cell:g}"
        case _:
            return safe(str(cell))


def _told(cell: Cell, lines: bool = False) -> str:
    match cell:
        case At(at=int(at), now=now):
            return ago(at, now)
        case Span(length=int(length)):
            return span(length)
        case int() if not isinstance(cell, bool):
            return f"{cell:,}"
        case str() if lines and "\n" in cell:
            return safe_block(cell)
        case _:
            return _plain(cell)


def _silent(cell: Cell) -> bool:
    match cell:
        case None | 0 | "" | At(at=None) | Span(length=None):
            return True
        case _:
            return False


def _style(cell: Cell, column: str = "") -> str:
    """A word's own colour; a count of jobs in a state has that state's, and nothing at all stands back."""
    match cell:
        case Word(word=word):
            return STYLES.get(word.rstrip(), "")
        case _ if _silent(cell):
            return "bright_black"
        case int():
            return STYLES.get(column, "")
        case _:
            return ""


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def _console(stream: TextIO) -> Any:
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False)
