"""The conditions of Lua files."""

from __future__ import annotations

import re

WORD = re.compile(r"--[^\n]*|'[^']*'|\"[^\"]*\"|[A-Za-z_]\w*|[=~<>]=|\S")
BEGINS = frozenset({"if", "elseif", "while", "until"})
KEYWORDS = BEGINS | {"and", "or", "not"}  # before a parenthesis in a condition
RESTARTS = frozenset({"=", ",", ";", "return", "or", "else", "in"})  # an operand may begin after it
VALUE = re.compile(r"|'[^']*'|\"[^\"]*\"|\d+|nil|true|false")  # `x or 0` is a default, not a condition
CALLED = re.compile(r"[\w\])]$")  # a parenthesis after this belongs to a call


class Level:
    """What is between two parentheses, or outside of all."""

    def __init__(self, start: int, *, is_condition: bool) -> None:
        self.start = start  # of the last operand
        self.whole = start if is_condition else None  # start of a condition: all of its operands are conditions
        self.is_joined = False  # has `and` or `or`


def conditions(text: str) -> list[tuple[int, int]]:
    """Return the ranges of conditions of if, elseif, while and until, and of their operands of `and` and `or`.

    In other expressions, what is left of an `and` is a condition: `a and b or c` chooses between b and c. A condition
    after `until` ends with its line, the others with `then` or `do`.
    """
    found: set[tuple[int, int]] = set()
    levels = [Level(0, is_condition=False)]
    until: int | None = None  # where the line of an `until` ends
    after = 0  # where the last word ends that is no comment

    def add(start: int) -> None:
        part = text[start:after]
        if not VALUE.fullmatch(part.strip()):
            found.add((start + len(part) - len(part.lstrip()), start + len(part.rstrip())))

    def end() -> None:
        """End the condition of the last level."""
        if levels[-1].whole is not None:
            add(levels[-1].whole)
            add(levels[-1].start)  # the same, if there is no `and` or `or`
        levels[-1] = Level(after, is_condition=False)

    for match in WORD.finditer(text):
        word, level = match[0], levels[-1]
        if until is not None and match.start() > until:
            end()
            until, level = None, levels[-1]
        if word.startswith("--"):
            continue
        if word in BEGINS:
            levels[-1] = Level(match.end(), is_condition=True)
            until = text.index("\n", match.end()) if word == "until" else None
        elif word in ("then", "do"):
            end()
        elif word in ("(", "[", "{"):
            is_condition = level.whole is not None and word == "(" and not _is_call(text, match.start())
            levels.append(Level(match.end(), is_condition=is_condition))
        elif word in (")", "]", "}"):
            if level.whole is not None and level.is_joined:
                add(level.start)
            levels.pop()
        elif word == "and" or (word == "or" and level.whole is not None):
            add(level.start)
            level.start, level.is_joined = match.end(), True
        elif word in RESTARTS:
            level.start = match.end()
        after = match.end()
    return sorted(found)


def _is_call(text: str, at: int) -> bool:
    """Return whether the parenthesis at a position begins arguments; one after a keyword does not."""
    words = text[:at].split()
    return bool(words) and words[-1] not in KEYWORDS and CALLED.search(words[-1]) is not None
