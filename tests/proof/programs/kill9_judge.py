"""The judge of the kill -9 suite: compares what processes wrote down with what the store says happened."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.domain.event import Event, Kind
from millrace.domain.job import Spec
from millrace.runtime.app import App
from millrace.store.protocol import Store
from millrace.testing.simulation_audit import Audit, Run
from tests.proof.programs.kill9_jobs import parse_id, read_ledger, spec_of, store_at


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
    verdict = Verdict()
    acknowledged, runs, lost = _read(ledgers)
    async with App(store_at(database)) as app:
        events = await _events(app.store)
        audit = Audit(_Specs(), clock_may_step=True, steps_overlap=app.store.steps_overlap)
        audit.replay(events).compare(list(runs.values()))
        verdict.problems += audit.problems
        await _recount(app.store, audit, verdict)
    for job, seq in acknowledged.items():
        track = audit.tracks.get(seq)
        verdict.require(track is not None and track.spec.id == job, f"{job} was acknowledged and is lost")
        verdict.require(track is None or track.state == "completed", f"{job} was acknowledged and is {track}")
    _explain(verdict, events, runs, killed, stopped)
    integrity = "not asked of a server"
    if isinstance(database, Path):
        integrity = sqlite3.connect(database).execute("PRAGMA integrity_check").fetchone()[0]
        verdict.require(integrity == "ok", f"integrity check: {integrity}")
    verdict.facts |= {
        "acknowledged": len(acknowledged),
        "completed": sum(track.state == "completed" for track in audit.tracks.values()),
        "lost": sum(seq not in audit.tracks for seq in acknowledged.values()),
        "held twice": sum("(I3)" in problem or "(I4)" in problem for problem in verdict.problems),
        "settles refused as stale": lost,
        "events": len(events),
        "integrity": integrity,
    }
    return verdict


def _read(ledgers: Path) -> tuple[dict[str, int], dict[tuple[int, int], Run], int]:
    acknowledged: dict[str, int] = {}
    runs: dict[tuple[int, int], Run] = {}
    lost = 0
    for file in sorted(ledgers.glob("*.log")):
        for word, *facts in read_ledger(file):
            if word == "acknowledged":
                number, status, seq = facts
                assert status == "queued", f"{file.stem}-{number} was answered {status}"
                acknowledged[f"{file.stem}-{number}"] = int(seq)
            elif word == "lost":
                lost += 1
            else:
                job, seq, attempt, at = facts[0], int(facts[1]), int(facts[2]), int(facts[3])
                began = runs[seq, attempt].began if word == "ended" else at
                ended = (at, "returned") if word == "ended" else (None, None)
                runs[seq, attempt] = Run(job, seq, attempt, file.stem, began, *ended)
    return acknowledged, runs, lost


async def _events(store: Store) -> list[Event]:
    events: list[Event] = []
    cursor: str | None = None
    while True:
        page = await store.events(cursor, 5_000)
        if not page.events:
            return events
        events += page.events
        cursor = page.cursor


async def _recount(store: Store, audit: Audit, verdict: Verdict) -> None:
    """Counters equal a recount, and the records are what the events say."""
    recount: Counter[tuple[str, str]] = Counter()
    for partition in await store.partitions(4):
        async for jobs in store.scan(partition):
            for job in jobs:
                recount[job.queue, job.state.value] += 1
                told = audit.newest[job.id].state
                verdict.require(job.state == told, f"{job.id} is stored as {job.state}, its events say {told}")
    for counts in await store.count():
        for state in ("waiting", "running", "completed", "dead", "cancelled"):
            counted, found = getattr(counts, state), recount[counts.queue, state]
            verdict.require(counted == found, f"{counted} {state} in {counts.queue}, a recount finds {found}")


def _explain(
    verdict: Verdict, events: list[Event], runs: dict[tuple[int, int], Run], killed: set[str], stopped: set[str]
) -> None:
    """Every run but a job's first follows a takeover, and every takeover a kill, a stop or an expiry."""
    first: dict[int, int] = {}
    for seq, attempt in sorted(runs):
        first.setdefault(seq, attempt)
    duplicates = [fence for fence in runs if fence[1] != first[fence[0]]]
    returns = {(event.seq, event.attempt) for event in events if event.kind in (Kind.RETRIED, Kind.RELEASED)}
    for seq, attempt in duplicates:
        verdict.require((seq, attempt - 1) in returns, f"seq {seq} ran again as attempt {attempt} for no reason")
    takeovers = [event for event in events if event.kind is Kind.RECLAIMED]
    by_themselves = [event for event in takeovers if event.reason not in killed | stopped]
    verdict.facts |= {
        "runs": len(runs),
        "duplicate runs": len(duplicates),
        "takeovers": len(takeovers),
        "leases that ran out by themselves": len(by_themselves),
    }
