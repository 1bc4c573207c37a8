"""The options that select jobs, and the store query that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from millrace.app.app import App
from millrace.app.jobs import WORDS
from millrace.domain.errors import InvalidInput
from millrace.domain.request import Page, Query
from millrace.views import filters
from millrace.views.filters import that_run_after, with_error


def _states(incomplete: str) -> list[str]:
    return [word for word in sorted({*WORDS, "archived"}) if word.startswith(incomplete)]


@dataclass
class _Status:
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            "--state",
            help="ready, running, scheduled, retrying, blocked, waiting (ready, scheduled, retrying or blocked), "
            "completed, dead, cancelled or archived. The names of other queues (pending, active, failed, …) work too.",
            metavar="STATE",
            autocompletion=_states,
        ),
    ] = None


@dataclass
class DeadFilter:
    """Filter options of commands that work only on dead jobs, so there is no --status."""

    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Jobs of this queue.", metavar="NAME")] = None
    task: Annotated[str | None, typer.Option("--task", "--type", help="Jobs of this task.", metavar="NAME")] = None
    group: Annotated[str | None, typer.Option("--group", help="Jobs of this group.", metavar="TEXT")] = None
    key: Annotated[str | None, typer.Option("--key", help="Jobs with this key.", metavar="TEXT")] = None
    tag: Annotated[str | None, typer.Option("--tag", help="Jobs with this tag.", metavar="WORD")] = None
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
        typer.Option(
            "--error", help="Dead with this error: a fingerprint from `millrace dead`.", metavar="FINGERPRINT"
        ),
    ] = None


@dataclass
class Filter(DeadFilter, _Status):
    """All filter options. `status` comes first in the help."""

    @property
    def given(self) -> bool:
        return any(value is not None for value in vars(self).values())


def read_query(chosen: Filter, now: int, archived: bool | None = False) -> Query:
    return filters.read_query(chosen, now, archived, prefix="--")


async def page_of(
    app: App, query: Query, error: str | None = None, shard: str | None = None, after: str | None = None
) -> Page:
    """Return one page of the jobs that match the query, `error` and `after`. If `shard` is given, read only this
    shard.
    """
    if shard is None:
        return await filters.page_of(app, query, error, after)
    try:
        return that_run_after(with_error(await _in_shard(app, query, shard), error), after)
    except (OverflowError, ValueError) as wrong:
        if isinstance(wrong, InvalidInput):
            raise
        raise filters.not_a_cursor(query.cursor) from None


async def _in_shard(app: App, query: Query, shard: str) -> Page:
    store = await app.connected()
    find = getattr(store, "find_in_shard", None)
    if find is None:
        raise InvalidInput(f"--shard is only for stores on s3:// and file://; {store.url} has no shards. Remove it")
    page: Page = await find(query, shard)
    return page
