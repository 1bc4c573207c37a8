"""Which jobs: the options by which commands that look at many jobs choose them, and the search they become."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from millrace.cli.text import moment
from millrace.domain.check import check_id, check_name
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Job
from millrace.domain.request import Page, Query
from millrace.runtime.app import App
from millrace.runtime.fingerprint import fingerprint
from millrace.runtime.jobs import WORDS, read_state

PAGE = 500


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
    error: Annotated[
        str | None,
        typer.Option("--error", help="Dead of this error: a fingerprint from `millrace dead`.", metavar="FINGERPRINT"),
    ] = None

    @property
    def given(self) -> bool:
        return any(value is not None for value in vars(self).values())


def read_query(chosen: Filter, now: int, archived: bool | None = False) -> Query:
    """The search, checked before any of it is asked of the store."""
    if chosen.error is not None and chosen.status is None:
        chosen.status = "dead"
    state, archived = read_state(chosen.status, archived)
    if chosen.queue is not None:
        check_name("queue", chosen.queue)
    if chosen.task is not None:
        check_name("task", chosen.task)
    for what in ("group", "key"):
        if getattr(chosen, what) is not None:
            check_id(what, getattr(chosen, what))
    return Query(
        queue=chosen.queue,
        task=chosen.task,
        state=state,
        group=chosen.group,
        key=chosen.key,
        enqueued_from=None if chosen.since is None else moment("--since", chosen.since, now),
        enqueued_to=None if chosen.until is None else moment("--until", chosen.until, now),
        archived=archived,
    )


async def page_of(app: App, query: Query, error: str | None = None, shard: str | None = None) -> Page:
    """One page. It may come back short, even empty, when looking for it was much work: go on from its cursor."""
    try:
        page = await (app.jobs.page(query) if shard is None else _in_shard(app, query, shard))
    except (OverflowError, ValueError) as wrong:
        if isinstance(wrong, InvalidInput):
            raise
        raise InvalidInput(f"{query.cursor!r} is not a cursor of this store; use one that it gave out") from None
    if error is None:
        return page
    return msgspec.structs.replace(page, jobs=tuple(job for job in page.jobs if fingerprint(job) == error))


async def _in_shard(app: App, query: Query, shard: str) -> Page:
    store = await app.connected()
    find = getattr(store, "find_in_shard", None)
    if find is None:
        raise InvalidInput(f"--shard: {store.url} has no shards; stores on s3:// and file:// have. Leave it out")
    page: Page = await find(query, shard)
    return page


async def matching(app: App, query: Query, error: str | None = None) -> AsyncIterator[Job]:
    """Every job that the search finds, page by page."""
    query = msgspec.structs.replace(query, limit=PAGE)
    while True:
        page = await page_of(app, query, error)
        for job in page.jobs:
            yield job
        if page.cursor is None:
            return
        query = msgspec.structs.replace(query, cursor=page.cursor)
