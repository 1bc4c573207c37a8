"""Options for the child processes in which a worker runs handlers with process=True.

`--processes` is something else: it starts several workers, each with its own child processes.
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
class ChildOptions:
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
            help="Replace a child after this many attempts (default never).",
        ),
    ] = None
    max_memory_per_child: Annotated[
        str | None,
        typer.Option(
            "--max-memory-per-child",
            metavar="SIZE",
            help="Replace a child that used more memory: 500MB, 2GiB (default never).",
        ),
    ] = None

    def options(self) -> dict[str, Any]:
        """Return the options as keyword arguments of `App.worker`."""
        memory = self.max_memory_per_child
        return {
            "processes": self.child_processes,
            "max_jobs_per_child": self.max_jobs_per_child,
            "max_memory_per_child": None if memory is None else size("--max-memory-per-child", memory),
        }

    def arguments(self) -> list[str]:
        """Return the given options as command-line arguments for another worker process."""
        given = {"--" + name.replace("_", "-"): value for name, value in vars(self).items() if value is not None}
        return [word for flag, value in given.items() for word in (flag, str(value))]


def size(what: str, text: str) -> int:
    """Parse a size and return bytes. 500MB means powers of 1000; 500MiB and 500M mean powers of 1024, as in ulimit and
    docker.
    """
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
