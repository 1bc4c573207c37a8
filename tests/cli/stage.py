"""The command line in this process: what is typed, and what comes out of it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from millrace.cli.root import run


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, str]]:
        """The table it printed, as a pipe sees it."""
        names, *lines = [line.split("\t") for line in self.out.splitlines()]
        return [dict(zip(names, line, strict=True)) for line in lines]


class Stage:
    """`cli("list", "--json")` runs a command in a folder of its own and answers what it wrote."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, url: str = "") -> None:
        self._patch = monkeypatch
        self.url = url

    def __call__(self, *arguments: str, stdin: str | bytes = b"", ok: bool = True) -> Ran:
        ran = self.typed(arguments, stdin.encode() if isinstance(stdin, str) else stdin)
        if ok:
            assert ran.code == 0, ran
        return ran

    def refused(self, *arguments: str, stdin: str | bytes = b"") -> Ran:
        """It did not do it, and said so in words."""
        ran = self(*arguments, stdin=stdin, ok=False)
        assert ran.code != 0, ran
        assert ran.err, ran
        return ran

    def typed(self, arguments: Sequence[str], stdin: bytes = b"") -> Ran:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with self._patch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            code = run(arguments)
        return Ran(code, *(stream.buffer.getvalue().decode("utf-8") for stream in (out, err)))
