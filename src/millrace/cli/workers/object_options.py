"""Options of a worker that apply only to buckets and directories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from millrace.cli.session import CommandSession, url_of
from millrace.cli.store_url import OBJECT_SCHEMES, scheme_of
from millrace.domain.errors import InvalidInput
from millrace.store.variables import INDEX_MODES


@dataclass
class ObjectOptions:
    shards: Annotated[
        str | None,
        typer.Option("--shards", help="s3:// and file:// only: claim from these shards.", metavar="0,1,2|0-7"),
    ] = None
    index_mode: Annotated[
        str | None,
        typer.Option(
            "--index-mode",
            help="s3:// and file:// only: how claims find jobs (default hybrid).",
            metavar="|".join(INDEX_MODES),
        ),
    ] = None
    no_monitor: Annotated[
        bool,
        typer.Option("--no-monitor", help="Turn off recovery and repair; other workers or millrace monitor do it."),
    ] = False

    def flags(self) -> dict[str, Any]:
        """Return the options as settings. The value of a flag that was not given is None."""
        return {"shards": self.shards, "index_mode": self.index_mode, "no_monitor": self.no_monitor or None}

    def check(self, session: CommandSession) -> None:
        """Raise InvalidInput if a flag was given that has no effect on the configured store."""
        given = ["--shards"] * (self.shards is not None) + ["--index-mode"] * (self.index_mode is not None)
        if not given:
            return
        url = session.settings["url"] or url_of(session.app())
        if scheme_of(url) not in OBJECT_SCHEMES:
            raise InvalidInput(
                f"{given[0]} is only for stores on s3:// and file://; this store is {scheme_of(url)}://. Remove it"
            )
