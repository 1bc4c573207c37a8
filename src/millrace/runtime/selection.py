"""Which jobs: the filters by which people choose many of them, and the search they become.

The command line and the HTTP API take the same ones. `error` is a fingerprint, which no store knows, and `after` a job
that others depend on: what a search finds is filtered by them afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from millrace.domain.check import check_id, check_name
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Job
from millrace.domain.request import Page, Query
from millrace.runtime.app import App
from millrace.runtime.fingerprint import fingerprint
from millrace.runtime.jobs import read_state
from millrace.runtime.words import moment

PAGE = 500


class Selection(Protocol):
    @property
    def status(self) -> str | None: ...
    @property
    def queue(self) -> str | None: ...
    @property
    def task(self) -> str | None: ...
    @property
    def group(self) -> str | None: ...
    @property
    def key(self) -> str | None: ...
    @property
    def since(self) -> str | None: ...
    @property
    def until(self) -> str | None: ...
    @property
    def finished_from(self) -> str | None: ...
    @property
    def finished_to(self) -> str | None: ...
    @property
    def error(self) -> str | None: ...


def read_query(chosen: Selection, now: int, archived: bool | None = False, *, prefix: str = "") -> Query:
    """The search, checked before any of it is asked of the store; `prefix` is how a filter's name was typed."""
    status = "dead" if chosen.error is not None and chosen.status is None else chosen.status
    state, archived = read_state(status, archived)
    if chosen.queue is not None:
        check_name("queue", chosen.queue)
    if chosen.task is not None:
        check_name("task", chosen.task)
    for what, text in (("group", chosen.group), ("key", chosen.key)):
        if text is not None:
            check_id(what, text)

    def at(name: str, text: str | None) -> int | None:
        typed = prefix + (name.replace("_", "-") if prefix else name)
        return None if text is None else moment(typed, text, now)

    return Query(
        queue=chosen.queue,
        task=chosen.task,
        state=state,
        group=chosen.group,
        key=chosen.key,
        enqueued_from=at("since", chosen.since),
        enqueued_to=at("until", chosen.until),
        finished_from=at("finished_from", chosen.finished_from),
        finished_to=at("finished_to", chosen.finished_to),
        archived=archived,
    )


def not_a_cursor(cursor: str | None) -> InvalidInput:
    return InvalidInput(f"{cursor!r} is not a cursor of this store; use one that it gave out")


async def page_of(app: App, query: Query, error: str | None = None, after: str | None = None) -> Page:
    """One page. It may come back short, even empty, when looking for it was much work: go on from its cursor."""
    try:
        page = await app.jobs.page(query)
    except (OverflowError, ValueError) as wrong:
        if isinstance(wrong, InvalidInput):
            raise
        raise not_a_cursor(query.cursor) from None
    return that_run_after(with_error(page, error), after)


def that_run_after(page: Page, parent: str | None) -> Page:
    if parent is None:
        return page
    return msgspec.structs.replace(page, jobs=tuple(job for job in page.jobs if parent in job.spec.after))


def with_error(page: Page, error: str | None) -> Page:
    if error is None:
        return page
    return msgspec.structs.replace(page, jobs=tuple(job for job in page.jobs if fingerprint(job) == error))


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
