"""Jobs in the order of their last change, most recent first.

No store has an index for this order, because every transition of every job would have to update it. The event feed
already has the changes in order. So the feed is read backwards, and a job is listed at its latest event. Jobs without
an event within `keep_events` are not listed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.domain.request import Page, Query, matches
from millrace.store.protocol import Store

AT_ONCE = 1_000  # events read in one piece
JOBS = 200  # jobs read at a time
BUDGET = 5_000  # events read for one page


async def find_page(store: Store, query: Query) -> Page:
    """Return one page of a search. To get the next page, set `cursor` of the query to the cursor of this page."""
    return await (recently_changed(store, query) if query.by_change else store.find(query))


async def recently_changed(store: Store, query: Query) -> Page:
    """Return one page of jobs that match the query, the most recently changed first.

    The number of events read for one page is limited. So a page may have few jobs or none although more follow:
    continue from its cursor until the cursor is None.
    """
    now = await store.now()
    found: list[Job] = []
    scanned = 0
    cursor = query.cursor
    while True:
        events, cursor = await store.events_before(cursor, AT_ONCE)
        scanned += len(events)
        async for before, job in _changed_last(store, events):
            if matches(job, query, now):
                found.append(job)
                if len(found) >= query.limit:
                    return Page(tuple(found), before, scanned)
        if cursor is None or scanned >= BUDGET:
            return Page(tuple(found), cursor, scanned)


async def _changed_last(store: Store, events: Sequence[tuple[str, Event]]) -> AsyncIterator[tuple[str, Job]]:
    """Yield (cursor before the event, job) for each event that is the latest event of its job."""
    for start in range(0, len(events), JOBS):
        some = events[start : start + JOBS]
        known = await store.get(sorted({event.job for _, event in some}))
        jobs = {(job.seq, job.events): job for job in known if job is not None}
        for cursor, event in some:
            job = jobs.get((event.seq, event.n))
            if job is not None:
                yield cursor, job
