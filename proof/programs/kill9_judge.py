"""The judge of the kill -9 suite: compares what processes wrote down with what the store says happened."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.app.app import App
from millrace.domain.audit import Evidence, ReportedRun, check
from millrace.domain.event import Kind
from millrace.domain.job import Spec, State
from millrace.domain.request import Enqueued
from millrace.store.protocol import Sweeping
from millrace.testing.invariants import gather
from proof.programs.kill9_jobs import LEASE, parse_id, read_ledger, spec_of, store_at

MOST_PROBLEMS = 20
CLOCK_STEP, LONG_STEP = 50, 2_000  # milliseconds by which events may be out of order; the latter where steps overlap
AHEAD = 120_000  # milliseconds; more than a reader of any store stays behind
_HELD_TWICE = ("two_leases", "finished_runs", "cancelled_starts", "fence", "lease")
_NEVER = (Kind.SNOOZED, Kind.REPLAYED)  # so that each run but a job's first follows a retry or a release


@dataclass
class Verdict:
    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.problems.append(otherwise)

    def __str__(self) -> str:
        width = max(map(len, self.facts))
        table = [f"  {name:<{width}}  {_figure(value):>12}" for name, value in self.facts.items()]
        ending = [f"BROKEN: {problem}" for problem in self.problems] or ["every promise held"]
        return "\n".join((*table, *ending))


def _figure(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


class _Specs(dict[str, Spec]):
    """Jobs by id, made again from the id."""

    def __missing__(self, job: str) -> Spec:
        self[job] = spec_of(*parse_id(job))
        return self[job]

    def get(self, job: str, default: Any = None) -> Any:
        return self[job]


async def unfinished(database: str | Path) -> int:
    async with App(store_at(database)) as app:
        return sum(queue.waiting + queue.running for queue in await app.store.count())


def count_lines(ledgers: Path) -> Counter[str]:
    return Counter(line[0] for file in ledgers.glob("*.log") for line in read_ledger(file))


async def judge(database: str | Path, ledgers: Path, killed: set[str], stopped: set[str]) -> Verdict:
    """The audit of the store's history, and what only this suite can know: every job completes, and none snoozes."""
    verdict = Verdict()
    answers, runs, lost = _read(ledgers)
    evidence = await _read_store(database)
    events = evidence.events
    evidence.keep_events = None  # a run is over long before events are trimmed
    evidence.ordered_to = LONG_STEP if evidence.concurrent_writes else CLOCK_STEP
    evidence.specs = _Specs()
    evidence.leases = {event.lease: event.at + LEASE for event in events if event.kind is Kind.CLAIMED and event.lease}
    evidence.answers, evidence.runs = answers, list(runs.values())
    violations = check(evidence)
    verdict.problems += [str(violation) for violation in violations[:MOST_PROBLEMS]]
    last = {event.seq: event for event in sorted(events, key=lambda event: event.n)}
    for _, answer in answers:
        end = last.get(answer.seq)
        verdict.require(end is None or end.state == "completed", f"{answer.id} was acknowledged and is {end}")
    foreign = [event for event in events if event.kind in _NEVER or event.reason == "obliterated"]
    verdict.require(not foreign, f"nothing here asks for this: {foreign[:3]}")
    integrity = "only of a file"
    if isinstance(database, Path):
        integrity = sqlite3.connect(database).execute("PRAGMA integrity_check").fetchone()[0]
        verdict.require(integrity == "ok", f"integrity check: {integrity}")
    takeovers = [event for event in events if event.kind is Kind.RECLAIMED]
    verdict.facts |= {
        "runs": len(runs),
        "duplicate runs": len(runs) - len({seq for seq, _ in runs}),
        "takeovers": len(takeovers),
        "leases that ran out by themselves": sum(event.reason not in killed | stopped for event in takeovers),
        "acknowledged": len({answer.id for _, answer in answers}),
        "completed": sum(event.state == "completed" for event in last.values()),
        "lost": sum(answer.seq not in last for _, answer in answers),
        "held twice": sum(violation.name in _HELD_TWICE for violation in violations),
        "settles refused as stale": lost,
        "events": len(events),
        "events told twice": len(events) - len({(event.seq, event.n) for event in events}),
        "integrity": integrity,
    }
    return verdict


async def _read_store(place: str | Path) -> Evidence:
    """A store without a server is swept first, as its workers do now and then. Nobody writes any more, so the clock of
    the judge may run ahead: a sweep leaves alone what is younger than ten seconds, and readers stay behind the clock.
    """
    if not isinstance(store_at(place), Sweeping):
        async with App(store_at(place)) as app:
            return await gather(app.store, fixed_limits=True)
    async with App(store_at(place, ahead=AHEAD)) as app:
        assert isinstance(app.store, Sweeping)
        await app.store.sweep(full=True)
    async with App(store_at(place, ahead=2 * AHEAD)) as app:
        evidence = await gather(app.store, fixed_limits=True)
    evidence.late_events = True
    return evidence


def _read(ledgers: Path) -> tuple[list[tuple[str, Enqueued]], dict[tuple[int, int], ReportedRun], int]:
    answers: list[tuple[str, Enqueued]] = []
    runs: dict[tuple[int, int], ReportedRun] = {}
    lost = 0
    for file in sorted(ledgers.glob("*.log")):
        for word, *facts in read_ledger(file):
            if word == "acknowledged":
                number, status, seq_text = facts
                assert status == "queued", f"{file.stem}-{number} was answered {status}"
                job = f"{file.stem}-{number}"
                answers.append((f"token-{job}", Enqueued("queued", job, int(seq_text), 1, State.WAITING)))
            elif word == "lost":
                lost += 1
            else:
                job, seq, attempt, at = facts[0], int(facts[1]), int(facts[2]), int(facts[3])
                began = runs[seq, attempt].began if word == "ended" else at
                ended = (at, "returned") if word == "ended" else (None, None)
                runs[seq, attempt] = ReportedRun(job, seq, attempt, file.stem, began, *ended)
    return answers, runs, lost
