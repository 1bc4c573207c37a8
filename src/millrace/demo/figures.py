"""The figures of a finished demo, as JSON data: for the summary and for `--json`. Times are in seconds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import ceil
from typing import Any

from millrace.demo import victim
from millrace.demo.audit import TICK, DemoCheck, audit
from millrace.demo.run import SMS_BURST, Demo
from millrace.domain.audit import Evidence, taken_over
from millrace.domain.event import Event, Kind
from millrace.domain.job import Job, State
from millrace.domain.settings import QueueSettings
from millrace.views.fingerprint import fingerprint

Plain = dict[str, Any]


def summary(demo: Demo) -> Plain:
    events, settings = demo.board.events, demo.settings
    evidence = Evidence(
        demo.jobs,
        events,
        settings={"sms": QueueSettings(rate=demo.sms_rate, burst=SMS_BURST)},
        fixed_limits=True,
        answers=demo.accepted,
        lost_workers=() if demo.strike is None or demo.interrupted else (victim.NAME,),
        ticks={TICK: 1_000},
    )
    checks = audit(evidence)
    states = Counter(job.state.value for job in demo.jobs)
    kinds = Counter(event.kind for event in events)
    return {
        "ok": all(check.ok for check in checks),
        "interrupted": demo.interrupted,
        "url": settings.url,
        "directory": str(settings.folder),
        "seed": settings.seed,
        "took": round(demo.elapsed, 3),
        "accepted": len(demo.jobs),
        "completed": states["completed"],
        "dead": states["dead"],
        "cancelled": states["cancelled"],
        "live": states["waiting"] + states["running"],
        "duplicates": demo.duplicates,
        "runs": kinds[Kind.CLAIMED],
        "retries": sum(event.kind is Kind.RETRIED and not _lost(event) for event in events),
        "retried_jobs": len({event.seq for event in events if event.kind is Kind.RETRIED and not _lost(event)}),
        "recovery": _recovery(demo),
        "ticks": sum(event.kind is Kind.ENQUEUED and event.task == "refresh_rates" for event in events),
        "answers": {"count": len(demo.answers), **percentiles(demo.answers)},
        "queues": _queues(events, demo.jobs),
        "causes": causes(demo.jobs, settings.url),
        "audit": {"ok": all(check.ok for check in checks), "checks": [_check(check) for check in checks]},
    }


def percentiles(values: Iterable[float]) -> dict[str, float | None]:
    """Return the percentiles 50, 95 and 99 of the values by the nearest-rank method, or None for no values."""
    ordered = sorted(values)
    return {
        f"p{part}": round(ordered[ceil(len(ordered) * part / 100) - 1], 3) if ordered else None for part in (50, 95, 99)
    }


def causes(jobs: Sequence[Job], url: str) -> list[Plain]:
    """Return the causes of dead jobs, the most frequent first. Each has the command that replays its jobs."""
    groups: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        if job.state is State.DEAD:
            groups[fingerprint(job)].append(job)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1][0].seq))
    return [
        {
            "fingerprint": mark,
            "count": len(group),
            "task": group[0].task,
            "reason": group[0].reason,
            "error": _error(group[0]),
            "example": group[0].id,
            "replay": f"millrace --url {url} replay --error {mark} --yes",
        }
        for mark, group in ordered
    ]


def _error(job: Job) -> str:
    """Return the error of a job as text.

    Other jobs with the same cause have the same text, except for numbers and names.
    """
    return "" if job.error is None else f"{job.error.type}: {job.error.message}".removeprefix("Bury: ")


def _recovery(demo: Demo) -> Plain | None:
    """Return figures about the jobs that the killed worker held, or None if no worker was killed."""
    strike = demo.strike
    if strike is None:
        return None
    held, taken = taken_over(demo.board.events, victim.NAME)
    recovered = [job for job in demo.jobs if job.seq in taken]
    completed = [job for job in recovered if job.state is State.COMPLETED]
    return {
        "worker": victim.NAME,
        "pid": strike.pid,
        "lease": demo.settings.lease,
        "held": len(held) + len(taken),
        "recovered": len(recovered),
        "completed": len(completed),
        "after": round((max(taken.values(), default=strike.at) - strike.at) / 1000, 3),
        "example": completed[0].id if completed else None,
    }


def _queues(events: Sequence[Event], jobs: Sequence[Job]) -> list[Plain]:
    waited: dict[str, list[float]] = defaultdict(list)
    ran: dict[str, list[float]] = defaultdict(list)
    retries: Counter[str] = Counter()
    due: dict[int, int] = {}
    for event in events:
        if event.kind is Kind.CLAIMED:
            waited[event.queue].append(max(0, event.at - due[event.seq]) / 1000)
        elif event.state == "waiting":
            due[event.seq] = event.at + (event.delay or 0)
            retries[event.queue] += event.kind is Kind.RETRIED and not _lost(event)
        if event.kind is Kind.COMPLETED and event.duration is not None:
            ran[event.queue].append(event.duration / 1000)
    states: dict[str, Counter[str]] = defaultdict(Counter)
    for job in jobs:
        states[job.queue][job.state.value] += 1
    return [
        {
            "queue": queue,
            "accepted": count.total(),
            "completed": count["completed"],
            "dead": count["dead"],
            "cancelled": count["cancelled"],
            "retries": retries[queue],
            "waited": percentiles(waited[queue]),
            "ran": percentiles(ran[queue]),
        }
        for queue, count in sorted(states.items())
    ]


def _lost(event: Event) -> bool:
    return event.error is not None and event.error.type in ("WorkerLost", "LeaseLost")


def _check(check: DemoCheck) -> Plain:
    return asdict(check)
