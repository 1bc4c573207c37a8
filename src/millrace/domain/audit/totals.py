"""Checks of whole queues: counts, limits on running jobs and rates, pauses, schedules and keys."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import pairwise

from millrace.domain.audit.evidence import Evidence, Violation, violation
from millrace.domain.event import Kind
from millrace.domain.job import LIVE, State, word
from millrace.domain.request import QueueCounts
from millrace.domain.rules.limits import capacity
from millrace.domain.settings import QueueSettings

_WORDS = ("blocked", "scheduled", "retrying", "ready")
_COUNTED = ("waiting", "running", "completed", "dead", "cancelled", "archived", *_WORDS)
_ENDS = {Kind.COMPLETED: "processed", Kind.BURIED: "died"}


def check_counts(evidence: Evidence) -> Iterable[Violation]:
    """Yield a violation for each count of the store that differs from the number of jobs or events."""
    if evidence.counts is None:
        return
    recount: defaultdict[str, Counter[str]] = defaultdict(Counter, {name: Counter() for name in evidence.settings})
    for job in evidence.jobs:
        numbers = recount[job.queue]
        numbers[job.state.value] += 1
        numbers["archived"] += job.archived
        if job.state is State.WAITING:
            numbers[word(job, evidence.now)] += 1
    ends = Counter((event.queue, _ENDS[event.kind]) for event in evidence.events if event.kind in _ENDS)
    stored = {row.queue: row for row in evidence.counts}
    for name, numbers in recount.items():
        row = stored.get(name, QueueCounts(name))
        for what in _COUNTED:
            if (evidence.steady or what not in _WORDS) and getattr(row, what) != numbers[what]:
                yield Violation("counts", name, f"{what} is {getattr(row, what)}, a recount gives {numbers[what]}")
        for what in _ENDS.values():
            said, number = getattr(row, what), ends[name, what]
            if said < number or (evidence.whole and said != number):
                yield Violation("counts", name, f"{what} is {said}, but the events add up to {number}")


def check_limits(evidence: Evidence) -> Iterable[Violation]:
    """Yield a violation if a queue exceeded `max_running` or `rate`, or if a job was claimed from a paused queue."""
    now = {row.queue: row.running for row in evidence.counts or ()}
    most = _most_running(evidence) if evidence.fixed_limits else {}
    for name, settings in evidence.settings.items():
        ran = max(most.get(name, 0), now.get(name, 0))
        if settings.max_running is not None and ran > settings.max_running:
            yield Violation("max_running", name, f"{ran} jobs ran at once, the limit is {settings.max_running}")
        if settings.rate is not None and evidence.fixed_limits:
            yield from _check_rate(evidence, name, settings, settings.rate)
    for pause in evidence.pauses:
        for event in evidence.events[pause.first : pause.last]:
            if event.kind is Kind.CLAIMED and event.queue == pause.queue:
                yield violation(event, "claimed_while_paused", f"claimed at {event.at} from {pause.queue!r}")


def _most_running(evidence: Evidence) -> dict[str, int]:
    running: set[int] = set()
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for event in evidence.events:
        if event.kind is Kind.CLAIMED:
            running.add(event.seq)
            now[event.queue] += 1
            most[event.queue] = max(most[event.queue], now[event.queue])
        elif event.state != "running" and event.seq in running:
            running.remove(event.seq)
            now[event.queue] -= 1
    return most


def _check_rate(evidence: Evidence, queue: str, settings: QueueSettings, rate: float) -> Iterable[Violation]:
    """Yield a violation for each claim that a token bucket with the queue's rate and burst would have refused."""
    parts = 0 if evidence.ordered_to == 0 else rate / 1000  # on a real clock the store counts parts of a millisecond
    burst = tokens = float(capacity(settings))
    before: int | None = None
    for event in evidence.events:
        if event.kind is Kind.CLAIMED and event.queue == queue:
            tokens = min(burst, tokens + (event.at - (before or event.at)) * rate / 1000) - 1
            before = event.at
            if tokens < -parts - 0.01:
                yield violation(event, "rate", f"started too early for {rate:g} a second and a burst of {burst:g}")


def check_schedules(evidence: Evidence) -> Iterable[Violation]:
    """Yield a violation for each missing or repeated tick of a schedule."""
    for prefix, interval in evidence.ticks.items():
        ticks = [
            datetime.fromisoformat(event.job.removeprefix(prefix))
            for event in evidence.events
            if event.kind is Kind.ENQUEUED and event.job.startswith(prefix)
        ]
        for one, other in pairwise(sorted(ticks)):
            if other - one != timedelta(milliseconds=interval):
                yield Violation("schedule", prefix, f"the tick after {one:%H:%M:%S} was that of {other:%H:%M:%S}")


def check_keys(evidence: Evidence) -> Iterable[Violation]:
    """Yield a violation for two live jobs with the same key.

    Keys with scope `window` are left out: a window may end while its job is live.
    """
    owners: dict[tuple[str, str], str] = {}
    for job in evidence.jobs:
        if job.state in LIVE and job.spec.key is not None and job.spec.scope != "window":
            other = owners.setdefault((job.queue, job.spec.key), job.id)
            if other != job.id:
                yield Violation("key", job.id, f"holds key {job.spec.key!r} of {job.queue!r}, as does {other!r}")
