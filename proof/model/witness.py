"""Checks the reference ledger by itself, after every step.

It reads events and tables and trusts neither alone: each event must follow from the one before, each record must
agree with its last event, and each counter with a recount.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from millrace.domain.event import Event, Kind
from millrace.domain.job import LIVE, Job, Lease, State
from millrace.domain.tables import Tables
from proof.model.coverage import ALLOWED, NEW, Coverage

_ENDS_A_RUN = frozenset({Kind.COMPLETED, Kind.RETRIED, Kind.SNOOZED, Kind.RELEASED, Kind.BURIED, Kind.CANCELLED})


class Witness:
    """What was seen so far, by seq, because an id may be reused once everything about it is removed."""

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self._last: dict[int, Event] = {}
        self._lease: dict[int, str | None] = {}
        self._lost_before = False  # events were trimmed unread, so the beginning of some histories is unknown
        self._leases_seen: set[str] = set()
        self._until: dict[str, int] = {}
        self._completed: set[str] = set()
        self._ended: set[str] = set()
        self._replayed: set[int] = set()

    def saw(self, events: Iterable[Event], lost: bool) -> None:
        """Check new events in order; after a loss, earlier events are unknown."""
        if lost:
            self._lost_before = True
            self._last.clear()
            self._lease.clear()
        for event in events:
            self._follows(event, lost)
            self._last[event.seq] = event
            if event.state in ("completed", "dead", "cancelled"):
                self._ended.add(event.job)
            if event.kind is Kind.COMPLETED:
                self._completed.add(event.job)
            if event.kind is Kind.REPLAYED:
                self._replayed.add(event.seq)

    def _follows(self, event: Event, lost: bool) -> None:
        last = self._last.get(event.seq)
        before = NEW if last is None else last.state
        known = last is not None or event.n == 1
        if known:
            self._coverage.transition(before, event)
            assert event.n == (1 if last is None else last.n + 1), f"{event} does not follow {last}"
            assert (before, event.state) in ALLOWED[event.kind.value], f"{event.kind.value} after {last}: {event}"
        else:
            assert lost or self._lost_before, f"the events before this one are missing: {event}"
        if last is not None:
            self._counts_follow(last, event)
        self._leases_follow(before, event)

    def _counts_follow(self, last: Event, event: Event) -> None:
        assert event.attempt == last.attempt + (event.kind is Kind.CLAIMED), f"attempt jumps from {last} to {event}"
        if event.kind is Kind.RETRIED:
            assert event.failures == last.failures + 1, f"a retry is one failure: {last}, {event}"
        elif event.kind is Kind.REPLAYED:
            assert event.failures == 0, f"a replayed job starts with a fresh budget: {event}"
        elif event.kind not in (Kind.BURIED, Kind.CANCELLED):
            assert event.failures == last.failures, f"{event.kind.value} is no failure: {last}, {event}"

    def _leases_follow(self, before: str, event: Event) -> None:
        if event.kind in (Kind.CLAIMED, Kind.RECLAIMED):
            assert event.lease is not None and event.lease not in self._leases_seen, (
                f"a lease is new each time: {event}"
            )
            self._leases_seen.add(event.lease)
            self._lease[event.seq] = event.lease
        elif event.kind in _ENDS_A_RUN and before == "running":
            cut_off = event.kind is Kind.CANCELLED and event.reason == "obliterated"
            held = self._lease.get(event.seq, event.lease if self._lost_before else None)
            assert cut_off or event.lease == held, f"settled under another lease than {held}: {event}"
            self._lease.pop(event.seq, None)

    # ── what consumers received ──────────────────────────────────────────────────────────────

    def took(self, jobs: Iterable[Job], now: int) -> None:
        for job in jobs:
            assert job.available_at <= now, f"{job.id} started {job.available_at - now} ms before it was due"
            assert job.expires_at is None or job.expires_at > now, f"{job.id} started after it had expired"
            assert job.lease_until is not None
            self._until[job.lease.id] = job.lease_until
            may_run_after_failure = job.spec.on_dependency == "run"
            if job.seq not in self._replayed:
                for parent in job.spec.after:
                    over = parent in self._completed or (may_run_after_failure and parent in self._ended)
                    assert over or self._lost_before, f"{job.id} started before {parent}, which it was to run after"

    def extended(self, lease: Lease, until: int) -> None:
        self._until[lease.id] = until

    def took_over(self, before: dict[int, Job], jobs: Iterable[Job], now: int) -> None:
        for job in jobs:
            old = before[job.seq]
            assert old.lease_id is not None and self._until[old.lease_id] < now, f"{job.id} was taken from a live lease"
            assert job.lease_until is not None
            self._until[job.lease.id] = job.lease_until

    # ── the tables ────────────────────────────────────────────────────────────────────────────

    def agrees(self, tables: Tables, jobs: list[Job]) -> None:
        for job in jobs:
            last = self._last.get(job.seq)
            if last is not None:
                assert job.state.value == last.state and job.events == last.n, f"{job} is not as {last} left it"
            assert (job.lease_id is not None) == (job.state is State.RUNNING), f"a lease without a run: {job}"
            most = job.spec.max_attempts
            assert most is None or job.failures <= most, f"{job.id} failed {job.failures} times of {most}"
        _recount_queues(tables, jobs)
        _recount_lines(tables, jobs)
        _recount_keys_and_parents(tables, jobs)


def _recount_queues(tables: Tables, jobs: list[Job]) -> None:
    for name in tables.queues():
        row = tables.queue(name)
        mine = [job for job in jobs if job.queue == name]
        states = Counter(job.state for job in mine)
        for state in State:
            assert getattr(row, state.value) == states[state], f"{name} counts {row}, there are {states}"
        assert row.blocked == sum(job.blocked > 0 for job in mine), f"{name} miscounts blocked jobs: {row}"
        assert row.archived == sum(job.archived for job in mine), f"{name} miscounts archived jobs: {row}"
        archived_dead = sum(job.archived and job.state is State.DEAD for job in mine)
        assert row.archived_dead == archived_dead, f"{name} miscounts archived dead jobs: {row}"
        assert row.live == sum(job.state in LIVE and not job.spec.hook for job in mine), f"{name} miscounts: {row}"
        assert row.bucket is None or row.bucket.tokens >= 0, f"{name} has negative tokens: {row.bucket}"
    for task in tables.tasks():
        running = sum(job.state is State.RUNNING and job.task == task.name for job in jobs)
        assert task.running == running, f"task {task.name} counts {task.running} running, there are {running}"
        assert task.bucket is None or task.bucket.tokens >= 0, f"task {task.name} has negative tokens"


def _recount_lines(tables: Tables, jobs: list[Job]) -> None:
    lines: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        if job.line is not None and job.state in LIVE:
            lines.setdefault((job.queue, job.line), []).append(job)
    for (queue, name), members in lines.items():
        line = tables.line(queue, name)
        running = [job.id for job in members if job.state is State.RUNNING]
        opened = [job.id for job in members if job.open]
        assert line is not None, f"line {name} of {queue} is gone, but {[job.id for job in members]} are in it"
        assert len(running) <= 1, f"line {name} of {queue} runs {running} at once"
        assert len(opened) + len(running) <= 1, f"line {name} of {queue} is open to {opened} while {running} run"
        assert line.live == len(members), f"{line} has {len(members)} live members"
        assert line.waiting == len(members) - len(running), f"{line} has {len(members) - len(running)} waiting"
        holders = [job.seq for job in members if job.holds or job.state is State.RUNNING]
        assert ([] if line.holder is None else [line.holder]) == holders, f"{line} should be held by {holders}"


def _recount_keys_and_parents(tables: Tables, jobs: list[Job]) -> None:
    owners: dict[tuple[str, str], str] = {}
    for job in jobs:
        if job.state in LIVE and job.spec.key is not None and job.spec.scope == "live":
            other = owners.setdefault((job.queue, job.spec.key), job.id)
            assert other == job.id, f"{other} and {job.id} both live under key {job.spec.key}"
            hold = tables.key(job.queue, job.spec.key)
            assert hold is not None and hold.seq == job.seq, f"{job.id} lives without its key: {hold}"
        elif job.spec.key is not None and job.spec.scope == "live":
            hold = tables.key(job.queue, job.spec.key)
            assert hold is None or hold.seq != job.seq, f"{job.id} has ended and still holds its key: {hold}"
        parents = tables.parents(job.seq)
        assert job.blocked == len(parents), f"{job.id} waits for {parents}: {job}"
        for parent in map(tables.by_id, parents):
            if parent is not None and parent.state not in LIVE:
                patient = job.spec.on_dependency == "wait" and parent.state is not State.COMPLETED
                assert patient, f"{job.id} still waits for {parent.id}, which is {parent.state.value}"
