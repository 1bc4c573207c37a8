"""Finding jobs: the server walks the narrowest index and leaves out what cannot match; the domain judges the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator

from millrace.domain import operate
from millrace.domain.errors import InvalidInput
from millrace.domain.job import ALIASES, Job
from millrace.domain.ledger import without_expired_result
from millrace.domain.request import Page, Partition, Query, matches
from millrace.store.redis.record import jobs_from
from millrace.store.redis.wire import Wire

_PIECE = 1_000  # jobs looked at in one step of the server
_END = 1 << 49
_LIVE, _ENDED, _ALL = [0], [1, 2, 3], [0, 1, 2, 3]
_CLASSES = {"completed": [1], "dead": [2], "cancelled": [3]}


async def find(wire: Wire, query: Query) -> Page:
    if query.state is not None and query.state not in operate.STATE_WORDS:
        raise InvalidInput(f"{query.state!r} is no state; known are: {', '.join(sorted(operate.STATE_WORDS))}")
    after, before = 0, _END
    if query.cursor is not None:
        start = operate.cursor_number(query.cursor)
        after, before = (0, min(start, _END)) if query.newest_first else (start, _END)
    state = None if query.state is None else ALIASES.get(query.state, query.state)
    classes = _CLASSES.get(state, _LIVE) if state is not None else _ENDED if query.only_finished else _ALL
    queues = None if query.queue is None else [query.queue]
    enqueued, finished = (query.enqueued_from, query.enqueued_to), (query.finished_from, query.finished_to)
    sieve = [query.task, query.group, query.key, query.archived, *enqueued, *finished]
    found: list[Job] = []
    scanned = 0
    last: int | None = None
    while len(found) < query.limit and scanned < operate.SEARCH_BUDGET:
        budget = min(_PIECE, operate.SEARCH_BUDGET - scanned)
        wanted = query.limit - len(found)
        now, reached, looked_at, at_end, rows = await wire.ask(
            "find", [queues, classes, after, before, query.newest_first, wanted, budget, sieve]
        )
        found += [without_expired_result(job, now) for job in jobs_from(rows) if matches(job, query, now)]
        scanned += looked_at
        if at_end:
            return Page(tuple(found), None, scanned)
        last = reached
        after, before = (after, reached) if query.newest_first else (reached, before)
    return Page(tuple(found), None if last is None else str(last), scanned)


def partitions(first: int, last: int, n: int) -> list[Partition]:
    """At most n ranges of seq that together hold every job there is now."""
    if first == 0:
        return []
    size = -(-(last - first + 1) // max(1, n))
    return [Partition(f"{start - 1}-{min(last, start + size - 1)}") for start in range(first, last + 1, size)]


async def scan(wire: Wire, after: int, to: int, batch: int) -> AsyncIterator[list[Job]]:
    sieve: list[None] = [None] * 8
    while True:
        now, reached, _, at_end, rows = await wire.ask("find", [None, _ALL, after, to + 1, False, batch, batch, sieve])
        jobs = [without_expired_result(job, now) for job in jobs_from(rows)]
        if jobs:
            yield jobs
        if at_end:
            return
        after = reached
