"""Which jobs: the options by which commands that look at many jobs choose them, and the search they become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from millrace.domain.errors import InvalidInput
from millrace.domain.request import Page, Query
from millrace.runtime import selection
from millrace.runtime.app import App
from millrace.runtime.jobs import WORDS
from millrace.runtime.selection import PAGE, matching, that_run_after, with_error

__all__ = ["PAGE", "Filter", "matching", "page_of", "read_query"]


def _states(incomplete: str) -> list[str]:
    return [word for word in sorted({*WORDS, "archived"}) if word.startswith(incomplete)]


@dataclass
class Filter:
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            "--state",
            help="ready, running, scheduled, retrying, blocked, waiting (those that are to run), completed, dead, "
            "cancelled or archived; other queues' words (pending, active, failed, …) are understood.",
            metavar="STATE",
            autocompletion=_states,
        ),
    ] = None
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Of this queue.", metavar="NAME")] = None
    task: Annotated[str | None, typer.Option("--task", "--type", help="Of this task.", metavar="NAME")] = None
    group: Annotated[str | None, typer.Option("--group", help="Of this group.", metavar="TEXT")] = None
    key: Annotated[str | None, typer.Option("--key", help="Under this key.", metavar="TEXT")] = None
    since: Annotated[
        str | None,
        typer.Option("--since", help="Enqueued since: 15m (ago), 2d, or 2026-01-31T14:30Z.", metavar="WHEN"),
    ] = None
    until: Annotated[str | None, typer.Option("--until", help="Enqueued before.", metavar="WHEN")] = None
    finished_from: Annotated[
        str | None,
        typer.Option("--finished-from", help="Finished since: 15m (ago), 2d, or 2026-01-31T14:30Z.", metavar="WHEN"),
    ] = None
    finished_to: Annotated[str | None, typer.Option("--finished-to", help="Finished before.", metavar="WHEN")] = None
    error: Annotated[
        str | None,
        typer.Option("--error", help="Dead of this error: a fingerprint from `millrace dead`.", metavar="FINGERPRINT"),
    ] = None

    @property
    def given(self) -> bool:
        return any(value is not None for value in vars(self).values())


def read_query(chosen: Filter, now: int, archived: bool | None = False) -> Query:
    return selection.read_query(chosen, now, archived, prefix="--")


async def page_of(
    app: App, query: Query, error: str | None = None, shard: str | None = None, after: str | None = None
) -> Page:
    """One page of the store, or of one shard of it."""
    if shard is None:
        return await selection.page_of(app, query, error, after)
    try:
        return that_run_after(with_error(await _in_shard(app, query, shard), error), after)
    except (OverflowError, ValueError) as wrong:
        if isinstance(wrong, InvalidInput):
            raise
        raise selection.not_a_cursor(query.cursor) from None


async def _in_shard(app: App, query: Query, shard: str) -> Page:
    store = await app.connected()
    find = getattr(store, "find_in_shard", None)
    if find is None:
        raise InvalidInput(f"--shard: {store.url} has no shards; stores on s3:// and file:// have. Leave it out")
    page: Page = await find(query, shard)
    return page
