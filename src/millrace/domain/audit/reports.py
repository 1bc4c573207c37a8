"""Checks of the history against records made outside of the store: answers to enqueues, runs, and dead workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millrace.domain.audit.evidence import Evidence, ReportedRun, Violation, find_line, find_spec, violation
from millrace.domain.event import Event, Kind
from millrace.domain.job import LIVE
from millrace.domain.request import Enqueued

_REASONS = (Kind.RETRIED, Kind.SNOOZED, Kind.RELEASED, Kind.REPLAYED)  # for one more claim


def check_answers(evidence: Evidence) -> Iterable[Violation]:
    """Yield a violation for an accepted job that is not in the history, and for a token with two different answers."""
    known = {(event.job, event.seq) for event in evidence.events if event.kind is Kind.ENQUEUED}
    ids = {job for job, _ in known}
    first: dict[str, Enqueued] = {}
    for token, answer in evidence.answers:
        found = (answer.id, answer.seq) in known if answer.status == "queued" else answer.id in ids
        if not found:
            yield Violation("lost", answer.id, f"answered {answer.status} as seq {answer.seq}, and not in the history")
        before = first.setdefault(token, answer) if token else answer
        same = (before.status, before.id, before.seq) == (answer.status, answer.id, answer.seq)
        if before.status == "queued" and not same:
            yield Violation("answer", answer.id, f"token {token} was answered {before} and then {answer}")


def check_runs(evidence: Evidence) -> Iterable[Violation]:
    """Yield violations of the rules on runs.

    The rules are: each run belongs to one claim, made by the worker that ran it. The job returned to waiting before
    each further claim. Each completed attempt has a run that returned. The runs that completed jobs of one line do not
    overlap, and they begin after the runs that completed the parents.
    """
    if evidence.runs is None:
        return
    claims: dict[tuple[int, int], Event] = {}
    reasons: set[tuple[int, int]] = set()
    for event in evidence.events:
        if event.kind is Kind.CLAIMED:
            if event.attempt > 1 and (event.seq, event.attempt - 1) not in reasons and evidence.whole:
                yield violation(event, "claim", f"attempt {event.attempt} has no reason: the one before did not return")
            claims[event.seq, event.attempt] = event
        elif event.kind in _REASONS:
            reasons.add((event.seq, event.attempt))
    seen: dict[tuple[int, int], ReportedRun] = {}
    for run in evidence.runs:
        fence = (run.seq, run.attempt)
        if fence in seen:
            yield Violation("run_twice", run.job, f"{run} is the second under one lease; the first is {seen[fence]}")
        seen[fence] = run
        yield from _check_run(evidence, run, claims.get(fence))
    completed: list[tuple[Event, ReportedRun]] = []
    for event in evidence.events:
        earned = seen.get((event.seq, event.attempt))
        if event.kind is Kind.COMPLETED and earned is not None and earned.how == "returned":
            completed.append((event, earned))
        elif event.kind is Kind.COMPLETED:
            yield violation(event, "completed_without_run", f"completed attempt {event.attempt}; its run says {earned}")
    yield from _check_order_of_runs(evidence, sorted(completed, key=lambda pair: pair[1].began))


def _check_order_of_runs(evidence: Evidence, completed: Sequence[tuple[Event, ReportedRun]]) -> Iterable[Violation]:
    """Yield violations of the rules that compare the runs of different jobs. Only runs that completed their jobs are
    compared: another run may have gone on after its lease was lost.
    """
    line_of, spec_of = find_line(evidence), find_spec(evidence)
    first_end: dict[str, int] = {}
    for event, run in completed:
        if run.ended is not None:
            first_end[event.job] = min(run.ended, first_end.get(event.job, run.ended))
    last: dict[tuple[str, str], ReportedRun] = {}
    for event, run in completed:
        spec, line = spec_of(event), line_of(event)
        for parent in () if spec is None or spec.on_dependency == "run" else spec.after:
            if parent in first_end and run.began < first_end[parent]:
                yield violation(event, "before_parent", f"{run} began before {parent!r} had run")
        if line is not None:
            before = last.get((event.queue, line))
            if before is not None and before.ended is not None and run.began < before.ended:
                yield violation(event, "two_in_line", f"{run} overlaps {before} in line {line!r}")
            last[event.queue, line] = run


def _check_run(evidence: Evidence, run: ReportedRun, claim: Event | None) -> Iterable[Violation]:
    if claim is None:
        yield Violation("run_not_granted", run.job, f"{run} was never granted")
        return
    if claim.worker != run.worker:
        yield Violation("two_leases", run.job, f"{run} was granted to {claim.worker}")
    if run.began < claim.at - (evidence.ordered_to or 0):
        yield Violation("too_early", run.job, f"{run} began before it was granted at {claim.at}")


def check_end(evidence: Evidence) -> Iterable[Violation]:
    """Yield a violation for a job of a dead worker that was not reclaimed, and, with `all_ended`, for each live job."""
    last = {event.seq: event for event in evidence.events}
    for worker in evidence.lost_workers:
        held, _ = taken_over(evidence.events, worker)
        for seq in sorted(held):
            yield violation(last[seq], "abandoned", f"{worker} died with it, and it was never taken over")
    for event in last.values() if evidence.all_ended else ():
        if event.state in LIVE:
            yield violation(event, "unfinished", f"still {event.state}, and nothing is in its way")


def taken_over(events: Iterable[Event], worker: str) -> tuple[set[int], dict[int, int]]:
    """Return the jobs that a worker claimed and did not settle, as (held, reclaimed).

    `held` has the seqs that the worker still holds. `reclaimed` maps the other seqs to the instant of their reclaim.
    """
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
