"""Writes docs/requirements.md: which tests hold which requirement, from the numbers that tests cite.

A test cites its numbers (`W-12`, `BO-05`) in its name, its docstring or a comment; a number in a module's docstring
counts for all its tests. The conformance suite is part of the product and carries no numbers:
`tests/project/conformance.toml` has them. `tests/project/requirements.toml` has one line for each number, and marks
those that are advice and need no test.

    python tools/requirements.py            write docs/requirements.md
    python tools/requirements.py --check    exit 1 when it is out of date, or a number has neither a test nor the mark
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LINES = ROOT / "tests/project/requirements.toml"
PAGE = ROOT / "docs/requirements.md"
CONFORMANCE = ROOT / "tests/project/conformance.toml"
SHOWN = 4  # tests named for a number; the others are counted
_KINDS = "B?[WEOLR]"
_CITED = re.compile(rf"\b({_KINDS})-(\d\d)(?:\s*(?:…|to)\s*(?:\1-)?(\d\d))?")
_IN_NAME = re.compile(r"_(b?[weolr])_?(\d\d)(?=_)")  # test_w40_w32_a_settle_…, test_bo_05_…
_GAP = re.compile(
    r"(?:# |_)([xX][1-5])\b|(?<=test_)([xX][1-5])(?=_)"
)  # gaps that no requirement covers: # X5, test_x1_…
_TITLES = {
    "W": "Ordered pools",
    "E": "Rules of the queue",
    "O": "Queue on an object store",
    "L": "Worker",
    "R": "Producers, results and serialization",
    "BW": "Known mistakes: ordered pools",
    "BE": "Known mistakes: rules of the queue",
    "BO": "Known mistakes: queue on an object store",
    "BL": "Known mistakes: worker",
    "BR": "Known mistakes: producers, results and serialization",
}


class Requirement(NamedTuple):
    number: str
    text: str
    advice: bool


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the table of requirements and the tests that hold them.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something is missing or stale")
    options = parser.parse_args(arguments)
    known, holding = requirements(), holders()
    problems = [
        *unheld(known, holding),
        *(f"{number} is cited and unknown" for number in sorted(holding.keys() - known)),
    ]
    page = rendered(known, holding)
    if not options.check:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        problems.append("docs/requirements.md is out of date. Run: python tools/requirements.py")
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


def requirements() -> dict[str, Requirement]:
    """All requirements by number, in the order of the file."""
    found: dict[str, Requirement] = {}
    for kind, lines in tomllib.loads(LINES.read_text(encoding="utf-8")).items():
        for digits, text in lines.items():
            number = f"{kind}-{digits}"
            found[number] = Requirement(number, text.removeprefix("advice: "), text.startswith("advice: "))
    return found


def unheld(known: Mapping[str, Requirement], holding: Mapping[str, Sequence[str]]) -> list[str]:
    return [
        f"{one.number} is held by no test: {one.text}"
        for one in known.values()
        if not (one.advice or holding.get(one.number))
    ]


def holders(*, gaps: bool = False) -> dict[str, list[str]]:
    """The tests that cite each number, as `path::name`; whole modules as `path`. With `gaps`, also X1 to X5."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for number, test in _cited_in(file):
            found[number].add(test)
    for test, numbers in conformance().items():
        for number in numbers:
            found[number].add(test)
    return {number: sorted(tests, key=_places_last) for number, tests in found.items() if gaps or "-" in number}


def conformance() -> dict[str, list[str]]:
    """The numbers that each conformance test holds, from the file."""
    table = tomllib.loads(CONFORMANCE.read_text(encoding="utf-8"))
    return {
        f"conformance/{module}.py" + ("" if test == "module" else f"::{test}"): numbers.split()
        for module, tests in table.items()
        for test, numbers in tests.items()
    }


def _places_last(test: str) -> tuple[bool, str]:
    return "::" not in test, test


def _cited_in(file: Path) -> Iterator[tuple[str, str]]:
    source = file.read_text(encoding="utf-8")
    if not any(pattern.search(source) for pattern in (_CITED, _IN_NAME, _GAP)):
        return
    path = file.relative_to(ROOT).as_posix()
    tree = ast.parse(source)
    if any(_tests_of(tree)):
        yield from ((number, path) for number in numbers_in(ast.get_docstring(tree) or ""))
    lines = source.splitlines()
    for test in _tests_of(tree):
        first = min([test.lineno, *(one.lineno for one in test.decorator_list)])
        while first > 1 and lines[first - 2].startswith("#"):  # a comment right above it
            first -= 1
        body = "\n".join(lines[first - 1 : test.end_lineno])
        gaps = {(one or other).upper() for one, other in _GAP.findall(body)}
        for number in numbers_in(body) | numbers_in_name(test.name) | gaps:
            yield number, f"{path}::{test.name}"


def _tests_of(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def numbers_in_name(name: str) -> set[str]:
    return {f"{kind.upper()}-{digits}" for kind, digits in _IN_NAME.findall(name)}


def numbers_in(text: str) -> set[str]:
    found: set[str] = set()
    for kind, first, last in _CITED.findall(text):
        found |= {f"{kind}-{digits:02d}" for digits in range(int(first), int(last or first) + 1)}
    return found


def rendered(known: Mapping[str, Requirement], holding: Mapping[str, Sequence[str]]) -> str:
    advice = sum(one.advice for one in known.values())
    parts = [
        "# Requirements and their tests\n",
        "This page lists the requirements of Millrace and the tests that check each of them. There are\n"
        f"{len(known)} requirements: {len(known) - advice} describe behaviour and have tests, {advice} are advice. "
        "Tests under `conformance/` belong to\n`millrace.testing.conformance` and run on every store. "
        "`python tools/requirements.py` writes this page, and a test checks\nthat it is up to date.\n",
    ]
    for kind, title in _TITLES.items():
        rows = [one for one in known.values() if one.number.rpartition("-")[0] == kind]
        parts.append(f"## {title}\n\n| number | requirement | tests |\n|---|---|---|")
        parts += [f"| {one.number} | {one.text} | {_held(one, holding.get(one.number, ()))} |" for one in rows]
        parts.append("")
    return "\n".join(parts)


def _held(one: Requirement, tests: Sequence[str]) -> str:
    if not tests:
        return "advice" if one.advice else "**no test**"
    named = ", ".join(f"`{test}`" for test in tests[:SHOWN])
    more = len(tests) - SHOWN
    return f"{named} and {more} more" if more > 0 else named


if __name__ == "__main__":
    sys.exit(main())
