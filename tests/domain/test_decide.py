"""Decide: what becomes of a job, given how its run ended (part 2: attempts, lost lease, timeout)."""

from __future__ import annotations

import pytest

from millrace.domain.change import Change
from millrace.domain.job import Job, State
from millrace.domain.outcome import Buried, CancelledOnRequest, Lost, Raised, Released, Returned, Snoozed, TimedOut
from millrace.domain.rules.decide import budget_used, decide
from millrace.testing import a_failure, a_retry, a_spec

ERROR = a_failure()


def a_job(failures: int = 0, stalls: int = 0, **spec: object) -> Job:
    spec.setdefault("retry", a_retry(initial=1, factor=2))
    return Job(a_spec(**spec), 1, 1, State.RUNNING, 0, 0, attempt=failures + 1, failures=failures, stalls=stalls)


def test_what_was_returned_completes() -> None:
    assert decide(a_job(), Returned(b"1"), 0.5) == Change.completed(b"1")


def test_a_wish_to_run_later_is_a_snooze() -> None:
    assert decide(a_job(failures=3), Snoozed(7), 0.5) == Change.snooze(7)


def test_a_job_given_back_is_released() -> None:
    assert decide(a_job(failures=3), Released(7), 0.5) == Change.release(7)


def test_an_aborted_run_is_cancelled() -> None:
    assert decide(a_job(), CancelledOnRequest(), 0.5) == Change.cancel()


def test_a_burial_is_final() -> None:  # O-34
    assert decide(a_job(), Buried(ERROR, "payload_invalid"), 0.5) == Change.bury(ERROR, "payload_invalid")


@pytest.mark.parametrize(("failures", "delay"), [(0, 1_000), (1, 2_000), (2, 4_000)])
def test_an_error_is_retried_with_growing_delay(failures: int, delay: int) -> None:  # O-34
    assert decide(a_job(failures), Raised(ERROR), 0.5) == Change.retry(ERROR, delay=delay)


def test_the_failure_that_uses_up_the_budget_buries() -> None:
    assert decide(a_job(failures=3), Raised(ERROR), 0.5) == Change.bury(ERROR, "max_attempts_exceeded")
    assert decide(a_job(failures=9, max_attempts=10), Raised(ERROR), 0.5).reason == "max_attempts_exceeded"


def test_without_a_budget_nothing_buries() -> None:
    assert decide(a_job(failures=10**6, max_attempts=None), Raised(ERROR), 0.5) == Change.retry(ERROR, delay=60_000)


def test_a_handler_says_when_to_come_back() -> None:
    assert decide(a_job(), Raised(ERROR, after=0), 0.5) == Change.retry(ERROR, delay=0)
    assert decide(a_job(), Raised(ERROR, after=99), 0.5) == Change.retry(ERROR, delay=99)
    assert decide(a_job(failures=3), Raised(ERROR, after=99), 0.5).reason == "max_attempts_exceeded"


def test_a_timeout_is_retried_until_the_budget_is_used() -> None:  # O-34
    assert decide(a_job(failures=1), TimedOut(ERROR), 0.5) == Change.retry(ERROR, delay=2_000)
    assert decide(a_job(failures=3), TimedOut(ERROR), 0.5) == Change.bury(ERROR, "timeout")


def test_a_timeout_may_bury_at_once() -> None:
    assert decide(a_job(on_timeout="bury"), TimedOut(ERROR), 0.5) == Change.bury(ERROR, "timeout")


@pytest.mark.parametrize(("gone", "reason"), [(True, "worker_lost"), (False, "stalled")])
def test_a_loss_is_retried_and_counted_as_a_stall(gone: bool, reason: str) -> None:
    lost = Lost(ERROR, worker_gone=gone)

    assert decide(a_job(failures=1, stalls=1), lost, 0.5) == Change.retry(ERROR, delay=2_000, stalled=1)
    assert decide(a_job(failures=3), lost, 0.5) == Change.bury(ERROR, reason, stalled=1)
    assert decide(a_job(stalls=2, max_attempts=None), lost, 0.5) == Change.bury(ERROR, reason, stalled=1)
    assert decide(a_job(stalls=9, max_stalls=None), lost, 0.5) == Change.retry(ERROR, delay=1_000, stalled=1)
    assert decide(a_job(stalls=0, max_stalls=1), lost, 0.5).reason == reason


def test_chance_spreads_every_backoff() -> None:
    job = a_job(retry=a_retry(initial=10, jitter=0.25))
    for outcome in (Raised(ERROR), TimedOut(ERROR), Lost(ERROR)):
        assert [decide(job, outcome, chance).delay for chance in (0.0, 0.5, 1.0)] == [7_500, 10_000, 12_500]


@pytest.mark.parametrize(
    ("failures", "budget", "used"), [(0, 1, True), (0, 2, False), (1, 2, True), (5, 2, True), (99, None, False)]
)
def test_the_budget_is_used_when_one_more_failure_would_be_the_last(
    failures: int, budget: int | None, used: bool
) -> None:
    assert budget_used(a_job(failures, max_attempts=budget)) is used
