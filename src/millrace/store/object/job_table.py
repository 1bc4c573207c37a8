"""The ledger's jobs, as objects that were read, and their history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from millrace.domain.event import Event, Kind
from millrace.domain.job import FINISHED, Job, State
from millrace.domain.tables import Past
from millrace.store.object.keys import Layout, name_of
from millrace.store.object.numbers import Numbers
from millrace.store.object.objects import Seen
from millrace.store.object.values import Filed, JobValue, Trimmed, job_value
from millrace.store.object.view import Need, View, nothing_more


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What the indexes know of a job."""

    filed: str = ""
    lease: str | None = None
    outside: int | None = None
    expires: int | None = None
    retry: int | None = None
    result: int | None = None
    seq: int = 0
    parents: tuple[str, ...] = ()
    past: tuple[Past, ...] = ()
    queue: str = ""
    task: str = ""
    line: str | None = None
    data: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: JobValue) -> Facts:
        job = value.job
        if job is None:
            return cls(value.filed, parents=value.parents, past=value.past)
        waiting = job.state is State.WAITING
        return cls(
            value.filed,
            job.lease_id,
            job.available_at if waiting and is_outside(job) else None,
            job.expires_at if waiting else None,
            job.next_retry_at,
            job.result_until,
            job.seq,
            value.parents,
            value.past,
            job.queue,
            job.task,
            job.line,
            tuple((value.data or {}).values()),
        )


def is_outside(job: Job) -> bool:
    """Does a member of a group wait outside its line until it is due?"""
    return job.line is not None and not (job.in_line or job.holds or job.blocked or job.open)


class Record:
    """One job's object during a run: the value as it was read stays in `seen`, this one is changed."""

    __slots__ = ("dirty", "ended", "item", "seen", "value", "was")

    def __init__(self, seen: Seen, value: JobValue) -> None:
        self.seen = seen
        self.value = value
        self.was = Facts.of(value)
        self.dirty = False
        self.item: str | None = None  # the item that changed it
        self.ended = False  # finished within this run

    @property
    def job(self) -> Job | None:
        return self.value.job


class JobTable:
    """`places` says which object a seq belongs to: no store-wide index by seq exists, every pointer carries both."""

    def __init__(self, view: View, now: int, numbers: Numbers) -> None:
        self.view = view
        self.layout: Layout = view.layout
        self.now = now
        self.numbers = numbers
        self.places: dict[int, str] = {}
        self.records: dict[str, Record] = {}
        self.filed: list[Filed] = []
        self.opened: Counter[str] = Counter()
        self.awaited: dict[str, tuple[State, int]] = {}  # parents that ended (how, seq), whose children are to be told
        self.carriers: list[str] = []  # whose transitions the jobs that are now made may come with
        self.links: list[tuple[str, str]] = []  # objects that must be written together
        self.item: str | None = None  # the object of the item that is being decided
        self._stamp: int | None = None
        self._draws = 0

    @property
    def stamp(self) -> int:
        """Of this operation, in the feed: drawn when it first writes an event."""
        if self._stamp is None:
            self._stamp = self.numbers.stamps.draw(self.now)
        return self._stamp

    def trimmed(self) -> Trimmed:
        raise NotImplementedError

    # jobs

    def record(self, key: str) -> Record:
        record = self.records.get(key)
        if record is None:
            seen = self.view.object(key)
            record = self.records[key] = Record(seen, job_value(seen.value, self.view.large))
            if record.job is not None:
                self.places[record.job.seq] = key
                self.numbers.seqs.seen(record.job.seq)
            if record.value.events:
                self.follow(record.value.events[-1].stamp)
        elif record.dirty and self.item is not None and record.item != self.item:
            self.links.append((key, self.item))  # decided by what another item is about to do: together or not at all
        return record

    def follow(self, stamp: int) -> None:
        """What happens to a job comes after what has happened to it, also in the feed, whoever's clock is ahead."""
        self.numbers.stamps.seen(stamp)
        if self._stamp is not None and self._stamp <= stamp:
            raise Need(nothing_more)

    def touch(self, record: Record) -> None:
        record.dirty = True
        record.item = self.item

    def record_of(self, job_id: str) -> Record:
        return self.record(self.layout.job(job_id))

    def prefetch_ids(self, ids: Iterable[str]) -> None:
        self.view.want(self.layout.job(job_id) for job_id in ids)

    def prefetch_seqs(self, seqs: Iterable[int]) -> None:
        self.view.want(self.places[seq] for seq in seqs if seq in self.places)

    def all_unknown(self, ids: Iterable[str]) -> bool:
        ids = list(ids)
        self.prefetch_ids(ids)
        values = (self.record_of(job_id).value for job_id in ids)
        return all(value.job is None and not value.past and not value.awaited for value in values)

    def by_id(self, job_id: str) -> Job | None:
        return self.record_of(job_id).job

    def by_seq(self, seq: int) -> Job | None:
        key = self.places.get(seq)
        job = None if key is None else self.record(key).job
        return job if job is not None and job.seq == seq else None

    def next_seqs(self, count: int) -> list[int]:
        """The same ones in the same order when the run is repeated: names are made of them."""
        drawn, first = self.view.drawn, self._draws
        self._draws += count
        while len(drawn) < self._draws:
            drawn.append(self.numbers.seqs.draw(self.now))
        return drawn[first : self._draws]

    def insert(self, job: Job) -> None:
        record = self.record_of(job.spec.id)
        record.value.job = job
        record.value.data = None
        self.touch(record)
        record.ended = False
        self.places[job.seq] = record.seen.key
        self.links += [(record.seen.key, carrier) for carrier in self.carriers]

    def insert_open(self, jobs: Sequence[Job], events: Sequence[Event]) -> None:
        for job, event in zip(jobs, events, strict=True):
            self.insert(job)
            self.append(event)

    def update(self, job: Job) -> None:
        record = self.record_of(job.spec.id)
        if record.job is not job:
            return  # its record has been removed in this very step
        self.touch(record)
        record.ended = job.state in FINISHED

    def delete(self, job: Job) -> None:
        record = self.record_of(job.spec.id)
        record.value.job = None
        record.value.data = None
        record.value.parents = ()
        self.touch(record)

    def hand_out(self, job: Job) -> Job:
        return msgspec.structs.replace(job)

    def changed_jobs(self) -> list[Job]:
        """Those that this run has changed so far, of which no index tells yet."""
        return [record.job for record in self.records.values() if record.dirty and record.job is not None]

    # history

    def append(self, event: Event) -> None:
        record = self.record_of(event.job)
        value = record.value
        if event.kind is not Kind.ENQUEUED:
            self.carriers.append(record.seen.key)
        filed = Filed(self.stamp, len(self.filed), event)
        value.events = (*value.events, filed)
        self.filed.append(filed)

    def history(self, job_id: str) -> list[Event]:
        value = self.record_of(job_id).value
        known = {past.seq for past in value.past} | ({value.job.seq} if value.job is not None else set())
        kept = [filed for filed in self._kept(value) if filed.event.seq in known]
        return [filed.event for filed in sorted(kept, key=lambda filed: (filed.event.seq, filed.event.n))]

    def _kept(self, value: JobValue) -> Iterable[Filed]:
        cut = self.trimmed()
        parts = self.view.parts(value.spilled)
        events = [*(filed for key in value.spilled for filed in parts[key].events), *value.events]
        return [filed for filed in events if (filed.stamp, filed.place) > (cut.stamp, cut.place)]

    def past(self, job_id: str) -> list[Past]:
        return list(self.record_of(job_id).value.past)

    def add_past(self, past: Past) -> None:
        record = self.record_of(past.id)
        record.value.past = (*record.value.past, past)
        self.touch(record)

    def stale_past(self, before: int, limit: int) -> list[Past]:
        found: list[Past] = []
        names = []
        for key in self.view.keys("gone/", 1_000):
            at, _, name = key.split("/")[2].split(".")
            if int(at) > before:
                break
            names.append(name)
        keys = [self.layout.job_by_name(name) for name in dict.fromkeys(names)]
        self.view.want(keys)
        for key in keys:
            found += [past for past in self.record(key).value.past if past.gone_at <= before]
        return sorted(found, key=lambda past: (past.gone_at, past.seq))[:limit]

    def drop_past(self, past: Past) -> None:
        record = self.record_of(past.id)
        record.value.past = tuple(kept for kept in record.value.past if kept.seq != past.seq)
        self.touch(record)

    # dependencies

    def add_dependency(self, parent: str, child: int) -> None:
        record = self.record(self.places[child])
        record.value.parents = (*record.value.parents, parent)
        self.touch(record)
        awaited = self.record_of(parent)
        self.links.append((record.seen.key, awaited.seen.key))
        if not awaited.value.awaited:
            awaited.value.awaited = True
            self.touch(awaited)

    def drop_dependency(self, parent: str, child: int) -> None:
        record = self.record(self.places[child])
        record.value.parents = tuple(kept for kept in record.value.parents if kept != parent)
        self.touch(record)

    def children(self, parent: str) -> list[int]:
        """Who waits for this id. Those of a job that ended in this very step are told afterwards, one by one, so that
        an end with ten thousand dependents is not one write of ten thousand objects."""
        record = self.record_of(parent)
        if not record.value.awaited:
            return []
        if record.ended and record.job is not None:
            self.awaited[parent] = (record.job.state, record.job.seq)
            return []
        return self.waiting_for(parent)

    def waiting_for(self, parent: str) -> list[int]:
        """Seqs of jobs whose own record says that they wait for this id."""
        named: list[tuple[int, str]] = []
        for key in self.view.keys(f"deps/{name_of(parent)}/"):
            number, _, name = key.split("/")[2].partition(".")
            named.append((int(number), self.layout.job_by_name(name)))
        self.view.want(key for _, key in named)
        waiting: list[int] = []
        for seq, key in named:
            record = self.record(key)
            job = record.job
            if job is not None and job.seq == seq and job.state is State.WAITING and parent in record.value.parents:
                self.places[seq] = key
                waiting.append(seq)
        return waiting

    def parents(self, child: int) -> list[str]:
        return list(self.record(self.places[child]).value.parents)
