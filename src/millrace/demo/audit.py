"""The audit: what the shop was promised, checked against the store's own history of every job.

It trusts nobody's counters. Every check walks the events, or the records, and says what it found in words.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from millrace.demo.shop import RATES
from millrace.domain.event import Event, Kind
from millrace.domain.job import FINISHED, Job

_GRANTS = (Kind.CLAIMED, Kind.RECLAIMED)
SHOWN = 3
TICK = f"cron:{RATES}:"  # the id of a tick's job is made of the schedule and the instant


@dataclass(frozen=True)
class Check:
    """One promise, whether it was kept, and by which figures."""

    name: str
    ok: bool
    text: str


@dataclass(frozen=True)
class Evidence:
    events: Sequence[Event]  # all of them, in the order of the store
    jobs: Sequence[Job]  # the records as they stand at the end
    accepted: frozenset[str]  # ids that an enqueue has acknowledged
    rates: dict[str, tuple[float, float]]  # queue → jobs per second, burst
    killed: str | None = None  # a worker that was killed, long enough ago for its leases to have run out


def audit(evidence: Evidence) -> list[Check]:
    return [
        _nothing_lost(evidence),
        _one_at_a_time(evidence.events),
        _in_order(evidence),
        _parents_first(evidence),
        _ticks(evidence.events),
        *(_rate(evidence.events, queue, *limit) for queue, limit in evidence.rates.items()),
        *([] if evidence.killed is None else [_recovered(evidence.events, evidence.killed)]),
    ]


def cut_off(events: Iterable[Event], worker: str) -> tuple[set[int], dict[int, int]]:
    """Jobs that a worker claimed and never settled: those that it still holds, and when each other was taken over."""
    held: set[int] = set()
    taken: dict[int, int] = {}
    for event in events:
        if event.kind is Kind.CLAIMED and event.worker == worker:
            held.add(event.seq)
        elif event.seq in held and event.state != "running":
            held.discard(event.seq)
        elif event.seq in held and event.kind is Kind.RECLAIMED:
            held.discard(event.seq)
            taken[event.seq] = event.at
    return held, taken


def _recovered(events: Iterable[Event], worker: str) -> Check:
    held, taken = cut_off(events, worker)
    wrong = [f"{len(held)} of its jobs were never taken over"] if held else []
    return _check("the killed worker's jobs were recovered", wrong, f"{len(taken):,} taken over by others")


def _nothing_lost(evidence: Evidence) -> Check:
    """Accepted = completed + dead + cancelled + live: by the events, the records, and what producers were told."""
    states: dict[int, str] = {}
    wrong: list[str] = []
    numbers: dict[int, int] = {}
    for event in evidence.events:
        if event.n != numbers.get(event.seq, 0) + 1:
            wrong.append(f"{event.job}: event {event.n} follows event {numbers.get(event.seq, 0)}")
        numbers[event.seq] = event.n
        states[event.seq] = event.state
    records = {job.seq: job.state.value for job in evidence.jobs}
    told = {event.job for event in evidence.events if event.kind is Kind.ENQUEUED}
    wrong += [f"{job}: accepted, and not in the history" for job in sorted(evidence.accepted - told)]
    wrong += [
        f"number {seq}: {states.get(seq)} by its events, {records.get(seq)} by its record"
        for seq in sorted(states.keys() | records.keys())
        if states.get(seq) != records.get(seq)
    ]
    count = Counter(states.values())
    live = count["waiting"] + count["running"]
    sums = f"{len(states):,} accepted = {count['completed']:,} completed + {count['dead']:,} dead"
    sums += f" + {count['cancelled']:,} cancelled + {live:,} still to do"
    return _check("no job was lost", wrong, sums)


def _one_at_a_time(events: Iterable[Event]) -> Check:
    """A job is claimed only while nobody holds it, and only its holder writes what became of it."""
    holder: dict[int, str | None] = {}
    ended: set[int] = set()
    wrong: list[str] = []
    runs = 0
    for event in events:
        held = holder.get(event.seq)
        if event.kind is Kind.CLAIMED:
            runs += 1
            if held is not None:
                wrong.append(f"{event.job}: claimed by {event.worker} while {held} was its lease")
            if event.seq in ended:
                wrong.append(f"{event.job}: claimed after it had ended")
        elif event.kind not in _GRANTS and held is not None and event.lease not in (None, held):
            wrong.append(f"{event.job}: {event.kind.value} under a lease that was not its own")
        if event.kind in _GRANTS:
            holder[event.seq] = event.lease
        elif event.state != "running":
            holder[event.seq] = None
        if event.state in FINISHED:
            ended.add(event.seq)
        elif event.kind is Kind.REPLAYED:
            ended.discard(event.seq)
    return _check("no job ran twice at the same time", wrong, f"{runs:,} runs, each under a lease of its own")


def _in_order(evidence: Evidence) -> Check:
    """In a pool, a customer's next job starts only when the one before it has ended, retries included."""
    member = {job.seq: job for job in evidence.jobs if job.lane is not None and job.spec.group is not None}
    open_by: dict[str, int] = {}
    last: dict[str, int] = defaultdict(int)
    wrong: list[str] = []
    for event in evidence.events:
        job = member.get(event.seq)
        if job is None or job.spec.group is None:
            continue
        customer = job.spec.group
        if event.kind is Kind.CLAIMED:
            if open_by.get(customer, event.seq) != event.seq:
                wrong.append(f"{customer}: {event.job} began before number {open_by[customer]} had ended")
            if event.seq < last[customer]:
                wrong.append(f"{customer}: number {event.seq} began after number {last[customer]}")
            open_by[customer] = last[customer] = event.seq
        elif event.state in FINISHED:
            open_by.pop(customer, None)
    customers = len({job.spec.group for job in member.values()})
    return _check("customers' orders kept their order", wrong, f"{len(member):,} steps of {customers} customers")


def _parents_first(evidence: Evidence) -> Check:
    done: set[str] = set()
    after = {job.seq: job.spec.after for job in evidence.jobs if job.spec.after}
    wrong: list[str] = []
    for event in evidence.events:
        if event.kind is Kind.COMPLETED:
            done.add(event.job)
        elif event.kind is Kind.CLAIMED and not done.issuperset(after.get(event.seq, ())):
            wrong.append(f"{event.job}: began before what it waits for was done")
    return _check("jobs waited for what they depend on", wrong, f"{len(after):,} jobs with dependencies")


def _ticks(events: Iterable[Event]) -> Check:
    """Two workers had a scheduler each, and one of them was killed: yet no second is missing or there twice."""
    ticks = [
        datetime.fromisoformat(event.job.removeprefix(TICK))
        for event in events
        if event.kind is Kind.ENQUEUED and event.job.startswith(TICK)
    ]
    wrong = [
        f"the tick after {one:%H:%M:%S} was that of {other:%H:%M:%S}"
        for one, other in pairwise(sorted(ticks))
        if other - one != timedelta(seconds=1)
    ]
    return _check("the schedule ticked once a second", wrong, f"{len(ticks)} ticks, none doubled, none left out")


def _rate(events: Iterable[Event], queue: str, rate: float, burst: float) -> Check:
    """Tokens by the store's clock: never more starts in any span of time than the rate and one burst allow."""
    starts = [event.at for event in events if event.kind is Kind.CLAIMED and event.queue == queue]
    tokens, before = burst, starts[0] if starts else 0
    wrong: list[str] = []
    for number, at in enumerate(starts, 1):
        tokens = min(burst, tokens + (at - before) * rate / 1000) - 1
        before = at
        if tokens < -rate / 1000 - 0.01:  # the store counts parts of a millisecond, its events do not
            wrong.append(f"start {number} came too early")
    return _check(f"{queue} kept to its rate", wrong, f"{len(starts):,} starts, at most {rate:g} a second")


def _check(name: str, wrong: list[str], figures: str) -> Check:
    if not wrong:
        return Check(name, True, figures)
    more = f" (and {len(wrong) - SHOWN:,} more)" if len(wrong) > SHOWN else ""
    return Check(name, False, "; ".join(wrong[:SHOWN]) + more)
