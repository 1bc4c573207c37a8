"""Searches for jobs. The server scans the smallest index and skips jobs that cannot match; Python filters what it
returns.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from millrace.domain.errors import InvalidInput
from millrace.domain.job import ALIASES, Job
from millrace.domain.ledger import without_expired_result
from millrace.domain.request import Page, Partition, Query, matches
from millrace.domain.rules import operate
from millrace.store.redis.decode import jobs_from
from millrace.store.redis.wire import RedisWire

_PIECE = 500  # jobs that one script call scans
_TAGGED = 100  # jobs that one script call returns for a search by tag
_PATIENCE = 0.1  # seconds after which a search returns a short page
_END = 1 << 49
_LIVE, _ENDED, _ALL = [0], [1, 2, 3], [0, 1, 2, 3]
_CLASSES = {"completed": [1], "dead": [2], "cancelled": [3]}


async def find(wire: RedisWire, query: Query) -> Page:
    if query.state is not None and query.state not in operate.STATE_WORDS:
        raise InvalidInput(f"{query.state!r} is not a state. Known are: {', '.join(sorted(operate.STATE_WORDS))}.")
    after, before = 0, _END
    if query.cursor is not None:
        start = operate.cursor_number(query.cursor)
        after, before = (0, min(start, _END)) if query.newest_first else (start, _END)
    queues, classes, sieve = _wanted(query)
    found: list[Job] = []
    scanned = 0
    last: int | None = None
    until = time.monotonic() + _PATIENCE
    while len(found) < query.limit and scanned < operate.SEARCH_BUDGET:
        budget = min(_PIECE, operate.SEARCH_BUDGET - scanned)
        wanted = query.limit - len(found) if query.tag is None else _TAGGED  # the script does not know tags
        now, reached, looked_at, at_end, rows = await wire.ask(
            "find", [queues, classes, after, before, query.newest_first, wanted, budget, sieve]
        )
        found += [without_expired_result(job, now) for job in jobs_from(rows) if matches(job, query, now)]
        scanned += looked_at
        if len(found) > query.limit:
            del found[query.limit :]
            return Page(tuple(found), str(found[-1].seq), scanned)
        if at_end:
            return Page(tuple(found), None, scanned)
        last = reached
        after, before = (after, reached) if query.newest_first else (reached, before)
        if time.monotonic() > until:
            break
    return Page(tuple(found), None if last is None else str(last), scanned)


def _wanted(query: Query) -> tuple[list[str] | None, list[int], list[Any]]:
    """Return the queues, the classes of states and the sieve that the script `find` takes."""
    state = None if query.state is None else ALIASES.get(query.state, query.state)
    classes = _CLASSES.get(state, _LIVE) if state is not None else _ENDED if query.only_finished else _ALL
    enqueued, finished = (query.enqueued_from, query.enqueued_to), (query.finished_from, query.finished_to)
    sieve = [query.task, query.group, query.key, query.archived, *enqueued, *finished, state]
    return None if query.queue is None else [query.queue], classes, sieve


def partitions(first: int, last: int, n: int) -> list[Partition]:
    """Split the seqs from `first` to `last` into at most `n` ranges. Return an empty list if `first` is 0: there are no
    jobs.
    """
    if first == 0:
        return []
    size = -(-(last - first + 1) // max(1, n))
    return [Partition(f"{start - 1}-{min(last, start + size - 1)}") for start in range(first, last + 1, size)]


async def scan(wire: RedisWire, after: int, to: int, batch: int, query: Query | None) -> AsyncIterator[list[Job]]:
    query = query or Query(archived=None)
    queues, classes, sieve = _wanted(query)
    while True:
        now, reached, _, at_end, rows = await wire.ask(
            "find", [queues, classes, after, to + 1, False, batch, batch, sieve]
        )
        jobs = [without_expired_result(job, now) for job in jobs_from(rows) if matches(job, query, now)]
        if jobs:
            yield jobs
        if at_end:
            return
        after = reached
