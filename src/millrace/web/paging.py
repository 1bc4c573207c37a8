"""A page of a list, in bounded time: full; or what was found until then, and the cursor to go on from."""

from __future__ import annotations

import msgspec

from millrace.domain.job import Job
from millrace.domain.request import Page, Query
from millrace.runtime.app import App
from millrace.runtime.selection import page_of, read_query, that_run_after, with_error
from millrace.web.patience import Patience
from millrace.web.taken import ListQuery

PATIENCE = 0.15  # seconds
WIDE = 400  # jobs that are read at once where no store can leave out what does not fit


async def page_for(app: App, asked: ListQuery, now: int) -> Page:
    search = read_query(asked, now, archived=None if asked.all else False)
    search = msgspec.structs.replace(search, newest_first=not asked.oldest, cursor=asked.cursor)
    jobs: list[Job] = []
    scanned = 0
    patience = Patience(PATIENCE)
    while True:
        page = await _step(app, msgspec.structs.replace(search, limit=asked.limit - len(jobs)), asked)
        jobs += page.jobs
        scanned += page.scanned
        if page.cursor is None or len(jobs) >= asked.limit or patience.is_over():
            return Page(tuple(jobs), page.cursor, scanned)
        search = msgspec.structs.replace(search, cursor=page.cursor)


async def _step(app: App, search: Query, asked: ListQuery) -> Page:
    """What no store knows is judged here, so more is read than is wanted. When more fits too, no more is read than
    holds as much as is wanted: the cursor of that page is the one to go on from."""
    if asked.error is None and asked.after is None:
        return await page_of(app, search)
    width = max(WIDE, search.limit)
    while True:
        read = await page_of(app, msgspec.structs.replace(search, limit=width))
        page = that_run_after(with_error(read, asked.error), asked.after)
        if len(page.jobs) <= search.limit:
            return page
        width = 1 + read.jobs.index(page.jobs[search.limit - 1])
