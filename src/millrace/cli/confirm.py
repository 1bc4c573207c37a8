"""The options --yes and --dry-run, and the rule when a command asks for confirmation."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from millrace.cli.session import CommandSession
from millrace.domain.errors import InvalidInput


@dataclass
class Confirmation:
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False

    def asks(self, session: CommandSession) -> bool:
        """Return whether to ask for confirmation: only on a terminal, and not with --json or --dry-run."""
        return not (self.dry_run or session.output.json) and sys.stdin.isatty() and sys.stderr.isatty()

    def check(self) -> None:
        if self.yes and self.dry_run:
            raise InvalidInput("--yes and --dry-run cannot be used together")
