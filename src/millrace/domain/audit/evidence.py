"""The input of the audit (`Evidence`) and its output (`Violation`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import Job, Spec, group_line, lane_line
from millrace.domain.request import Enqueued, QueueCounts
from millrace.domain.rules.lanes import lane_of
from millrace.domain.settings import QueueSettings


class Pause(msgspec.Struct, frozen=True):
    """A queue was paused while `Evidence.events[first:last]` were written."""

    queue: str
    first: int
    last: int


class ReportedRun(msgspec.Struct, frozen=True):
    """One run, as its handler recorded it outside of the store. `how` is None while the run has not ended."""

    job: str
    seq: int
    attempt: int
    worker: str
    began: int
    ended: int | None = None
    how: str | None = None


class Evidence(msgspec.Struct):
    """The input of the audit: records and events of a store, and facts from other sources.

    A rule is checked only if the fields that it needs are set.

    - `events`: in the order of the feed.
    - `counts`: the counts that the store returned.
    - `steady`: the clock did not move while counts and records were read, so the counts of `ready` and `scheduled` are
      compared with the records.
    - `since`: no job existed before this instant. `whole` uses this and `keep_events`.
    - `fixed_limits`: no limit and no number of lanes changed while jobs ran, so `settings` apply to all events.
    - `concurrent_writes`: the attribute of the store. Enqueues may overlap, so seqs ascend only within a line.
    - `ordered_to`: a number of milliseconds if the feed has the events of different jobs in the order in which they
      happened. With such a feed, an event may be dated earlier than its predecessor by at most this number (0 for a
      virtual clock). None if this order is not known and cannot be checked.
    - `late_events`: the store has no server, and clients died. The last events of such a client are published later
      than events of other jobs that depend on them, and an event may be repeated. Rules that compare jobs by the order
      of the feed are not checked then; `runs` shows which job ran before which.
    - `specs`: job id → spec, for jobs whose record was deleted.
    - `leases`: lease id → the instant until which the lease is valid.
    - `answers`: token and answer of each enqueue.
    - `runs`: all runs, as handlers recorded them.
    - `lost_workers`: workers that died so long ago that all their jobs must have been reclaimed.
    - `ticks`: for each schedule, id prefix of its jobs → milliseconds between two ticks. After the prefix, an id has
      the instant of its tick in ISO format.
    - `all_ended`: a job that is still waiting or running is a violation.
    """

    jobs: list[Job]
    events: list[Event]
    counts: list[QueueCounts] | None = None
    settings: dict[str, QueueSettings] = {}
    now: int = 0
    keep_events: int | None = None
    since: int | None = None
    steady: bool = True
    fixed_limits: bool = False
    pauses: tuple[Pause, ...] = ()
    concurrent_writes: bool = False
    ordered_to: int | None = None
    late_events: bool = False
    specs: Mapping[str, Spec] = {}
    leases: Mapping[str, int] = {}
    answers: Sequence[tuple[str, Enqueued]] = ()
    runs: Sequence[ReportedRun] | None = None
    lost_workers: tuple[str, ...] = ()
    ticks: Mapping[str, int] = {}
    all_ended: bool = False

    @property
    def whole(self) -> bool:
        """Whether it is certain that retention has deleted no event, so that the feed is complete."""
        return self.keep_events is None or (self.since is not None and self.now - self.keep_events < self.since)


class Violation(msgspec.Struct, frozen=True):
    """A broken rule (`name`), the job or queue that broke it (`where`), and a description (`text`)."""

    name: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.where}: {self.text}"


def violation(event: Event, name: str, text: str) -> Violation:
    return Violation(name, event.job, f"{text} (event {event.n} of seq {event.seq})")


def find_spec(evidence: Evidence) -> Callable[[Event], Spec | None]:
    """Return a function that looks up the spec of an event's job, in the job's record or in `Evidence.specs`."""
    records = {job.seq: job.spec for job in evidence.jobs}
    return lambda event: records.get(event.seq) or evidence.specs.get(event.job)


def find_line(evidence: Evidence) -> Callable[[Event], str | None]:
    """Return a function that looks up the line (lane or group) of an event's job.

    The function returns None if the job has no line or its line is not known. If the record of a job was deleted, its
    lane is known only if the job has a group.
    """
    lines = {job.seq: job.line for job in evidence.jobs}

    def line(event: Event) -> str | None:
        if event.seq in lines:
            return lines[event.seq]
        spec = evidence.specs.get(event.job)
        if spec is None or spec.group is None or spec.hook:
            return None
        lanes = evidence.settings.get(spec.queue, QueueSettings()).lanes
        return group_line(spec.group) if lanes is None else lane_line(lane_of(spec.group, lanes))

    return line


def due_at(event: Event, spec: Spec | None) -> int:
    """Return the earliest instant at which the job may start after this event, which left the job waiting."""
    asked = spec.delay if spec is not None and event.n == 1 else 0
    return event.at + max(event.delay or 0, asked)
