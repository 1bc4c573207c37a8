"""A page of the documentation as a program: its python blocks, one after the other, and what each prints.

A page is read from top to bottom, so its blocks share names as if they were typed into `python -m asyncio`, where
`await` may stand anywhere. A block that has its own `asyncio.run` is a program of its own; one that begins with a
comment such as `# shop.py` is that file, for the blocks after it to import.

What a page says is printed has to be printed: the comment after a `print(…)`, and the `text` block after a block.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")
SHORT = 200  # characters of words, such as "It prints:", between a block and its output
SAID = re.compile(r"^\s*print\(.*\)  # (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """`line` is where its text begins in the page, so that a traceback points there."""

    text: str
    line: int
    output: str | None  # the text block right after it

    @property
    def file(self) -> str | None:
        found = FILE.match(self.text)
        return found and found[1]

    @property
    def is_program(self) -> bool:
        return "asyncio.run(" in self.text

    @property
    def said(self) -> list[str]:
        return SAID.findall(self.text)


def blocks_of(page: str, language: str = "python") -> list[Block]:
    found = list(BLOCK.finditer(page))
    after = dict(pairwise(found))
    return [
        Block(match[2], page.count("\n", 0, match.start(2)), output_after(match, after.get(match), page))
        for match in found
        if match[1] == language
    ]


def output_after(match: re.Match[str], after: re.Match[str] | None, page: str) -> str | None:
    if after is None or after[1] != "text":
        return None
    between = page[match.end() : after.start()]
    return None if "\n#" in between or len(between) > SHORT else after[2]


class Session:
    """Runs the blocks of a page in a folder of its own; `printed` answers what was printed since it last did."""

    def __init__(self, page: Path, folder: Path, printed: Callable[[], str]) -> None:
        self.page = page
        self.folder = folder
        self.module = types.ModuleType("page")  # annotations are looked up in the module of a class
        self._printed = printed

    async def run(self, block: Block) -> str:
        source = "\n" * block.line + block.text
        if block.file is not None:
            (self.folder / block.file).write_text(source, encoding="utf-8")
            return ""
        if block.is_program:
            return self._program(source)
        code = compile(source, str(self.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        answer = types.FunctionType(code, self.module.__dict__)()
        if inspect.iscoroutine(answer):
            await answer
        return self._printed()

    def _program(self, source: str) -> str:
        file = self.folder / "program.py"
        file.write_text(source, encoding="utf-8")
        command = [sys.executable, "-W", "error", str(file)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=580)
        assert done.returncode == 0, done.stderr
        return done.stdout


def assert_printed(block: Block, printed: str) -> None:
    """Everything the page says, in the page's order; a line it says nothing of may stand between."""
    if block.output is not None:
        assert printed == block.output
    lines = iter(printed.splitlines())
    missing = [said for said in block.said if said not in lines]  # `in` moves the iterator on
    assert missing == [], f"not printed, or not in this order; printed was:\n{printed}"
