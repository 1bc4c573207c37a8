"""A week of a shop, made up: daily waves, quiet nights, an incident, a slow customer, workers that come and go.

A history that a store could have written (the audit holds on it), for pictures and tests of the report. Equal seeds
give equal weeks.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millrace.domain.event import Event, Kind
from millrace.domain.outcome import Failure
from tests.spark.lake.history import ListFeed

BEGIN = 1_793_577_600_000  # Monday 2026-11-02, 00:00 UTC
HOUR = 3_600_000
DAY = 24 * HOUR
INCIDENT = BEGIN + 2 * DAY + 14 * HOUR  # Wednesday, 14:00: the payment gateway is away for 80 minutes
INCIDENT_END = INCIDENT + 80 * 60_000
WORKERS = tuple(f"worker-{name}" for name in ("ams-1", "ams-2", "fra-1", "fra-2", "spot-1"))
SLOTS = 2
BUSY = 0.27  # of the slots, on average: at noon they have more than they can do
GROUPS = ("acme", "globex", "initech", "umbrella", "hooli", "stark", "wayne", "wonka")

# queue, task, weight, median run in ms, spread, chance of failure, most attempts
TASKS = (
    ("mail", "send_receipt", 34, 240, 0.5, 0.004, 5),
    ("mail", "send_newsletter", 22, 160, 0.4, 0.002, 5),
    ("images", "make_thumbnail", 20, 900, 0.6, 0.006, 4),
    ("billing", "charge_card", 14, 700, 0.5, 0.012, 4),
    ("reports", "sales_report", 10, 25_000, 0.7, 0.02, 3),
    ("search", "index_product", 12, 420, 0.5, 0.003, 5),
)
MEAN_RUN = sum(weight * median for _, _, weight, median, *_ in TASKS) / sum(weight for _, _, weight, *_ in TASKS)


@dataclass(order=True)
class _Due:
    at: int
    seq: int
    task: tuple[str, str, int, int, float, float, int] = field(compare=False)
    n: int = field(compare=False, default=1)
    attempt: int = field(compare=False, default=0)
    failures: int = field(compare=False, default=0)


def a_week(jobs: int, seed: int = 7, days: float = 7) -> list[Event]:
    """Events in the order of time."""
    chance = random.Random(seed)
    slowness = (
        BUSY * len(WORKERS) * SLOTS * days * DAY / (jobs * MEAN_RUN)
    )  # few jobs must take longer, to fill the time
    due = [
        _Due(at, seq, chance.choices(TASKS, [task[2] for task in TASKS])[0])
        for seq, at in _arrivals(chance, jobs, days)
    ]
    events = [_event(one, Kind.ENQUEUED, one.at, "waiting") for one in due]
    heapq.heapify(due)
    free = [(BEGIN, f"{name}/{slot}") for name in WORKERS for slot in range(SLOTS)]
    heapq.heapify(free)
    while due:
        one = heapq.heappop(due)
        idle, slot = _worker(free, one.at)
        begin = idle + round(math.exp(chance.gauss(3.2, 0.8)))
        worker = slot.partition("/")[0]
        end, told = _run(one, begin, worker, chance, slowness, due)
        events += told
        heapq.heappush(free, (end, slot))
    return sorted(events, key=lambda event: event.at)


def _arrivals(chance: random.Random, jobs: int, days: float) -> Iterator[tuple[int, int]]:
    """More by day than by night, and less on the weekend; a newsletter on Friday at nine."""
    hours = [BEGIN + hour * HOUR for hour in range(round(days * 24))]
    weights = [_wave(at) for at in hours]
    times = [at + chance.randrange(HOUR) for at in chance.choices(hours, weights, k=jobs)]
    yield from enumerate(sorted(times), 1)


def _wave(at: int) -> float:
    hour, day = (at - BEGIN) % DAY / HOUR, (at - BEGIN) // DAY
    wave = 0.22 + max(0.0, math.sin((hour - 6) / 14 * math.pi)) ** 1.3 if 6 <= hour <= 20 else 0.22
    burst = 1.9 if day == 4 and hour == 9 else 1.0
    return wave * burst * (0.55 if day >= 5 else 1.0)


def _worker(free: list[tuple[int, str]], at: int) -> tuple[int, str]:
    """The first that is free; the spot instance works by day only."""
    passed = []
    while True:
        idle, slot = heapq.heappop(free)
        begin = max(idle, at)
        if not slot.startswith("worker-spot") or 8 <= begin % DAY / HOUR < 19:
            break
        passed.append((idle + HOUR, slot))
    for one in passed:
        heapq.heappush(free, one)
    return begin, slot


def _run(
    one: _Due, begin: int, worker: str, chance: random.Random, slowness: float, due: list[_Due]
) -> tuple[int, list[Event]]:
    _, task, _, median, spread, faulty, most = one.task
    lost = task == "charge_card" and INCIDENT <= begin < INCIDENT_END
    length = 30_000 if lost else round(median * slowness * math.exp(chance.gauss(0, spread)))
    attempt, lease = one.attempt + 1, f"{one.seq}-{one.attempt + 1}"
    told = [_event(one, Kind.CLAIMED, begin, "running", n=one.n + 1, attempt=attempt, worker=worker, lease=lease)]
    end = begin + max(1, length)
    facts = {"n": one.n + 2, "attempt": attempt, "worker": worker, "lease": lease, "duration": max(1, length - 3)}
    if not lost and chance.random() >= faulty:
        return end, [*told, _event(one, Kind.COMPLETED, end, "completed", **facts)]
    facts |= {"failures": one.failures + 1, "error": _error(task, lost, chance)}
    if one.failures + 1 >= most or (task == "charge_card" and not lost and chance.random() < 0.3):
        return end, [*told, _event(one, Kind.BURIED, end, "dead", reason="max_attempts_exceeded", **facts)]
    delay = round(8_000 * 4**one.failures * chance.uniform(0.8, 1.2))
    heapq.heappush(due, _Due(end + delay, one.seq, one.task, one.n + 2, attempt, one.failures + 1))
    return end, [*told, _event(one, Kind.RETRIED, end, "waiting", delay=delay, **facts)]


def _error(task: str, lost: bool, chance: random.Random) -> Failure:
    if lost:
        return Failure(
            "ConnectTimeout", f"payments.internal:443 did not answer within 30 s (try {chance.randrange(9999)})"
        )
    match task:
        case "charge_card":
            return Failure("CardDeclined", f"card ending in {chance.randrange(1000, 9999)} was declined by its bank")
        case "make_thumbnail":
            return Failure("ImageTooLarge", f"{chance.randrange(50, 400)} MB is more than 48 MB")
        case "sales_report":
            return Failure("MemoryError", f"unable to allocate {chance.randrange(2, 9)}.{chance.randrange(9)} GiB")
        case "index_product":
            return Failure("VersionConflict", f"document {chance.getrandbits(40):x} was changed meanwhile")
        case _:
            return Failure("SMTPServerDisconnected", "Connection unexpectedly closed")


def _event(one: _Due, kind: Kind, at: int, state: str, **facts: Any) -> Event:
    told: dict[str, Any] = {"generation": 1, "n": one.n, "failures": one.failures, **facts}
    return Event(
        f"job-{one.seq:06d}", one.seq, kind=kind, at=at, queue=one.task[0], task=one.task[1], state=state, **told
    )


class WeekFeed(ListFeed):
    """A feed of a made-up week. One customer has as many mails as all others together."""

    name = "sqlite:///shop.db"

    def groups(self) -> DataFrame:
        return groups_of(self._spark, self.all)


def groups_of(spark: SparkSession, events: Sequence[Event]) -> DataFrame:
    rows = [
        (event.seq, event.queue, GROUPS[0] if event.seq % 2 else GROUPS[event.seq // 2 % len(GROUPS)])
        for event in events
        if event.kind is Kind.ENQUEUED and event.queue == "mail"
    ]
    rows += [
        (event.seq, event.queue, GROUPS[event.seq % len(GROUPS)])
        for event in events
        if event.kind is Kind.ENQUEUED and event.queue == "images"
    ]
    return spark.createDataFrame(rows, "seq bigint, queue string, `group` string")
