"""The output of commands: data on stdout, messages on stderr.

A command prints its values in one of three forms. On a terminal, it prints a table with colours and with ages such as
"3m ago". In a pipe, it prints tab-separated columns under a header line, with instants in ISO 8601 and durations in
seconds; no value is shortened. With --json, it prints one document, or one line per item for streams.
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

from millrace.app.format import instant, span
from millrace.cli.text import ago, safe, safe_block

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


IDS = ("id", "job")  # they wrap where the terminal is narrow
PROSE = ("limits", "details", "error", "do")  # text columns: they wrap between words
NARROWEST = 12  # the least width of a text column


@dataclass(frozen=True)
class At:
    """A table cell with an instant in milliseconds, by the store's clock. On a terminal, it is shown relative to
    `now`.
    """

    at: int | None
    now: int


@dataclass(frozen=True)
class StyledSpan:
    """A table cell with a duration in milliseconds."""

    length: int | None


@dataclass(frozen=True)
class Word:
    """A table cell with a coloured word, such as the state of a job."""

    word: str


Cell = str | int | float | None | At | StyledSpan | Word


class Output:
    def __init__(self, json: bool = False) -> None:
        self.json = json
        self.log: logging.Logger | None = None  # if set, `say` logs here instead of printing

    @property
    def terminal(self) -> bool:
        return _is_terminal(sys.stdout)

    # ── data ──────────────────────────────────────────────────────────────────────────────────

    def document(self, value: Any) -> None:
        """Print a value as an indented JSON document."""
        self._write(msgspec.json.format(encoded(value), indent=2))

    def line(self, value: Any) -> None:
        """Print a value as JSON on one line, and flush stdout."""
        self._write(encoded(value))
        sys.stdout.flush()

    def _write(self, text: str) -> None:
        if self.terminal and not text.isprintable():  # JSON does not escape all control characters
            text = "".join(one if one == "\n" or one.isprintable() else f"\\u{ord(one):04x}" for one in text)
        print(text)

    def table(
        self, names: Sequence[str], rows: Sequence[Sequence[Cell]], title: str | None = None, spare: Sequence[str] = ()
    ) -> None:
        """Print a table. On a terminal, a column in `spare` is left out if all its cells are empty, or if the terminal
        is too narrow.
        """
        if self.terminal:
            shown = [
                at for at, name in enumerate(names) if name not in spare or any(not _is_empty(row[at]) for row in rows)
            ]
            wide = [_width(name, [row[at] for row in rows]) for at, name in enumerate(names)]
            room = _console(sys.stdout).width
            for at in reversed(shown):
                if names[at] in spare and sum(wide[one] + 2 for one in shown) - 2 > room:
                    shown = [one for one in shown if one != at]
            fits = sum(wide[at] + 2 for at in shown) - 2 <= room
            self._pretty([names[at] for at in shown], [[row[at] for at in shown] for row in rows], title, fits)
            return
        print("\t".join(names))
        for row in rows:
            print("\t".join(map(_plain, row)))

    def row(self, cells: Sequence[Cell]) -> None:
        """Print one row of a table whose rows arrive one by one, and flush stdout."""
        if not self.terminal:
            print("\t".join(map(_plain, cells)), flush=True)
            return
        from rich.text import Text

        line = Text("  ").join(Text(_display(cell), style=_style(cell)) for cell in cells if not _is_empty(cell))
        _console(sys.stdout).print(line, soft_wrap=True)
        sys.stdout.flush()

    def record(self, fields: Sequence[tuple[str, Cell]]) -> None:
        """Print pairs of name and value, one pair per line. On a terminal, a value of several lines is printed below
        its name.
        """
        if not self.terminal:
            for name, value in fields:
                print(f"{name}\t{_plain(value)}")
            return
        from rich.text import Text

        width = max((len(name) for name, _ in fields), default=0)
        console = _console(sys.stdout)
        for name, value in fields:
            shown = _display(value, lines=True)
            if "\n" in shown:
                shown = "\n" + "\n".join(f"  {line}" for line in shown.split("\n"))
            line = Text(f"{name:<{width}}  ", style="bold")
            console.print(line.append(Text(shown, style=_style(value) or "not bold")), soft_wrap=True)

    def _pretty(self, names: Sequence[str], rows: Sequence[Sequence[Cell]], title: str | None, fits: bool) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, title=title, title_justify="left", title_style="bold", pad_edge=False)
        for index, name in enumerate(names):
            cells = [row[index] for row in rows if row[index] is not None]
            numbers = bool(cells) and all(isinstance(cell, int | float) for cell in cells)
            whole = name in ("state", "queue", "task", "fingerprint", "status", "kind") or (fits and name in IDS)
            whole = whole or (bool(cells) and all(isinstance(cell, At | StyledSpan) for cell in cells))
            table.add_column(
                name.replace("_", " "),
                header_style="bold",
                justify="right" if numbers else "left",
                no_wrap=whole or numbers,
                overflow="fold" if name in (*IDS, "example", *PROSE) else "ellipsis",
                min_width=NARROWEST if name in PROSE and cells else None,
            )
        for row in rows:
            table.add_row(
                *(Text(_display(cell), style=_style(cell, name)) for name, cell in zip(names, row, strict=True))
            )
        _console(sys.stdout).print(table)

    # ── words ─────────────────────────────────────────────────────────────────────────────────

    def say(self, text: str) -> None:
        """Print a message for people on stderr, or log it if `log` is set."""
        if self.log is not None:
            self.log.info("%s", text)
            return
        print(safe_block(text), file=sys.stderr)

    def hint(self, text: str) -> None:
        """Print a suggestion on stderr. Nothing is printed with --json, or if stdout is not a terminal."""
        if self.terminal and not self.json:
            print(safe_block(text), file=sys.stderr)

    @contextmanager
    def progress(self, what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show a progress bar, if stderr is a terminal and --json is not set. Yields a function that sets the current
        count.
        """
        if self.json or not _is_terminal(sys.stderr):
            yield lambda _done: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=_console(sys.stderr), transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)

    def confirm(self, question: str) -> bool | None:
        """Ask a yes-or-no question and return the answer. Returns None with --json or without a terminal."""
        if self.json or not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
            return None
        return (self.ask(f"{question} [y/N] ") or "").lower() in ("y", "yes")

    def ask(self, question: str) -> str | None:
        """Ask for a line of text and return it. Returns None with --json or without a terminal."""
        if self.json or not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
            return None
        print(safe(question), end="", file=sys.stderr, flush=True)
        return sys.stdin.buffer.readline().decode(errors="replace").strip()


def encoded(value: Any) -> str:
    """Return the value as JSON. Characters that UTF-8 cannot encode (lone surrogates) become question marks."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), ensure_ascii=False).encode("utf-8", "replace").decode()


def _plain(cell: Cell) -> str:
    match cell:
        case None | At(at=None) | StyledSpan(length=None) | "":
            return "-"
        case At(at=int(at)):
            return instant(at)
        case StyledSpan(length=int(length)):
            return f"{length / 1000:g}"
        case Word(word=word):
            return safe(word)
        case float():
            return f"{cell:g}"
        case _:
            return safe(str(cell))


def _width(name: str, cells: Sequence[Cell]) -> int:
    """Return the width that a column needs. Columns with prose can wrap, so a fixed minimum is enough for them."""
    return max(
        len(name), NARROWEST if name in PROSE and cells else max((len(_display(cell)) for cell in cells), default=0)
    )


def _display(cell: Cell, lines: bool = False) -> str:
    match cell:
        case At(at=int(at), now=now):
            return ago(at, now)
        case StyledSpan(length=int(length)):
            return span(length)
        case int() if not isinstance(cell, bool):
            return f"{cell:,}"
        case str() if lines and "\n" in cell:
            return safe_block(cell)
        case _:
            return _plain(cell)


def _is_empty(cell: Cell) -> bool:
    match cell:
        case None | 0 | "" | At(at=None) | StyledSpan(length=None):
            return True
        case _:
            return False


def _style(cell: Cell, column: str = "") -> str:
    """Return the style of a cell. A Word has the style of its text, a number has the style of its column, and empty
    cells are grey.
    """
    match cell:
        case Word(word=word):
            return STYLES.get(word.rstrip(), "")
        case _ if _is_empty(cell):
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
