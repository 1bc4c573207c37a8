"""Reads one page of a list of jobs in limited time. If the time is over, it returns the jobs found so far, and a cursor
to continue from.
"""

from __future__ import annotations

import msgspec

from millrace.app.app import App
from millrace.domain.job import Job
from millrace.domain.request import Page, Query
from millrace.views.filters import page_of, read_query, sorted_by_change, that_run_after, with_error
from millrace.web.deadline import TimeBudget
from millrace.web.requests import ListQuery

BUDGET = 0.15  # seconds
WIDE = 400  # jobs that are read at once if the store cannot apply the filter itself


async def page_for(app: App, wanted: ListQuery, now: int) -> Page:
    search = read_query(wanted, now, archived=None if wanted.all else False)
    by_change = sorted_by_change(wanted.sort, oldest=wanted.oldest)
    search = msgspec.structs.replace(search, newest_first=not wanted.oldest, cursor=wanted.cursor, by_change=by_change)
    jobs: list[Job] = []
    scanned = 0
    budget = TimeBudget(BUDGET)
    while True:
        page = await _step(app, msgspec.structs.replace(search, limit=wanted.limit - len(jobs)), wanted)
        jobs += page.jobs
        scanned += page.scanned
        if page.cursor is None or len(jobs) >= wanted.limit or budget.is_over():
            return Page(tuple(jobs), page.cursor, scanned)
        search = msgspec.structs.replace(search, cursor=page.cursor)


async def _step(app: App, search: Query, wanted: ListQuery) -> Page:
    """Return one page of jobs that match `search` and also the filters `error` and `after`, which stores cannot apply.

    More jobs are read than the page needs, because most may not match. If more jobs match than fit on the page, the
    read is repeated so that it ends at the last job of the page. The cursor of the repeated read points just after this
    job.
    """
    if wanted.error is None and wanted.after is None:
        return await page_of(app, search)
    width = max(WIDE, search.limit)
    while True:
        read = await page_of(app, msgspec.structs.replace(search, limit=width))
        page = that_run_after(with_error(read, wanted.error), wanted.after)
        if len(page.jobs) <= search.limit:
            return page
        width = 1 + read.jobs.index(page.jobs[search.limit - 1])
