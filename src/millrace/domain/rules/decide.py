"""Decides what happens to a job, given how its run ended.

The retry rules are here, except for a task's own backoff function, which `worker/settler.py` calls.
"""

from __future__ import annotations

from typing import assert_never

from millrace.domain.change import Change
from millrace.domain.job import Job
from millrace.domain.outcome import (
    Buried,
    CancelledOnRequest,
    Failure,
    Lost,
    Outcome,
    Raised,
    Released,
    Returned,
    Snoozed,
    TimedOut,
)


def decide(job: Job, outcome: Outcome, chance: float) -> Change:
    """Return the change to settle `job` with. `chance` is a random number in [0, 1), used for the jitter."""
    match outcome:
        case Returned(result):
            return Change.completed(result)
        case Snoozed(delay):
            return Change.snooze(delay)
        case Released(delay):
            return Change.release(delay)
        case CancelledOnRequest():
            return Change.cancel()
        case Buried(error, reason):
            return Change.bury(error, reason)
        case Lost(error, worker_gone):
            return _after_loss(job, error, "worker_lost" if worker_gone else "stalled", chance)
        case TimedOut(error):
            if job.spec.on_timeout == "bury" or budget_used(job):
                return Change.bury(error, "timeout")
            return Change.retry(error, delay=job.spec.retry.delay(job.failures, chance))
        case Raised(error, after):
            if budget_used(job):
                return Change.bury(error, "max_attempts_exceeded")
            delay = job.spec.retry.delay(job.failures, chance) if after is None else after
            return Change.retry(error, delay=delay)
        case _:
            assert_never(outcome)


def budget_used(job: Job) -> bool:
    """Return whether one more failure brings the job's failures to `max_attempts`, so that the job is buried."""
    return job.spec.max_attempts is not None and job.failures + 1 >= job.spec.max_attempts


def _after_loss(job: Job, error: Failure, reason: str, chance: float) -> Change:
    """Return the change after a lost lease: a retry, or a bury if `max_stalls` or `max_attempts` is reached."""
    poison = job.spec.max_stalls is not None and job.stalls + 1 >= job.spec.max_stalls
    if poison or budget_used(job):
        return Change.bury(error, reason, stalled=1)
    return Change.retry(error, delay=job.spec.retry.delay(job.failures, chance), stalled=1)
