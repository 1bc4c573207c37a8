"""Whether something is to be done at all: shown first, done when somebody agrees."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from millrace.cli.session import Session
from millrace.domain.errors import InvalidInput


@dataclass
class Agreed:
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it, and do not ask.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show; do not even ask.")] = False

    def asks(self, session: Session) -> bool:
        """Where there is somebody to ask."""
        return not (self.dry_run or session.output.json) and sys.stdin.isatty() and sys.stderr.isatty()

    def check(self) -> None:
        if self.yes and self.dry_run:
            raise InvalidInput("--yes does it and --dry-run does not: say one of them")
