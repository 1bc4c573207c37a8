"""Finding jobs: the narrowest index that answers a query gives seqs in order, the rest of the query filters them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from millrace.domain.job import ALIASES, Job, State
from millrace.domain.request import Query, matches
from millrace.store.sqlite.lines import Lines
from millrace.store.sqlite.record import NUMBER

_END = 1 << 62
_LOOK = 128  # seqs taken from an index, and records loaded, at once

_ENDED = {state.value: NUMBER[state] for state in (State.COMPLETED, State.DEAD, State.CANCELLED)}
_LIVE = frozenset({"waiting", "blocked", "scheduled", "retrying", "ready"})


class Search(Lines):
    def seqs(self, name: str, params: Mapping[str, Any]) -> list[int]:
        return [seq for (seq,) in self.rows(name, params)]

    def search(self, query: Query, now: int, budget: int) -> tuple[list[Job], int | None, int]:
        self.flush()
        found: list[Job] = []
        scanned = last = 0
        for job in self._records(self._walk_for(query)):
            if len(found) >= query.limit or scanned >= budget:
                return found, last, scanned
            scanned += 1
            last = job.seq
            if matches(job, query, now):
                found.append(job)
        return found, None, scanned

    def scan(self, after: int, to: int, limit: int) -> list[Job]:
        self.flush_jobs()
        return list(self._records(self.seqs("walk_all", {"after": after, "before": to + 1, "limit": limit})))

    def seq_bounds(self) -> tuple[int, int]:
        self.flush()
        first, last = self.rows("seq_bounds")[0]
        return (0, 0) if first is None else (first, last)

    def walk_queue(self, queue: str, states: frozenset[State]) -> Iterator[Job]:
        """Jobs of a queue by seq; those that cannot be in one of the states may be left out."""
        walks = self._walks_of(
            [combo for _, _, combo in self.combos(queue)],
            [number for name, number in _ENDED.items() if State(name) in states],
            live=State.WAITING in states or State.RUNNING in states,
            bounds=(0, _END, False),
        )
        return self._records(heapq.merge(*walks))

    def _records(self, seqs: Iterable[int]) -> Iterator[Job]:
        walk = iter(seqs)
        while part := list(islice(walk, _LOOK)):
            self.prefetch_seqs(part)
            for seq in part:
                job = self.by_seq(seq)
                if job is not None:
                    yield job

    def _walk_for(self, query: Query) -> Iterable[int]:
        bounds = self._bounds(query)
        after, before, back = bounds
        if query.key is not None:
            return self._walk("walk_key", {"text": query.key}, bounds)
        if query.group is not None:
            return self._walk("walk_group", {"text": query.group}, bounds)
        state = None if query.state is None else ALIASES.get(query.state, query.state)
        if state == State.RUNNING:
            running = [seq for seq in self.seqs("running_seqs", {}) if after < seq < before]
            return sorted(running, reverse=back)
        if state is None and query.queue is None and query.task is None and not query.only_finished:
            return self._walk("walk_all", {}, bounds)
        combos = self.seqs("all_combos", {"queue": query.queue, "task": query.task})
        ended = list(_ENDED.values()) if state is None else [_ENDED[state]] if state in _ENDED else []
        live = not query.only_finished and (state is None or state in _LIVE)
        walks = self._walks_of(combos, ended, live=live, bounds=bounds)
        return heapq.merge(*walks, reverse=back)

    def _bounds(self, query: Query) -> tuple[int, int, bool]:
        """(after, before, newest first): seqs outside are of no interest."""
        after, before = 0, _END
        if query.enqueued_from is not None or query.enqueued_to is not None:
            window = {"from": query.enqueued_from or 0, "to": _END if query.enqueued_to is None else query.enqueued_to}
            first, last = self.rows("span_bounds", window)[0]
            after, before = (0, 0) if first is None else (first * 1024 - 1, (last + 1) * 1024)
        if query.cursor is not None:
            if query.newest_first:
                before = min(before, int(query.cursor))
            else:
                after = max(after, int(query.cursor))
        return after, before, query.newest_first

    def _walks_of(
        self, combos: list[int], ended: list[int], *, live: bool, bounds: tuple[int, int, bool]
    ) -> list[Iterator[int]]:
        walks = [self._walk("walk_live", {"combo": combo}, bounds) for combo in combos if live]
        for combo in combos:
            walks += [self._walk("walk_ended", {"combo": combo, "state": state}, bounds) for state in ended]
        return walks

    def _walk(self, name: str, params: Mapping[str, Any], bounds: tuple[int, int, bool]) -> Iterator[int]:
        after, before, back = bounds
        limit = _LOOK
        while True:
            where = {"after": after, "before": before, "limit": limit}
            seqs = self.seqs(name + "_back" if back else name, {**params, **where})
            yield from seqs
            if len(seqs) < limit:
                return
            after, before = (after, seqs[-1]) if back else (seqs[-1], before)
