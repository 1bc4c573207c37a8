"""Options of a worker that are about buckets and directories, and who looks after them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from millrace.cli.place import OBJECT_SCHEMES, scheme_of
from millrace.cli.session import Session, url_of
from millrace.domain.errors import InvalidInput
from millrace.store.variables import INDEX_MODES


@dataclass
class OfObjects:
    shards: Annotated[
        str | None,
        typer.Option("--shards", help="On s3:// and file://: take jobs of these shards only.", metavar="0,1,2|0-7"),
    ] = None
    index_mode: Annotated[
        str | None,
        typer.Option("--index-mode", help="There: how claims find jobs (hybrid).", metavar="|".join(INDEX_MODES)),
    ] = None
    no_monitor: Annotated[
        bool, typer.Option("--no-monitor", help="Leave recovery and repair to others, or to millrace monitor.")
    ] = False

    def flags(self) -> dict[str, Any]:
        """As settings take them: None means that a flag was not given."""
        return {"shards": self.shards, "index_mode": self.index_mode, "no_monitor": self.no_monitor or None}

    def check(self, session: Session) -> None:
        """A flag that does nothing would be believed to do something."""
        given = ["--shards"] * (self.shards is not None) + ["--index-mode"] * (self.index_mode is not None)
        if not given:
            return
        url = session.settings["url"] or url_of(session.app())
        if scheme_of(url) not in OBJECT_SCHEMES:
            raise InvalidInput(
                f"{given[0]} is for stores on s3:// and file://; this one is {scheme_of(url)}://. Leave it out"
            )
