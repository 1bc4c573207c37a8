"""Filters that select jobs, for the command line and the HTTP API, and the store query for these filters.

`error` (a fingerprint) and `after` (the id of a parent) are not part of the query: they are applied to the jobs that
the store returns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from millrace.app.app import App
from millrace.app.format import moment
from millrace.app.jobs import read_state
from millrace.app.recently_changed import find_page
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Job
from millrace.domain.request import Page, Query
from millrace.domain.rules.check import check_id, check_name, check_tag
from millrace.views.fingerprint import fingerprint

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
    def tag(self) -> str | None: ...
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
    """Return the query for these filters. Raises InvalidInput if a value is invalid.

    `prefix`, for example "--", is put before the name of the filter in the message.
    """
    status = "dead" if chosen.error is not None and chosen.status is None else chosen.status
    state, archived = read_state(status, archived)
    if chosen.queue is not None:
        check_name("queue", chosen.queue)
    if chosen.task is not None:
        check_name("task", chosen.task)
    for what, text in (("group", chosen.group), ("key", chosen.key)):
        if text is not None:
            check_id(what, text)

    if chosen.tag is not None:
        check_tag(chosen.tag)

    def at(name: str, text: str | None) -> int | None:
        typed = prefix + (name.replace("_", "-") if prefix else name)
        return None if text is None else moment(typed, text, now)

    return Query(
        queue=chosen.queue,
        task=chosen.task,
        state=state,
        group=chosen.group,
        key=chosen.key,
        tag=chosen.tag,
        enqueued_from=at("since", chosen.since),
        enqueued_to=at("until", chosen.until),
        finished_from=at("finished_from", chosen.finished_from),
        finished_to=at("finished_to", chosen.finished_to),
        archived=archived,
    )


def not_a_cursor(cursor: str | None) -> InvalidInput:
    return InvalidInput(f"{cursor!r} is not a cursor of this store. Pass one that the store returned.")


def sorted_by_change(sort: str, what: str = "sort", *, oldest: bool = False) -> bool:
    if sort not in ("enqueued", "changed"):
        raise InvalidInput(f"{what} must be enqueued or changed, not {sort!r}")
    if sort == "changed" and oldest:
        raise InvalidInput(f"{what} changed lists the latest changes first; remove {'--' * (what != 'sort')}oldest")
    return sort == "changed"


async def page_of(app: App, query: Query, error: str | None = None, after: str | None = None) -> Page:
    """Return one page of the jobs that match the query, `error` and `after`.

    The page may have few jobs or none although more follow, because a store limits how many jobs it scans per page, and
    `error` and `after` are applied to its jobs afterwards. The last page has no cursor.
    """
    try:
        page = await find_page(await app.connected(), query)
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
    """Yield all jobs that match the query and `error`. They are read page by page."""
    query = msgspec.structs.replace(query, limit=PAGE)
    while True:
        page = await page_of(app, query, error)
        for job in page.jobs:
            yield job
        if page.cursor is None:
            return
        query = msgspec.structs.replace(query, cursor=page.cursor)
