"""Events in memory: the feed, each job's history, and what is remembered of jobs that are gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millrace.domain.event import Event
from millrace.domain.heap import IndexedHeap
from millrace.domain.job import Job
from millrace.domain.tables import Past
from millrace.store.memory.jobs import JobTable


class HistoryTable(JobTable):
    def __init__(self, shards: int) -> None:
        super().__init__(shards)
        self._feed: list[Event] = []
        self._trimmed = 0
        self._histories: dict[int, tuple[Event, ...]] = {}  # tuples: the collector lets go of those
        self._past: dict[str, list[Past]] = {}
        self._past_order: IndexedHeap[int] = IndexedHeap()
        self._past_by_seq: dict[int, Past] = {}

    def all_unknown(self, ids: Iterable[str]) -> bool:
        jobs, past = self._jobs, self._past
        return not any(job_id in jobs or job_id in past for job_id in ids)

    def insert_open(self, jobs: Sequence[Job], events: Sequence[Event]) -> None:
        for job, event in zip(jobs, events, strict=True):
            self.insert(job)
            self.append(event)
            self.update(job)

    def append(self, event: Event) -> None:
        self._feed.append(event)
        self._histories[event.seq] = (*self._histories.get(event.seq, ()), event)

    def history(self, job_id: str) -> list[Event]:
        seqs = [past.seq for past in self._past.get(job_id, ())]
        job = self._jobs.get(job_id)
        if job is not None:
            seqs.append(job.seq)
        return [event for seq in sorted(seqs) for event in self._histories.get(seq, ())]

    def feed(self, after: int, limit: int) -> list[tuple[int, Event]]:
        start = after - self._trimmed
        return list(enumerate(self._feed[start : start + limit], after + 1))

    def feed_bounds(self) -> tuple[int, int]:
        return self._trimmed, self._trimmed + len(self._feed)

    def trim_events(self, before: int, limit: int) -> int:
        count = 0
        for event in self._feed[:limit]:
            if event.at > before:
                break
            count += 1
            rest = self._histories.pop(event.seq)[1:]
            if rest:
                self._histories[event.seq] = rest
        del self._feed[:count]
        self._trimmed += count
        return count

    def past(self, job_id: str) -> list[Past]:
        return self._past.get(job_id, [])

    def add_past(self, past: Past) -> None:
        self._past.setdefault(past.id, []).append(past)
        self._past_by_seq[past.seq] = past
        self._past_order.push(past.seq, (past.gone_at, past.seq))

    def stale_past(self, before: int, limit: int) -> list[Past]:
        return [self._past_by_seq[seq] for seq in self._past_order.smallest(limit, before)]

    def drop_past(self, past: Past) -> None:
        rest = [kept for kept in self._past[past.id] if kept.seq != past.seq]
        if rest:
            self._past[past.id] = rest
        else:
            del self._past[past.id]
        del self._past_by_seq[past.seq]
        self._past_order.remove(past.seq)
