"""The ledger's jobs and their history, built from objects that were read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from millrace.domain.event import Event, Kind
from millrace.domain.job import FINISHED, LIVE, Job, State
from millrace.domain.rules.transition import keep_for_children
from millrace.domain.tables import Past, Place
from millrace.store.object.engine.numbers import Numbers
from millrace.store.object.engine.objects import SeenObject
from millrace.store.object.engine.values import FeedEvent, JobValue, Trimmed, job_value
from millrace.store.object.engine.view import Need, View
from millrace.store.object.keys import Layout, name_of

FIRST = 10  # dependents that are read first


class IndexFacts(msgspec.Struct, frozen=True, gc=False):
    """The properties of a job that determine its index keys and its triggers."""

    index_key: str = ""
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
    after: tuple[str, ...] = ()  # the ids it depends on, while its record exists
    failed_parent: str | None = None

    @classmethod
    def of(cls, value: JobValue) -> IndexFacts:
        job = value.job
        if job is None:
            return cls(value.index_key, parents=value.parents, past=value.past)
        waiting = job.state is State.WAITING
        return cls(
            value.index_key,
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
            tuple(dict.fromkeys(job.spec.after)),
            job.failed_parent,
        )

    @property
    def triggers(self) -> tuple[tuple[str, int | None], ...]:
        """The times at which this job must be checked, as pairs (trigger family, time). None as time means no check."""
        return ("due", self.outside), ("due", self.expires), ("upkeep", self.retry), ("upkeep", self.result)


def is_outside(job: Job) -> bool:
    """Return whether the job has not joined its group or lane yet, because it is not due."""
    return job.line is not None and not (job.in_line or job.holds or job.blocked or job.open)


class Record:
    """The object of one job during an evaluation. `seen` is the object as it was read; changes are made to `value`."""

    __slots__ = ("dirty", "ended", "item", "seen", "value", "was")

    def __init__(self, seen: SeenObject, value: JobValue) -> None:
        self.seen = seen
        self.value = value
        self.was = IndexFacts.of(value)
        self.dirty = False
        self.item: str | None = None  # the item that changed the record
        self.ended = False  # finished within this evaluation

    @property
    def job(self) -> Job | None:
        return self.value.job


class TableOptions(msgspec.Struct, frozen=True):
    """What an operation needs from the tables, besides the objects that it names."""

    counting: bool = False  # queue rows have counters, found by listing; claims and settles do not need them
    looks_at_time: bool = False  # admit and expire what has become due, which needs its own listing
    pins_lines: bool = False  # write every line that is read, so that concurrent changes are detected
    imports: bool = False  # the store is closed, and stays closed
    queues: frozenset[str] = frozenset()  # the queues of a claim, as spelled in keys
    keys_by_seq: Mapping[int, str] = {}  # seq -> object, for jobs that the operation names by seq


class JobTable:
    """The jobs, by id and by seq. `keys_by_seq` maps a seq to the key of the job's object.

    There is no global index by seq, so every stored reference to a job contains both the seq and the key.
    """

    def __init__(self, view: View, now: int, numbers: Numbers, options: TableOptions) -> None:
        self.view = view
        self.options = options
        self.layout: Layout = view.layout
        self.now = now
        self.numbers = numbers
        self.keys_by_seq = dict(options.keys_by_seq)
        self.records: dict[str, Record] = {}
        self.feed_events: list[FeedEvent] = []
        self.opened: Counter[Place] = Counter()
        self.awaited: dict[str, tuple[State, int]] = {}  # ended parents (state, seq) whose children must be updated
        self.recalled: set[str] = set()  # replayed parents whose dead children must be replayed
        self.carriers: list[str] = []  # jobs whose transition may be written together with the new jobs
        self.links: list[tuple[str, str]] = []  # objects that must be written together
        self.new_dependents: defaultdict[str, list[Record]] = defaultdict(list)  # by parent
        self.item: str | None = None  # the object of the current item
        self._stamp: int | None = None
        self._draws = 0

    @property
    def stamp(self) -> int:
        """The stamp of this operation in the feed. It is drawn when it is first needed."""
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
                self.keys_by_seq[record.job.seq] = key
                self.numbers.seqs.seen(record.job.seq)
            if record.value.events:
                self.follow(record.value.events[-1].stamp)
        elif record.dirty and self.item is not None and record.item != self.item:
            self.links.append((key, self.item))  # the decision depends on another item's change: write both or neither
        return record

    def follow(self, stamp: int) -> None:
        """Make this operation's stamp higher than `stamp`, so that the events of a job stay in order even if clocks
        differ.
        """
        self.numbers.stamps.seen(stamp)
        if self._stamp is not None and self._stamp <= stamp:
            raise Need

    def touch(self, record: Record) -> None:
        record.dirty = True
        record.item = self.item

    def record_of(self, job_id: str) -> Record:
        return self.record(self.layout.job(job_id))

    def prefetch_ids(self, ids: Iterable[str]) -> None:
        self.view.want(self.layout.job(job_id) for job_id in ids)

    def prefetch_seqs(self, seqs: Iterable[int]) -> None:
        self.view.want(self.keys_by_seq[seq] for seq in seqs if seq in self.keys_by_seq)

    def all_unknown(self, ids: Iterable[str]) -> bool:
        ids = list(ids)
        self.prefetch_ids(ids)
        values = (self.record_of(job_id).value for job_id in ids)
        return all(value.job is None and not value.past and not value.awaited for value in values)

    def by_id(self, job_id: str) -> Job | None:
        return self.record_of(job_id).job

    def by_seq(self, seq: int) -> Job | None:
        key = self.keys_by_seq.get(seq)
        job = None if key is None else self.record(key).job
        return job if job is not None and job.seq == seq else None

    def next_seqs(self, count: int) -> list[int]:
        """Return `count` new seqs. A repeated evaluation gets the same seqs again, because names of objects contain
        them.
        """
        drawn, first = self.view.drawn, self._draws
        self._draws += count
        while len(drawn) < self._draws:
            drawn.append(self.numbers.seqs.draw(self.now))
        return drawn[first : self._draws]

    def insert(self, job: Job) -> None:
        record = self.record_of(job.spec.id)
        record.value.job = job
        record.value.data = None
        record.value.recalls = False
        self.touch(record)
        record.ended = False
        self.keys_by_seq[job.seq] = record.seen.key
        self.links += [(record.seen.key, carrier) for carrier in self.carriers]

    def insert_all(self, jobs: Sequence[Job], events: Sequence[Event]) -> None:
        for job, event in zip(jobs, events, strict=True):
            self.insert(job)
            self.append(event)

    insert_open = insert_all

    def update(self, job: Job) -> None:
        record = self.record_of(job.spec.id)
        if record.job is not job:
            return  # its record was removed in this step
        self.touch(record)
        record.ended = job.state in FINISHED
        if self.item is not None and self.item != record.seen.key:
            self.links.append((record.seen.key, self.item))
        if job.failed_parent is not None and job.failed_parent != record.was.failed_parent:
            self._await(job.failed_parent, record)

    def delete(self, job: Job) -> None:
        record = self.record_of(job.spec.id)
        record.value.job = None
        record.value.data = None
        record.value.parents = ()
        self.touch(record)

    def hand_out(self, job: Job) -> Job:
        return msgspec.structs.replace(job)

    def changed_jobs(self) -> list[Job]:
        """Return the jobs that this evaluation has changed. These changes are not in the indexes yet."""
        return [record.job for record in self.records.values() if record.dirty and record.job is not None]

    # history

    def append(self, event: Event) -> None:
        record = self.record_of(event.job)
        value = record.value
        if event.kind is not Kind.ENQUEUED:
            self.carriers.append(record.seen.key)
        if event.kind is Kind.REPLAYED:
            value.recalls = False  # set again by a replay that needs it
        feed_event = FeedEvent(self.stamp, len(self.feed_events), event)
        value.events = (*value.events, feed_event)
        self.feed_events.append(feed_event)

    def history(self, job_id: str) -> list[Event]:
        value = self.record_of(job_id).value
        known = {past.seq for past in value.past} | ({value.job.seq} if value.job is not None else set())
        kept = [one for one in self._kept(value) if one.event.seq in known]
        return [one.event for one in sorted(kept, key=lambda one: (one.event.seq, one.event.n))]

    def _kept(self, value: JobValue) -> Iterable[FeedEvent]:
        cut = self.trimmed()
        parts = self.view.parts(value.spilled)
        events = [*(one for key in value.spilled for one in parts[key]), *value.events]
        return [one for one in events if one.position > cut.position]

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
        record = self.record(self.keys_by_seq[child])
        record.value.parents = (*record.value.parents, parent)
        self.touch(record)
        self._await(parent, record)

    def _await(self, parent: str, record: Record) -> None:
        """Set the flag `awaited` on the parent's record, because another job depends on it."""
        awaited = self.record_of(parent)
        self.new_dependents[parent].append(record)
        self.links.append((record.seen.key, awaited.seen.key))
        if not awaited.value.awaited:
            awaited.value.awaited = True
            self.touch(awaited)

    def drop_dependency(self, parent: str, child: int) -> None:
        record = self.record(self.keys_by_seq[child])
        record.value.parents = tuple(kept for kept in record.value.parents if kept != parent)
        self.touch(record)

    def children(self, parent: str) -> list[int]:
        """Return the seqs of jobs that wait for this id. If its job ended in this step, return those that this step has
        added.

        The other children of a job that ended are updated later, one by one, so that ten thousand children need no
        single large write.
        """
        record = self.record_of(parent)
        if not record.value.awaited:
            return []
        job = record.job
        if record.ended and job is not None:
            self.awaited[parent] = (job.state, job.seq)
            if job.result is not None and not job.has_dependents and self._is_awaited(parent):
                keep_for_children(job, job.finished_at or 0)
            return self._waiting(parent, self.new_dependents[parent])
        return self.waiting_for(parent)

    def _is_awaited(self, parent: str) -> bool:
        """Return whether a job waits for this id. Children that were added in this step are included; no listing has
        them yet.
        """
        if any(parent in child.value.parents for child in self.new_dependents[parent]):
            return True
        return self._any_dependent(parent, lambda child: parent in child.value.parents)

    def waiting_for(self, parent: str) -> list[int]:
        """Return the seqs of jobs whose record says that they wait for this id."""
        return self._waiting(parent, self._dependents(parent))

    def _waiting(self, parent: str, records: Iterable[Record]) -> list[int]:
        waiting: list[int] = []
        for record in records:
            job = record.job
            if job is not None and job.state is State.WAITING and parent in record.value.parents:
                self.keys_by_seq[job.seq] = record.seen.key
                waiting.append(job.seq)
        return waiting

    def _dependents(self, parent: str, most: int | None = None) -> list[Record]:
        """Return the records of jobs that depend on this id. With `most`, use only the first `most` index keys."""
        named: list[tuple[int, str]] = []
        for key in self.view.keys(f"deps/{name_of(parent)}/", most):
            number, _, name = key.split("/")[2].partition(".")
            named.append((int(number), self.layout.job_by_name(name)))
        self.view.want(key for _, key in named)
        records = [(seq, self.record(key)) for seq, key in named]
        return [record for seq, record in records if record.job is not None and record.job.seq == seq]

    def _any_dependent(self, parent: str, wanted: Callable[[Record], bool]) -> bool:
        """Return whether `wanted` is true for any dependent. A few dependents are read before all of them."""
        return any(map(wanted, self._dependents(parent, FIRST))) or any(map(wanted, self._dependents(parent)))

    def is_needed(self, parent: str) -> bool:
        return self._any_dependent(parent, lambda child: child.job is not None and child.job.state in LIVE)

    def dead_dependents(self, parents: Sequence[str]) -> list[int]:
        """Return an empty list, because this store does not replay dead children in the same step. Set the flag
        `recalls` on the parents' records instead.

        The children are replayed later, one by one, by this operation or by the sweep.
        """
        for parent in parents:
            record = self.record_of(parent)
            if record.value.awaited:
                record.value.recalls = True
                self.touch(record)
                self.recalled.add(parent)
        return []

    def parents(self, child: int) -> list[str]:
        return list(self.record(self.keys_by_seq[child]).value.parents)
