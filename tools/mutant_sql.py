"""The conditions of SQL files, and which tests reach them.

A statement cannot be traced as Python code can. The first run of the tests therefore notes the names of the statements
that each test uses. A test reaches a condition if it uses its statement, or a statement that calls its function.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WORD = re.compile(r"--[^\n]*|'[^']*'|\$\$|:?[A-Za-z_]+|\S")
BEGINS = frozenset({"WHERE", "AND", "OR", "ON", "HAVING", "IF", "ELSIF", "WHILE"})
ENDS = BEGINS | {
    *("SELECT", "FROM", "INTO", "AS", "JOIN", "LEFT", "INNER", "CROSS", "ORDER", "GROUP", "WINDOW"),
    *("LIMIT", "OFFSET", "FOR", "RETURNING", "UNION", "SET", "WHEN", "THEN", "ELSE", "LOOP", ",", ";", "$$"),
}
NO_CONDITION = frozenset({"CONFLICT", "IGNORE", "REPLACE"})  # ON CONFLICT, INSERT OR IGNORE, INSERT OR REPLACE
PART = re.compile(r"^(?:-- name: (\w+)|CREATE OR REPLACE [A-Z]+ (millrace\.\w+))", re.MULTILINE)
CALLED = re.compile(r"\bmillrace\.\w+")


class Level:
    """What is between two parentheses, or between CASE and END."""

    def __init__(self, opened: int | None, *, is_case: bool = False) -> None:
        self.opened = opened  # where the left operand of an AND or OR may begin
        self.begun: int | None = None  # where a condition begins
        self.is_case = is_case
        self.is_searched = False  # CASE WHEN condition, in contrast to CASE value WHEN value


def conditions(text: str) -> list[tuple[int, int]]:
    """Return the ranges of conditions, from the keyword that begins one to the keyword that ends it, at the same level.

    An operand of AND and OR is a condition.
    """
    found: list[tuple[int, int]] = []
    levels = [Level(None)]
    before = ""
    between = False

    def end(at: int) -> None:
        level = levels[-1]
        part = text[level.begun : at]
        if level.begun is not None and part.strip():
            found.append((at - len(part.lstrip()), at - len(part) + len(part.rstrip())))
        level.begun = None

    for match in WORD.finditer(text):
        word, level = match[0].upper(), levels[-1]
        if word in ("(", "CASE"):
            levels.append(Level(match.end() if word == "(" else None, is_case=word == "CASE"))
        elif len(levels) > 1 and word == ("END" if level.is_case else ")"):
            end(match.start())
            levels.pop()
        elif word == "BETWEEN" or (word == "AND" and between):
            between = word == "BETWEEN"
        elif (before, word) in (("DISTINCT", "FROM"), ("DISTINCT", "ON")):  # IS DISTINCT FROM, SELECT DISTINCT ON
            pass
        elif word in ENDS or word.startswith("--"):
            if word in ("AND", "OR") and level.begun is None:
                level.begun = level.opened
            end(match.start())
            if word == "WHEN":
                level.is_searched |= before == "CASE"
            begins = word in BEGINS or (word == "WHEN" and (level.is_searched or before == "EXIT"))
            level.begun = match.end() if begins else None
            level.opened = None
        elif word in NO_CONDITION:
            level.begun = None
        before = word
    end(len(text))
    return sorted(found)


def part_of(text: str, line: int) -> str:
    """Return the name of the statement, or of the function or view, to which a line belongs."""
    names = [one[1] or one[2] for one in PART.finditer(text) if text.count("\n", 0, one.start()) < line]
    return names[-1] if names else ""


class Parts:
    """The statements, functions and views of a store, and which of them each one uses."""

    def __init__(self, folder: Path) -> None:
        self._calls: dict[str, set[str]] = {}
        for file in folder.rglob("*.sql"):
            text = file.read_text("utf-8")
            starts = list(PART.finditer(text))
            ends = [start.start() for start in starts[1:]] + [len(text)]
            for start, end in zip(starts, ends, strict=False):  # some files have neither statements nor functions
                self._calls[start[1] or start[2]] = set(CALLED.findall(text[start.end() : end]))

    def reached_from(self, names: Iterable[str]) -> set[str]:
        reached: set[str] = set()
        left = set(names)
        while left:
            reached |= left
            left = set().union(*(self._calls.get(name, ()) for name in left)) - reached
        return reached


class UsedStatements(dict[str, str]):
    """Statements by name. Adds the names that are looked up to `used`."""

    def __init__(self, statements: dict[str, str], used: set[str]) -> None:
        super().__init__(statements)
        self.used = used

    def __getitem__(self, name: str) -> str:
        self.used.add(name)
        return super().__getitem__(name)


def note_statements(store: str) -> set[str]:
    """Return a set to which this process adds, from now on, the name of each statement that a store uses."""
    used: set[str] = set()
    modules = [module for name, module in sys.modules.items() if name.startswith(f"millrace.store.{store}.")]
    for module in modules:
        known: Any = vars(module)
        if store == "sqlite" and "SQL" in known:
            known["SQL"] = UsedStatements(known["SQL"], used)
        if store == "sqlite" and "many_rows" in known:
            known["many_rows"] = known["many_rows"].__wrapped__  # no cache: each use is to be noted
        if store == "postgres" and "statements" in known:
            known["statements"] = _noting(known["statements"], used)
    return used


def _noting(statements: Any, used: set[str]) -> Any:
    return lambda schema: UsedStatements(statements(schema), used)
