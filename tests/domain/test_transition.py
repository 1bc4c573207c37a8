"""One-job transitions: each changes the facts it should, and tells it in one event (part 1)."""

from __future__ import annotations

import msgspec
import pytest

from millrace.domain.change import Change, Verb
from millrace.domain.event import Kind
from millrace.domain.job import Attempt, Job, State, word
from millrace.domain.rules import transition
from millrace.testing import a_burial, a_failure, a_retry_change, a_spec, seconds

NOW = 1_000_000


def waiting(**spec: object) -> Job:
    job, _ = transition.enqueue(a_spec(**spec), 7, 1, NOW)
    return job


def running(**spec: object) -> Job:
    job = waiting(**spec)
    transition.claim(job, "w", "lease-1", seconds(30), NOW)
    return job


def test_enqueue() -> None:
    spec = a_spec(delay=5, expires=60)
    job, event = transition.enqueue(spec, 7, 2, NOW, blocked=3, lane=1)

    assert (job.spec, job.seq, job.generation, job.state) == (spec, 7, 2, State.WAITING)
    assert (job.enqueued_at, job.available_at, job.expires_at) == (NOW, NOW + 5_000, NOW + 60_000)
    assert (job.blocked, job.lane, job.events) == (3, 1, 1)
    assert (event.kind, event.n, event.at, event.delay, event.state) == (Kind.ENQUEUED, 1, NOW, 5_000, "waiting")
    assert waiting().expires_at is None
    assert transition.enqueue(a_spec(), 1, 1, NOW)[1].delay is None


def test_claim() -> None:
    job = msgspec.structs.replace(waiting(), holds=True, progress=b"50")
    event = transition.claim(job, "w", "lease-1", 30, NOW + 1)

    assert (job.state, job.attempt, job.holds, job.progress) == (State.RUNNING, 1, False, None)
    assert (job.worker, job.lease_id, job.lease_until, job.started_at) == ("w", "lease-1", NOW + 31, NOW + 1)
    assert (event.kind, event.n, event.worker, event.lease, event.attempt) == (Kind.CLAIMED, 2, "w", "lease-1", 1)


def test_reclaim_is_no_run() -> None:
    job = running()
    event = transition.reclaim(job, "reaper", "lease-2", 20, NOW + 5)

    assert (job.state, job.attempt, job.worker, job.lease_id) == (State.RUNNING, 1, "w", "lease-2")
    assert job.lease_until == NOW + 25
    assert (event.kind, event.worker, event.reason, event.lease) == (Kind.RECLAIMED, "reaper", "w", "lease-2")


def test_settle_completed() -> None:
    job = msgspec.structs.replace(running(keep_result=60), error=a_failure(), reason="old", progress=b"9")
    event = transition.settle(job, Change.completed(b"1", duration=5), NOW)

    assert (job.state, job.result, job.result_until) == (State.COMPLETED, b"1", NOW + 60_000)
    assert (job.finished_at, job.error, job.reason, job.failures, job.progress) == (NOW, None, None, 0, None)
    assert (job.worker, job.lease_id, job.lease_until) == (None, None, None)
    assert (event.kind, event.worker, event.lease, event.duration) == (Kind.COMPLETED, "w", "lease-1", 5)


@pytest.mark.parametrize(
    ("keep", "result", "facts"),
    [
        (None, b"1", (b"1", None, False)),
        (5, b"1", (b"1", NOW + 5_000, False)),
        (5, None, (None, None, False)),
        (None, None, (None, None, False)),
        (0, b"1", (None, None, True)),
        (0, None, (None, None, False)),
    ],
)
def test_how_long_a_result_is_kept(keep: int | None, result: bytes | None, facts: tuple[object, ...]) -> None:
    job = running(keep_result=keep)
    transition.settle(job, Change.completed(result), NOW)

    assert (job.result, job.result_until, job.result_expired) == facts


def test_settle_retry() -> None:
    job = running()
    error = a_failure("no")
    event = transition.settle(job, Change.retry(error, delay=50), NOW)

    assert (job.state, job.failures, job.stalls, job.available_at) == (State.WAITING, 1, 0, NOW + 50)
    assert (job.error, job.snoozes, job.releases, job.finished_at) == (error, 0, 0, None)
    assert job.attempts == (Attempt(1, NOW, error, None, "w"),)
    assert (event.kind, event.delay, event.error, event.failures) == (Kind.RETRIED, 50, error, 1)


@pytest.mark.parametrize(
    ("measured", "at", "kept"), [(None, NOW + 70, 70), (12, NOW + 70, 12), (0, NOW + 70, 0), (None, NOW - 5, 0)]
)
def test_a_lost_run_lasts_until_it_is_settled_unless_its_worker_measured_it(
    measured: int | None, at: int, kept: int
) -> None:
    job = running()
    change = msgspec.structs.replace(Change.retry(a_failure(), delay=50, stalled=1), duration=measured)
    event = transition.settle(job, change, at)

    assert (job.failures, job.stalls, job.attempts[0].duration, event.duration) == (1, 1, kept, kept)


@pytest.mark.parametrize(
    ("spec", "lane", "verb", "holds"),
    [
        ({}, None, Verb.RETRY, False),
        ({"group": "g"}, None, Verb.RETRY, True),
        ({"group": "g", "retry_blocks": False}, None, Verb.RETRY, False),
        ({}, 0, Verb.RETRY, True),
        ({"group": "g"}, None, Verb.SNOOZE, False),
        ({"group": "g"}, None, Verb.RELEASE, False),
    ],
)
def test_only_a_retry_in_a_line_holds_it(spec: dict[str, object], lane: int | None, verb: Verb, holds: bool) -> None:
    job = running(**spec)
    job.lane = lane
    transition.settle(job, Change(verb, delay=5), NOW)

    assert job.holds is holds


def test_settle_snooze_and_release_are_counted_apart_and_as_no_failure() -> None:
    snoozed, released = running(), running()
    first = transition.settle(snoozed, Change.snooze(50), NOW)
    second = transition.settle(released, Change.release(5), NOW)

    assert (snoozed.snoozes, snoozed.releases, snoozed.failures, snoozed.available_at) == (1, 0, 0, NOW + 50)
    assert (released.snoozes, released.releases, released.failures, released.available_at) == (0, 1, 0, NOW + 5)
    assert (first.kind, second.kind, snoozed.attempts) == (Kind.SNOOZED, Kind.RELEASED, ())


def test_settle_bury() -> None:
    job = running()
    event = transition.settle(job, a_burial("timeout", "slow"), NOW)

    assert (job.state, job.reason, job.failures, job.finished_at) == (State.DEAD, "timeout", 1, NOW)
    assert job.error == a_failure("slow")
    assert (event.kind, event.reason, event.error) == (Kind.BURIED, "timeout", a_failure("slow"))


def test_settle_cancel() -> None:
    job = running()
    event = transition.settle(job, Change.cancel(), NOW)

    assert (job.state, job.reason, job.finished_at) == (State.CANCELLED, "requested", NOW)
    assert (event.kind, event.reason) == (Kind.CANCELLED, "requested")


@pytest.mark.parametrize("change", [a_retry_change(5), Change.snooze(5), Change.release(5)])
def test_a_job_to_be_cancelled_does_not_go_back_to_waiting(change: Change) -> None:
    job = running()
    job.cancel_requested = True
    event = transition.settle(job, change, NOW)

    assert (job.state, job.reason, job.cancel_requested) == (State.CANCELLED, "requested", False)
    assert (event.kind, event.delay) == (Kind.CANCELLED, None)


@pytest.mark.parametrize("change", [Change.completed(), a_burial()])
def test_a_job_to_be_cancelled_may_still_end(change: Change) -> None:
    job = running()
    job.cancel_requested = True
    transition.settle(job, change, NOW)

    assert job.state in (State.COMPLETED, State.DEAD)


def test_the_history_of_attempts_keeps_the_first_and_the_last_fifty() -> None:
    job = running()
    for n in range(1, 54):
        job.attempt = n
        transition.settle(job, a_retry_change(0), NOW)
        kept = [attempt.attempt for attempt in job.attempts]
        assert kept == ([*range(1, n + 1)] if n <= 50 else [1, *range(n - 48, n + 1)])


def test_unblock_and_bury_while_waiting() -> None:
    job = waiting()
    assert transition.unblock(job, NOW).kind is Kind.UNBLOCKED
    event = transition.bury(job, "ttl_expired", NOW, a_failure())

    assert (job.state, job.reason, job.error, job.finished_at) == (State.DEAD, "ttl_expired", a_failure(), NOW)
    assert (event.kind, event.reason, event.lease, event.failures) == (Kind.BURIED, "ttl_expired", None, 0)


def test_cancel_cuts_off_a_lease() -> None:
    job = running()
    event = transition.cancel(job, NOW, "obliterated")

    assert (job.state, job.reason, job.finished_at) == (State.CANCELLED, "obliterated", NOW)
    assert (job.worker, job.lease_id, job.lease_until) == (None, None, None)
    assert (event.kind, event.reason, event.lease) == (Kind.CANCELLED, "obliterated", None)


def test_replay_gives_a_fresh_budget_and_keeps_the_history() -> None:
    job = running(expires=60)
    transition.settle(job, a_burial(), NOW)
    job = msgspec.structs.replace(job, archived=True, stalls=2, next_retry_at=NOW, result_expired=True)
    event = transition.replay(job, NOW + 9, "auto_retry")

    assert (job.state, job.failures, job.stalls, job.replays, job.attempt) == (State.WAITING, 0, 0, 1, 1)
    assert (job.available_at, job.expires_at, job.finished_at, job.next_retry_at) == (NOW + 9, NOW + 60_009, None, None)
    assert (job.archived, job.result_expired, job.error, job.reason) == (False, False, None, None)
    assert len(job.attempts) == 1
    assert (event.kind, event.reason, event.failures) == (Kind.REPLAYED, "auto_retry", 0)
    other = running()
    transition.settle(other, Change.completed(b"1"), NOW)
    transition.replay(other, NOW)
    assert (other.expires_at, other.result, other.result_until) == (None, None, None)


def test_archive_and_remove_leave_the_state_alone() -> None:
    job = running()
    transition.settle(job, Change.completed(), NOW)
    assert (transition.archive(job, True, NOW).kind, job.archived) == (Kind.ARCHIVED, True)
    assert (transition.archive(job, False, NOW).kind, job.archived) == (Kind.UNARCHIVED, False)
    event = transition.remove(job, Kind.PRUNED, NOW, "retention")

    assert (event.kind, event.reason, event.state, event.n) == (Kind.PRUNED, "retention", "completed", 6)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, "ready"),
        ({"available_at": NOW + 1}, "scheduled"),
        ({"available_at": NOW + 1, "failures": 1}, "retrying"),
        ({"failures": 1}, "ready"),
        ({"blocked": 1}, "blocked"),
        ({"blocked": 1, "available_at": NOW + 1}, "blocked"),
        ({"state": State.RUNNING}, "running"),
        ({"state": State.DEAD, "blocked": 1}, "dead"),
    ],
)
def test_the_words_people_see(facts: dict[str, object], expected: str) -> None:
    job = waiting()
    for name, value in facts.items():
        setattr(job, name, value)

    assert word(job, NOW) == expected


def test_only_a_running_job_has_a_lease() -> None:
    job = running()
    assert (job.lease.job, job.lease.seq, job.lease.id, job.fence) == (job.id, 7, "lease-1", (7, 1))
    transition.settle(job, Change.completed(), NOW)

    with pytest.raises(ValueError, match="is not running, so it has no lease"):
        _ = job.lease


@pytest.mark.parametrize(
    ("spec", "lane", "line"),
    [
        ({}, None, None),
        ({"group": "g"}, None, "g:g"),
        ({"group": "g"}, 3, "l:3"),
        ({}, 0, "l:0"),
        ({"group": "g", "hook": True}, None, None),
    ],
)
def test_the_line_a_job_belongs_to(spec: dict[str, object], lane: int | None, line: str | None) -> None:
    job = waiting(**spec)
    job.lane = lane

    assert job.line == line
