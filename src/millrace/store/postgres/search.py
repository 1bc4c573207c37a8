"""Finding jobs: the narrowest index that answers a query gives seqs in order, the rest of the query filters them."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from millrace.domain.job import ALIASES, Job, State
from millrace.domain.request import Query, matches
from millrace.store.postgres.lines import Lines

_END = 1 << 62
_LOOK = 128  # seqs taken from an index, and records loaded, at once
_PATIENCE = 0.1  # seconds after which a search goes on in the next page
_OUT_OF_STEP = 60_000  # milliseconds by which jobs may be enqueued in another order than that of their seqs

Bounds = tuple[int, int, bool]


class Search(Lines):
    def search(self, query: Query, now: int, budget: int) -> tuple[list[Job], int | None, int]:
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
        return list(self._records(self.seqs("walk_all", after, to + 1, limit), limit))

    def seq_bounds(self) -> tuple[int, int]:
        first, last = self.rows("seq_bounds")[0]
        return (0, 0) if first is None else (first, last)

    def walk_queue(self, queue: str, states: frozenset[State]) -> Iterator[Job]:
        """Jobs of a queue by seq; those that cannot be in one of the states may be left out."""
        walks = [self._walk("walk_combo", (combo,), (0, _END, False)) for _, _, combo in self.combos(queue)]
        return self._records(heapq.merge(*walks))

    def _records(self, seqs: Iterable[int], look: int = _LOOK) -> Iterator[Job]:
        walk = iter(seqs)
        while part := list(islice(walk, look)):
            self.prefetch_seqs(part)
            for seq in part:
                job = self.by_seq(seq)
                if job is not None:
                    yield job

    def _walk_for(self, query: Query) -> Iterable[int]:
        bounds = self._bounds(query)
        after, before, back = bounds
        if query.key is not None:
            return self._walk("walk_key", (query.key,), bounds)
        if query.group is not None:
            return self._walk("walk_group", (query.group,), bounds)
        state = None if query.state is None else ALIASES.get(query.state, query.state)
        if state == State.RUNNING:
            running = [seq for seq in self.seqs("running_seqs") if after < seq < before]
            return sorted(running, reverse=back)
        if state is None and query.queue is None and query.task is None:
            return self._walk("walk_all", (), bounds)
        combos = self.seqs("all_combos", query.queue, query.task)
        name = "walk_dead" if state == State.DEAD else "walk_combo"
        return heapq.merge(*(self._walk(name, (combo,), bounds) for combo in combos), reverse=back)

    def _bounds(self, query: Query) -> Bounds:
        """(after, before, newest first): seqs outside are of no interest."""
        after, before = 0, _END
        if query.enqueued_from is not None:
            after = self.value("seq_at", query.enqueued_from - _OUT_OF_STEP) - 1
        if query.enqueued_to is not None:
            before = self.value("seq_at", query.enqueued_to + _OUT_OF_STEP)
        if query.cursor is not None:
            if query.newest_first:
                before = min(before, int(query.cursor))
            else:
                after = max(after, int(query.cursor))
        return after, before, query.newest_first

    def _walk(self, name: str, params: tuple[Any, ...], bounds: Bounds) -> Iterator[int]:
        after, before, back = bounds
        while True:
            seqs = self.seqs(name + "_back" if back else name, *params, after, before, _LOOK)
            yield from seqs
            if len(seqs) < _LOOK:
                return
            after, before = (after, seqs[-1]) if back else (seqs[-1], before)
