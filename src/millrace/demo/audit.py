"""The demo's audit: which promises of the queue were kept, with figures.

`millrace.domain.audit` finds the violations. This module assigns each violation to the promise that it breaks.
The audit uses the store's events and records, and the answers that the demo got when it enqueued jobs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from millrace.demo.shop import RATES
from millrace.domain.audit import Evidence, check, taken_over
from millrace.domain.event import Kind

SHOWN = 3
TICK = f"cron:{RATES}:"  # the id of a tick's job consists of the schedule and the instant
LEGAL = "every step was legal"

# promise → names of the violations that break it; all other names break LEGAL
BROKEN_BY = {
    "no job was lost": ("lost", "numbering", "beginning", "without_events", "record"),
    "no job ran twice at the same time": ("two_leases", "finished_runs", "cancelled_starts", "fence", "lease"),
    "customers' orders kept their order": ("two_in_line", "line_order", "seq"),
    "jobs waited for what they depend on": ("before_parent",),
    "the schedule ticked once a second": ("schedule",),
    "sms kept to its rate": ("rate",),
    "the killed worker's jobs were recovered": ("abandoned",),
}


@dataclass(frozen=True)
class DemoCheck:
    """One promise and whether it was kept. `text` has the figures, or the violations if it was broken."""

    name: str
    ok: bool
    text: str


def audit(evidence: Evidence) -> list[DemoCheck]:
    figures = _figures(evidence)
    promise_of = {name: promise for promise, names in BROKEN_BY.items() for name in names}
    wrong: dict[str, list[str]] = {promise: [] for promise in figures}
    for each in check(evidence):
        wrong[promise_of.get(each.name, LEGAL)].append(f"{each.where}: {each.text}")
    return [DemoCheck(promise, not wrong[promise], _shown(wrong[promise]) or text) for promise, text in figures.items()]


def _shown(wrong: list[str]) -> str:
    more = f" (and {len(wrong) - SHOWN:,} more)" if len(wrong) > SHOWN else ""
    return "; ".join(wrong[:SHOWN]) + more


def _figures(evidence: Evidence) -> dict[str, str]:
    """Return each promise with the text that is shown if it was kept."""
    events, jobs = evidence.events, evidence.jobs
    kinds = Counter(event.kind for event in events)
    states = Counter(job.state.value for job in jobs)
    ticks = sum(event.kind is Kind.ENQUEUED and event.job.startswith(TICK) for event in events)
    ordered = [job.spec.group for job in jobs if job.lane is not None and job.spec.group is not None]
    starts = sum(event.kind is Kind.CLAIMED and event.queue == "sms" for event in events)
    taken = sum(len(taken_over(events, worker)[1]) for worker in evidence.lost_workers)
    said = (
        f"{len(jobs):,} accepted = {states['completed']:,} completed + {states['dead']:,} dead"
        f" + {states['cancelled']:,} cancelled + {states['waiting'] + states['running']:,} still to do",
        f"{kinds[Kind.CLAIMED]:,} runs, each under a lease of its own",
        f"{len(ordered):,} steps of {len(set(ordered))} customers",
        f"{sum(bool(job.spec.after) for job in jobs):,} jobs with dependencies",
        f"{ticks} ticks, none doubled, none left out",
        f"{starts:,} starts, at most {evidence.settings['sms'].rate:g} a second",
        f"{taken:,} taken over by others",
    )
    figures = dict(zip(BROKEN_BY, said, strict=True))
    if not evidence.lost_workers:
        del figures["the killed worker's jobs were recovered"]
    return {**figures, LEGAL: f"{len(events):,} events"}
