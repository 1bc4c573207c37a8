"""Bugs planted on purpose: a suite that does not find them proves nothing by passing.

Each is put into the real code for the length of one test, on both sides of the model, so that the two agree in
being wrong; and each must be found: by the model (its witness, its oracle, the shared invariants), or by named
sentences of the conformance suite.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from millrace.domain import ledger
from millrace.domain.change import Change, Verb
from millrace.domain.event import Event, Kind
from millrace.domain.job import Job, State
from millrace.domain.rules import admission, decide, limits, order, step, transition, upkeep
from millrace.domain.settings import QueueSettings
from millrace.store import waiters
from millrace.store.memory import MemoryStore
from millrace.store.memory import tables as memory
from millrace.store.memory.tables import DueJobs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance import waiting, waking
from millrace.testing.invariants import assert_holds, gather
from proof.model.store_machine import by_mood, store_machine

Patch = Callable[[pytest.MonkeyPatch], None]
PLANTS: dict[str, tuple[Patch, Callable[[], None]]] = {}


def plant(found_by: Callable[[], None]) -> Callable[[Patch], Patch]:
    def register(patch: Patch) -> Patch:
        PLANTS[patch.__name__] = (patch, found_by)
        return patch

    return register


# ── the suites ────────────────────────────────────────────────────────────────────────────────────


def model() -> None:
    """Few examples of each mood: a bug that needs thousands of examples would go unseen for long."""
    for machine in by_mood(store_machine(lambda clock: MemoryStore(clock=clock), label="planted")):
        with contextlib.redirect_stdout(io.StringIO()):
            run_state_machine_as_test(
                seed(1)(machine),
                settings=settings(
                    max_examples=16,
                    stateful_step_count=60,
                    deadline=None,
                    database=None,
                    phases=[Phase.generate],
                    report_multiple_bugs=False,
                    suppress_health_check=list(HealthCheck),
                ),
            )


def sentences(module: str, *names: str) -> Callable[[], None]:
    """Sentences of the conformance suite, spoken on a memory store; the invariants must hold at the end of each."""

    def speak() -> None:
        said = importlib.import_module(f"millrace.testing.conformance.{module}")
        for name in names:
            asyncio.run(_speak(getattr(said, name)))

    return speak


async def _speak(sentence: Callable[..., Any]) -> None:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    await sentence(store, clock)
    assert_holds(await gather(store))


# ── leases ────────────────────────────────────────────────────────────────────────────────────────


@plant(model)
def the_lease_is_not_checked(patch):
    def held(self: ledger.Ledger, lease: Any) -> Job | None:
        job = self.tables.by_seq(lease.seq)
        return job if job is not None and job.state is State.RUNNING else None

    patch.setattr(ledger.Ledger, "_held", held)


@plant(model)
def a_run_may_be_settled_twice(patch):
    patch.setattr(ledger.Ledger, "_held", lambda self, lease: self.tables.by_seq(lease.seq))


@plant(model)
def the_reaper_is_off_by_one(patch):
    lapsed = memory.MemoryTables.lapsed
    patch.setattr(memory.MemoryTables, "lapsed", lambda self, now, *rest: lapsed(self, now + 1, *rest))


@plant(model)
def the_reaper_takes_what_it_was_told_to_ignore(patch):
    lapsed = memory.MemoryTables.lapsed
    patch.setattr(
        memory.MemoryTables, "lapsed", lambda self, now, most, q, t, ignore: lapsed(self, now, most, q, t, frozenset())
    )


@plant(model)
def a_takeover_keeps_the_old_lease(patch):
    def reclaim(job: Job, worker: str, lease_id: str, lease: int, now: int) -> Event:
        assert job.lease_id is not None
        job.worker, job.lease_until = worker, now + lease
        return transition._event(job, Kind.RECLAIMED, now, worker=worker, lease=job.lease_id)

    patch.setattr(transition, "reclaim", reclaim)


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────


@plant(model)
def a_line_is_ignored(patch):
    patch.setattr(step.Step, "_next_of", lambda self, line: self.tables.best_in_line(line.queue, line.name))


@plant(model)
def a_job_in_backoff_does_not_hold_its_line(patch):
    settle = transition.settle

    def forgetful(job: Job, change: Change, now: int) -> Event:
        event = settle(job, change, now)
        job.holds = False
        return event

    patch.setattr(transition, "settle", forgetful)


@plant(model)
def due_members_never_enter_their_line(patch):
    patch.setattr(ledger.Ledger, "promote", lambda self, step, limit: 0)


@plant(model)
def a_paused_lane_runs_on(patch):
    patch.setattr(step.Step, "_paused", lambda self, line: False)


# ── events ────────────────────────────────────────────────────────────────────────────────────────


@plant(model)
def an_event_is_forgotten(patch):
    log = step.Step.log
    patch.setattr(step.Step, "log", lambda self, event: None if event.kind is Kind.SNOOZED else log(self, event))


@plant(model)
def an_event_number_is_used_twice(patch):
    event_of = transition._event

    def same_number(job: Job, kind: Kind, *rest: Any, **more: Any) -> Event:
        event = event_of(job, kind, *rest, **more)
        job.events -= kind is Kind.RETRIED
        return event

    patch.setattr(transition, "_event", same_number)


@plant(sentences("retention", "test_pruning_is_announced_and_counted"))
def a_job_is_pruned_in_silence(patch):
    log = step.Step.log
    patch.setattr(step.Step, "log", lambda self, event: None if event.kind is Kind.PRUNED else log(self, event))


# ── wake-ups ──────────────────────────────────────────────────────────────────────────────────────


@plant(sentences("waiting", "test_an_enqueue_wakes_a_worker"))
def a_wake_up_is_dropped(patch):
    take = memory.MemoryTables.take_wakeups
    patch.setattr(memory.MemoryTables, "take_wakeups", lambda self: ({}, take(self)[1]))


@plant(sentences("waking", "test_a_hint_goes_to_a_sleeper_that_knows_the_task"))
def a_hint_goes_to_whoever_sleeps_longest(patch):
    def heads(self, place):
        yield from list(self._all)[:1]

    patch.setattr(waiters.Sleepers, "_heads", heads)


@plant(sentences("waking", "test_room_under_the_limit_of_a_task_wakes_a_sleeper_of_another_queue"))
def room_for_a_task_is_told_of_in_one_queue_only(patch):
    def run_ended(self, job, row):
        row.running -= 1
        if self._task_running(job.task, -1):
            self.tables.wake((row.name, job.task), 1)

    patch.setattr(step.Step, "_run_ended", run_ended)


@plant(model)
def a_worker_sleeps_over_a_due_job(patch):
    patch.setattr(ledger.Ledger, "next_due", lambda self, queues, tasks, now: None)


# ── counting ──────────────────────────────────────────────────────────────────────────────────────


@plant(model)
def a_release_counts_as_a_failure(patch):
    settle = transition.settle

    def strict(job: Job, change: Change, now: int) -> Event:
        job.failures += change.verb is Verb.RELEASE
        return settle(job, change, now)

    patch.setattr(transition, "settle", strict)


@plant(model)
def one_failure_too_many_is_allowed(patch):
    patch.setattr(
        decide, "budget_used", lambda job: job.spec.max_attempts is not None and job.failures >= job.spec.max_attempts
    )


@plant(model)
def a_replay_keeps_the_used_budget(patch):
    replay = transition.replay

    def grudging(job: Job, now: int, reason: str | None = None) -> Event:
        failures = job.failures
        event = replay(job, now, reason)
        job.failures = failures
        return event

    patch.setattr(transition, "replay", grudging)


@plant(model)
def a_counter_drifts(patch):
    leave = step.Step._count_end

    def forgetful(self: step.Step, row: Any, job: Job, was: State) -> None:
        leave(self, row, job, was)
        row.dead -= job.state is State.DEAD and was is State.RUNNING

    patch.setattr(step.Step, "_count_end", forgetful)


# ── claims and limits ─────────────────────────────────────────────────────────────────────────────


@plant(model)
def a_claim_takes_what_is_not_due(patch):
    patch.setattr(DueJobs, "peek", lambda self: self._ready.peek())


@plant(model)
def a_token_is_spent_before_a_job_is_found(patch):
    of_queue = limits.Room.of_queue

    def eager(self: Any, row: Any) -> int:
        room = of_queue(self, row)
        if room > 0 and row.settings.rate is not None:
            row.bucket = limits.spend(row.bucket, row.settings, 1, self._now)
        return room

    patch.setattr(limits.Room, "of_queue", eager)


@plant(model)
def max_running_is_off_by_one(patch):
    allowance = limits.allowance
    patch.setattr(limits, "allowance", lambda limits, running, bucket, now: allowance(limits, running - 1, bucket, now))


@plant(model)
def low_priorities_go_first(patch):
    begin = order.QueueOrder.__init__

    def upside_down(self: Any, ranges: Any, taken: int, period: int) -> None:
        for source in ranges:
            source.priority = 15 - source.priority
        begin(self, ranges, taken, period)

    patch.setattr(order.QueueOrder, "__init__", upside_down)


@plant(model)
def the_turns_of_fair_share_are_not_stored(patch):
    claimed = step.Step.claimed

    def forgetful(self: step.Step, job: Job, row: Any) -> None:
        claimed(self, job, row)
        row.taken = 0

    patch.setattr(step.Step, "claimed", forgetful)


@plant(sentences("control", "test_nothing_is_claimed_from_a_paused_queue"))
def a_pause_is_ignored(patch):
    allowance = limits.allowance

    def deaf(settings: Any, *rest: Any) -> int:
        awake = msgspec.structs.replace(settings, paused=False) if isinstance(settings, QueueSettings) else settings
        return allowance(awake, *rest)

    patch.setattr(limits, "allowance", deaf)


# ── keys and dependencies ─────────────────────────────────────────────────────────────────────────


@plant(model)
def a_key_is_never_freed(patch):
    patch.setattr(step.Step, "_free_key", lambda self, job, *scopes: None)


@plant(model)
def a_key_is_not_held(patch):
    patch.setattr(admission._Plan, "_key_owner", lambda self, spec: None)


@plant(model)
def a_child_starts_after_its_first_parent(patch):
    ended = step.Step.parent_ended

    def hasty(self: step.Step, child_seq: int, parent: str, state: State) -> None:
        child = self.tables.by_seq(child_seq)
        if child is not None and state is State.COMPLETED:
            child.blocked = min(child.blocked, 1)
        ended(self, child_seq, parent, state)

    patch.setattr(step.Step, "parent_ended", hasty)


@plant(model)
def nobody_tells_the_children(patch):
    patch.setattr(step.Step, "_dependents", lambda self, job: [])


@plant(sentences("enqueueing", "test_the_same_enqueue_asked_again_gets_the_same_answer"))
def a_token_is_not_recognised(patch):
    patch.setattr(admission, "_is_repeat", lambda spec, token: False)


# ── the end of a job ──────────────────────────────────────────────────────────────────────────────


@plant(model)
def a_wish_to_cancel_is_forgotten(patch):
    settle = transition.settle

    def deaf(job: Job, change: Change, now: int) -> Event:
        job.cancel_requested = False
        return settle(job, change, now)

    patch.setattr(transition, "settle", deaf)


@plant(sentences("retention", "test_records_are_kept_for_their_time"))
def nothing_is_pruned(patch):
    patch.setattr(upkeep, "_prune", lambda step, row, limit: 0)


@plant(model)
def an_expired_job_may_still_run(patch):
    patch.setattr(ledger.Ledger, "expire", lambda self, step, limit: 0)
    take = limits.Room.take

    def careless(self: Any, source: Any, seq: int) -> bool:
        job = self._tables.by_seq(seq)
        expires_at, job.expires_at = job.expires_at, None
        try:
            return take(self, source, seq)
        finally:
            job.expires_at = expires_at

    patch.setattr(limits.Room, "take", careless)


REQUIRED = {
    "the_lease_is_not_checked",
    "a_line_is_ignored",
    "an_event_is_forgotten",
    "a_wake_up_is_dropped",
    "a_release_counts_as_a_failure",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PLANTS))
def test_a_planted_bug_is_found(name, monkeypatch):
    patch, found_by = PLANTS[name]
    patch(monkeypatch)
    monkeypatch.setattr(waiting, "PATIENCE", 8.0)  # by which a lost wake-up is found; a slow machine only fails sooner
    monkeypatch.setattr(waking, "DEADLINE", 8.0)

    with pytest.raises((AssertionError, KeyError)):  # a promise broken, or an index that lost its job
        found_by()


def test_the_bugs_that_must_be_found_are_planted():
    assert set(PLANTS) >= REQUIRED
    assert len(PLANTS) >= 25


@pytest.mark.parametrize("name", [name for name, (_, found_by) in PLANTS.items() if found_by is not model])
def test_without_the_bug_the_same_sentences_hold(name):
    PLANTS[name][1]()
