"""The invariants: one checker that every suite shares.

It judges plain `Evidence`, so that its own tests can hand it doctored evidence and see each violation found.
`gather` reads the evidence from any store, through the protocol alone, at a quiet moment.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import LIVE, Job, State, word
from millrace.domain.request import Query, QueueCounts
from millrace.domain.settings import QueueSettings, StoreSettings
from millrace.store.protocol import Store


class Pause(msgspec.Struct, frozen=True):
    """A queue was paused from the moment the pause was acknowledged until its end was asked for."""

    queue: str
    since: int
    until: int


class Evidence(msgspec.Struct):
    """Everything there is to see of a store.

    `since` is an instant before which there was nothing: together with `keep_events` it tells whether events can
    have been trimmed. `steady` says that the clock stood still while the evidence was gathered, so that the words
    derived from it can be counted. `fixed_limits` says that no limit was changed while jobs ran, so that the most
    that ever ran can be judged, not only what runs now. `steps_overlap` is what the store says of itself.
    """

    jobs: list[Job]
    events: list[Event]
    counts: list[QueueCounts]
    settings: dict[str, QueueSettings]
    now: int
    keep_events: int | None = None
    since: int | None = None
    steady: bool = True
    fixed_limits: bool = False
    pauses: tuple[Pause, ...] = ()
    steps_overlap: bool = False

    @property
    def whole(self) -> bool:
        """Is the feed certain to hold every event there ever was?"""
        return self.keep_events is None or (self.since is not None and self.now - self.keep_events < self.since)


class Violation(msgspec.Struct, frozen=True):
    """Which promise was broken, for which job (or queue), and how."""

    name: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.where}: {self.text}"


async def gather(store: Store, *, since: int | None = None, fixed_limits: bool = False) -> Evidence:
    """Read the evidence; nobody else may be at work on the store meanwhile."""
    before = await store.now()
    counts = await store.count()
    settings: dict[str, QueueSettings] = {}
    for row in counts:
        found = await store.control("queue", row.queue, {})
        assert isinstance(found, QueueSettings)
        settings[row.queue] = found
    kept = await store.control("store", "", {})
    assert isinstance(kept, StoreSettings)
    jobs, events = await _all_jobs(store), await _all_events(store)
    now = await store.now()
    return Evidence(
        jobs,
        events,
        counts,
        settings,
        now,
        kept.keep_events,
        since,
        steady=before == now,
        fixed_limits=fixed_limits,
        steps_overlap=store.steps_overlap,
    )


def check(evidence: Evidence) -> list[Violation]:
    """Every violation of every invariant; none, when all is well."""
    # Imported here, because both judge evidence and name violations as defined above.
    from millrace.testing.invariants_lines import check_lines
    from millrace.testing.invariants_lives import check_lives

    return [
        *check_lives(evidence),
        *check_lines(evidence),
        *_check_counts(evidence),
        *_check_limits(evidence),
        *_check_keys(evidence),
    ]


def assert_holds(evidence: Evidence) -> None:
    """Raise an AssertionError that names what was violated, if anything was."""
    violations = check(evidence)
    if violations:
        shown = "\n".join(f"  {violation}" for violation in violations[:20])
        raise AssertionError(f"{len(violations)} violations of the invariants\n{shown}")


async def _all_jobs(store: Store) -> list[Job]:
    jobs: list[Job] = []
    cursor = None
    while True:
        page = await store.find(Query(archived=None, limit=1_000, cursor=cursor))
        jobs += page.jobs
        if page.cursor is None:
            return jobs
        cursor = page.cursor


async def _all_events(store: Store) -> list[Event]:
    events: list[Event] = []
    cursor = None
    while True:
        page = await store.events(cursor, 1_000)
        if not page.events:
            return events
        events += page.events
        cursor = page.cursor


def _check_counts(evidence: Evidence) -> Iterable[Violation]:
    """Counts equal a recount (E-09)."""
    recount = {name: dict.fromkeys(_COUNTED, 0) for name in evidence.settings}
    for job in evidence.jobs:
        numbers = recount.setdefault(job.queue, dict.fromkeys(_COUNTED, 0))
        numbers[job.state.value] += 1
        numbers["archived"] += job.archived
        if job.state is State.WAITING:
            numbers[word(job, evidence.now)] += 1
    ends = _count_ends(evidence)
    stored = {row.queue: row for row in evidence.counts}
    for name, numbers in recount.items():
        row = stored.get(name, QueueCounts(name))
        for what, number in numbers.items():
            if (evidence.steady or what not in _WORDS) and getattr(row, what) != number:
                yield Violation("counts", name, f"{what} is {getattr(row, what)}, a recount gives {number}")
        for what, number in ends.get(name, {"processed": 0, "died": 0}).items():
            said = getattr(row, what)
            if said < number or (evidence.whole and said != number):
                yield Violation("counts", name, f"{what} is {said}, the events tell of {number}")


_WORDS = ("blocked", "scheduled", "retrying", "ready")
_COUNTED = ("waiting", "running", "completed", "dead", "cancelled", "archived", *_WORDS)


def _count_ends(evidence: Evidence) -> dict[str, dict[str, int]]:
    ends: dict[str, dict[str, int]] = {}
    for event in evidence.events:
        if event.kind in ("completed", "buried"):
            numbers = ends.setdefault(event.queue, {"processed": 0, "died": 0})
            numbers["processed" if event.kind == "completed" else "died"] += 1
    return ends


def _check_limits(evidence: Evidence) -> Iterable[Violation]:
    """No more jobs run than a queue allows; nothing is claimed while it is paused."""
    running = {row.queue: row.running for row in evidence.counts}
    most = _most_running(evidence) if evidence.fixed_limits else running
    for name, settings in evidence.settings.items():
        if settings.max_running is not None and max(most.get(name, 0), running.get(name, 0)) > settings.max_running:
            text = f"{most.get(name, 0)} jobs ran at once, the limit is {settings.max_running}"
            yield Violation("max_running", name, text)
    for pause in evidence.pauses:
        for event in evidence.events:
            if event.kind == "claimed" and event.queue == pause.queue and pause.since < event.at < pause.until:
                yield Violation("claimed_while_paused", event.job, f"claimed at {event.at} from {pause.queue!r}")


def _most_running(evidence: Evidence) -> dict[str, int]:
    running: dict[int, str] = {}
    now: dict[str, int] = {}
    most: dict[str, int] = {}
    for event in evidence.events:
        if event.kind == "claimed":
            running[event.seq] = event.queue
            now[event.queue] = now.get(event.queue, 0) + 1
            most[event.queue] = max(most.get(event.queue, 0), now[event.queue])
        elif event.state != "running" and running.pop(event.seq, None) is not None:
            now[event.queue] -= 1
    return most


def _check_keys(evidence: Evidence) -> Iterable[Violation]:
    """At most one live job per key; a window may lapse under its owner, so windows are left out (I11)."""
    owners: dict[tuple[str, str], str] = {}
    for job in evidence.jobs:
        if job.state in LIVE and job.spec.key is not None and job.spec.scope != "window":
            other = owners.setdefault((job.queue, job.spec.key), job.id)
            if other != job.id:
                yield Violation("key", job.id, f"holds key {job.spec.key!r} of {job.queue!r}, as does {other!r}")
