"""Options for the children in which a worker runs handlers with process=True.

Not to be mixed up with `--processes`, which starts several workers: each of those has children of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from millrace.domain.errors import InvalidInput

SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE | re.ASCII)
LEAST_MEMORY = 1 << 20


@dataclass
class Children:
    child_processes: Annotated[
        int | None,
        typer.Option(
            "--child-processes",
            min=1,
            max=10_000,
            metavar="N",
            help="Children for handlers with process=True (slots, at most one per processor).",
        ),
    ] = None
    max_jobs_per_child: Annotated[
        int | None,
        typer.Option(
            "--max-jobs-per-child",
            min=1,
            metavar="N",
            help="Replace a child after so many attempts (never).",
        ),
    ] = None
    max_memory_per_child: Annotated[
        str | None,
        typer.Option(
            "--max-memory-per-child", metavar="SIZE", help="Replace a child that has held more: 500MB, 2GiB (never)."
        ),
    ] = None

    def options(self) -> dict[str, Any]:
        """As a worker takes them."""
        memory = self.max_memory_per_child
        return {
            "processes": self.child_processes,
            "max_jobs_per_child": self.max_jobs_per_child,
            "max_memory_per_child": None if memory is None else size("--max-memory-per-child", memory),
        }

    def arguments(self) -> list[str]:
        """As another command line takes them."""
        given = {"--" + name.replace("_", "-"): value for name, value in vars(self).items() if value is not None}
        return [word for flag, value in given.items() for word in (flag, str(value))]


def size(what: str, text: str) -> int:
    """Bytes, from what people type: 500MB is decimal, 500MiB and 500M are powers of two, as ulimit and docker count."""
    found = SIZE.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(f"{what} takes a size such as 500MB or 2GiB, not {text!r}")
    number, unit, binary = found[1], (found[2] or "").lower(), bool(found[3])
    decimal = bool(unit) and not binary and text.strip().lower().endswith("b")
    power = " kmgt".index(unit or " ")
    amount = int(float(number) * (1000 if decimal else 1024) ** power)
    if not LEAST_MEMORY <= amount < 1 << 62:
        raise InvalidInput(f"{what} must be from 1MiB to 4EiB, not {text!r}")
    return amount
