"""Search for jobs: the most selective index returns seqs in order, and the other conditions of the query filter them.

A walk is a statement that reads seqs from an index in order, a limited number at a time. A combination is a (queue,
task, priority).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

from millrace.domain.job import ALIASES, FINISHED, LIVE, Job, State
from millrace.domain.request import Query, matches
from millrace.store.sql.jobs import Jobs
from millrace.store.sql.ports import Statements

END = 1 << 62
_LOOK = 128  # seqs read from an index, and records loaded, per batch
_PATIENCE = 0.1  # seconds; then the page ends, and the search continues with the next page
_ALL = frozenset(State)
_LIVE_WORDS = frozenset({"waiting", "blocked", "scheduled", "retrying", "ready"})

Bounds = tuple[int, int, bool]  # (after, before, newest first): the range of seqs, both ends excluded
Walk = tuple[str, tuple[Any, ...]]  # a statement, and its arguments before the bounds


class Indexes(Protocol):
    """The searches that the indexes of a dialect support."""

    finds_finished: bool  # whether an index finds finished jobs without reading the others

    def walks(self, combos: Iterable[int], states: frozenset[State]) -> list[Walk]:
        """Return walks that find all jobs of these combinations in these states, and possibly jobs in other states."""
        ...

    def seqs_enqueued(self, since: int | None, before: int | None) -> tuple[int, int]:
        """Return (after, before): all jobs that were enqueued in this period have a seq between these two, both
        excluded.
        """
        ...


class Search:
    def __init__(self, statements: Statements, jobs: Jobs, indexes: Indexes) -> None:
        self._db = statements
        self._jobs = jobs
        self._indexes = indexes

    def search(self, query: Query, now: int, budget: int) -> tuple[list[Job], int | None, int]:
        self._jobs.flush()
        found: list[Job] = []
        scanned = last = 0
        until = time.monotonic() + _PATIENCE
        for job in self._records(self._walk_for(query)):
            if len(found) >= query.limit or scanned >= budget:
                return found, last, scanned
            if scanned and scanned % _LOOK == 0 and time.monotonic() > until:
                return found, last, scanned
            scanned += 1
            last = job.seq
            if matches(job, query, now):
                found.append(job)
        return found, None, scanned

    def scan(self, after: int, to: int, limit: int) -> list[Job]:
        self._jobs.flush()
        return list(self._records(self._db.seqs("walk_all", after, to + 1, limit), limit))

    def seq_bounds(self) -> tuple[int, int]:
        self._jobs.flush()
        first, last = self._db.rows("seq_bounds")[0]
        return (0, 0) if first is None else (first, last)

    def walk(self, combos: Iterable[int], states: frozenset[State]) -> Iterator[Job]:
        """Yield the jobs of these combinations in these states, by seq. Jobs in other states may be among them."""
        self._jobs.flush()
        return self._records(self._merged(combos, states, (0, END, False)))

    def _records(self, seqs: Iterable[int], look: int = _LOOK) -> Iterator[Job]:
        walk = iter(seqs)
        while part := list(islice(walk, look)):
            self._jobs.prefetch_seqs(part)
            for seq in part:
                job = self._jobs.by_seq(seq)
                if job is not None:
                    yield job

    def _walk_for(self, query: Query) -> Iterable[int]:
        bounds = self._bounds(query)
        after, before, back = bounds
        if query.key is not None:
            return self._seqs("walk_key", (query.key,), bounds)
        if query.group is not None:
            return self._seqs("walk_group", (query.group,), bounds)
        state = None if query.state is None else ALIASES.get(query.state, query.state)
        if state == State.RUNNING:
            running = [seq for seq in self._db.seqs("running_seqs") if after < seq < before]
            return sorted(running, reverse=back)
        only_finished = query.only_finished and self._indexes.finds_finished
        if state is None and query.queue is None and query.task is None and not only_finished:
            return self._seqs("walk_all", (), bounds)
        combos = self._db.seqs("all_combos", query.queue, query.task)
        return self._merged(combos, _states(state, query), bounds)

    def _bounds(self, query: Query) -> Bounds:
        after, before = 0, END
        if query.enqueued_from is not None or query.enqueued_to is not None:
            after, before = self._indexes.seqs_enqueued(query.enqueued_from, query.enqueued_to)
        if query.cursor is not None:
            if query.newest_first:
                before = min(before, int(query.cursor))
            else:
                after = max(after, int(query.cursor))
        return after, before, query.newest_first

    def _merged(self, combos: Iterable[int], states: frozenset[State], bounds: Bounds) -> Iterable[int]:
        walks = [self._seqs(name, arguments, bounds) for name, arguments in self._indexes.walks(combos, states)]
        return heapq.merge(*walks, reverse=bounds[2])

    def _seqs(self, name: str, arguments: tuple[Any, ...], bounds: Bounds) -> Iterator[int]:
        after, before, back = bounds
        while True:
            seqs = self._db.seqs(name + "_back" if back else name, *arguments, after, before, _LOOK)
            yield from seqs
            if len(seqs) < _LOOK:
                return
            after, before = (after, seqs[-1]) if back else (seqs[-1], before)


def _states(state: str | None, query: Query) -> frozenset[State]:
    """Return the stored states that a job which matches the query can have; `state` is a word such as "ready"."""
    if state is None:
        return FINISHED if query.only_finished else _ALL
    if state in _LIVE_WORDS:
        return frozenset() if query.only_finished else LIVE
    return frozenset({State(state)}) if state in FINISHED else frozenset()
