"""Transitions of one job: the state machine.

`enqueue` creates a job; every other function changes the job in place. All return the event.

The caller passes a record that it may change: the ledger passes its own record, the object store a copy that it then
writes with compare-and-swap. Consequences for lines, dependents, keys and limits are in `step.py`, not here.
"""

from __future__ import annotations

from msgspec import UNSET

from millrace.domain.change import RETURNS_TO_WAITING, Change, Verb
from millrace.domain.event import Event, Kind
from millrace.domain.job import MINUTE, Attempt, Job, Spec, State
from millrace.domain.outcome import Failure

RECHECK_RESULT = MINUTE  # when to check again whether an expired result is still needed by a dependent

MAX_ATTEMPT_HISTORY = 50
MAX_CARRIED = 100

_KIND_OF_VERB = {
    Verb.COMPLETE: Kind.COMPLETED,
    Verb.RETRY: Kind.RETRIED,
    Verb.SNOOZE: Kind.SNOOZED,
    Verb.RELEASE: Kind.RELEASED,
    Verb.BURY: Kind.BURIED,
    Verb.CANCEL: Kind.CANCELLED,
}


def enqueue(
    spec: Spec, seq: int, generation: int, now: int, *, blocked: int = 0, lane: int | None = None
) -> tuple[Job, Event]:
    job = Job(
        spec,
        seq,
        generation,
        State.WAITING,
        now,
        now + spec.delay,
        None if spec.expires is None else now + spec.expires,
        events=1,
        blocked=blocked,
        lane=lane,
    )
    delay = spec.delay or None
    # Does not call `_event`: this is the most frequent transition.
    return job, Event(
        spec.id, seq, generation, 1, Kind.ENQUEUED, now, spec.queue, spec.task, State.WAITING, 0, 0, None, None, delay
    )


def claim(job: Job, worker: str, lease_id: str, lease: int, now: int) -> Event:
    job.state = State.RUNNING
    job.attempt += 1
    job.holds = False
    job.started_at = now
    job.worker, job.lease_id, job.lease_until = worker, lease_id, now + lease
    job.progress = None
    return _event(job, Kind.CLAIMED, now, worker=worker, lease=lease_id)


def reclaim(job: Job, worker: str, lease_id: str, lease: int, now: int) -> Event:
    """Give the job a new lease, which the reaper holds until it settles the job.

    `attempt` does not change, because no run starts. `job.worker` does not change, because the lost attempt is recorded
    under the name of the worker that ran the job.
    """
    job.lease_id, job.lease_until = lease_id, now + lease
    return _event(job, Kind.RECLAIMED, now, worker=worker, lease=lease_id, reason=job.worker)


def settle(job: Job, change: Change, now: int) -> Event:
    """Apply `change` at the end of a run. If a cancel was requested, the job is cancelled instead of waiting again."""
    verb = change.verb
    if job.cancel_requested and verb in RETURNS_TO_WAITING:
        verb = Verb.CANCEL
    worker, lease_id = job.worker, job.lease_id
    duration = _duration(job, change, now)
    job.failures += change.failed
    job.stalls += change.stalled
    if change.failed or change.jobs:
        _remember(job, change, duration, now)
    job.worker = job.lease_id = job.lease_until = None
    delay: int | None = None
    reason = change.reason
    if verb is Verb.COMPLETE:
        job.state = State.COMPLETED
        job.error = job.reason = None
        _keep_result(job, change, now)
        _finish(job, now)
    elif verb is Verb.BURY:
        job.state = State.DEAD
        job.error, job.reason = change.error, change.reason
        _finish(job, now)
    elif verb is Verb.CANCEL:
        job.state = State.CANCELLED
        job.reason = reason = change.reason or "requested"
        _finish(job, now)
    else:
        job.state = State.WAITING
        delay = change.delay
        if verb is Verb.RELEASE and delay == 0:
            job.available_at = min(job.available_at, now)  # it keeps its place in the order of claims
        else:
            job.available_at = now + delay
        if verb is Verb.RETRY:
            job.error = change.error
            job.holds = job.line is not None and job.spec.retry_blocks
        elif verb is Verb.SNOOZE:
            job.snoozes += 1
        else:
            job.releases += 1
    return _event(
        job,
        _KIND_OF_VERB[verb],
        now,
        worker=worker,
        lease=lease_id,
        delay=delay,
        reason=reason,
        error=change.error,
        duration=duration,
    )


def unblock(job: Job, now: int) -> Event:
    return _event(job, Kind.UNBLOCKED, now)


def bury(job: Job, reason: str, now: int, error: Failure | None = None, parent: str | None = None) -> Event:
    """Bury a waiting job, because it has expired, or because a parent died or was cancelled."""
    job.state = State.DEAD
    job.reason, job.error, job.failed_parent = reason, error, parent
    _finish(job, now)
    return _event(job, Kind.BURIED, now, reason=reason, error=error)


def cancel(job: Job, now: int, reason: str | None = None) -> Event:
    """Cancel a waiting job. `obliterate` also uses this for running jobs."""
    job.state = State.CANCELLED
    job.reason = reason
    job.worker = job.lease_id = job.lease_until = None
    _finish(job, now)
    return _event(job, Kind.CANCELLED, now, reason=reason)


def replay(job: Job, now: int, reason: str | None = None) -> Event:
    """Return a finished job to waiting, with its failures reset and its history kept."""
    job.state = State.WAITING
    job.available_at = now
    job.expires_at = None if job.spec.expires is None else now + job.spec.expires
    job.finished_at = job.next_retry_at = None
    job.failures = job.stalls = 0
    job.replays += 1
    if reason != "auto_retry":
        job.auto_retries = 0
    job.archived = job.cancel_requested = job.result_expired = False
    job.result = job.result_until = job.error = job.reason = job.failed_parent = job.carried = None
    return _event(job, Kind.REPLAYED, now, reason=reason)


def archive(job: Job, archived: bool, now: int) -> Event:
    """Archive or unarchive a finished job. Its state does not change."""
    job.archived = archived
    return _event(job, Kind.ARCHIVED if archived else Kind.UNARCHIVED, now)


def remove(job: Job, kind: Kind, now: int, reason: str | None = None) -> Event:
    """Return the last event of a job, whose record the caller deletes. `kind` is `pruned` or `evicted`."""
    return _event(job, kind, now, reason=reason)


def _finish(job: Job, now: int) -> None:
    job.finished_at = now
    job.holds = job.cancel_requested = False
    job.progress = None


def _keep_result(job: Job, change: Change, now: int) -> None:
    result = change.result
    keep = job.spec.keep_result if change.keep_result is UNSET else change.keep_result
    if keep == 0:
        job.result_expired = result is not None
        return
    job.result = result
    job.result_until = None if keep is None or result is None else now + keep


def keep_for_children(job: Job, now: int) -> bool:
    """Keep the result of a completed job, and so its record, until upkeep finds that no child of it is live.

    Return whether this changes the job. A result that is kept as long as its record gets a `result_until`, so that
    upkeep checks it.
    """
    if job.state is not State.COMPLETED or job.result is None or job.has_dependents:
        return False
    job.has_dependents = True
    if job.result_until is None:
        job.result_until = now + recheck_after(job, now)
    return True


def recheck_after(job: Job, now: int) -> int:
    """Return the delay in ms before the next check whether a child needs this result.

    The delay is a tenth of the age of the result, and at least a minute.
    """
    return max(RECHECK_RESULT, (now - (job.finished_at or now)) // 10)


def _duration(job: Job, change: Change, now: int) -> int | None:
    """Return the duration that the worker measured. For a lost run, return the time from its claim until now."""
    if change.duration is not None or not change.stalled or job.started_at is None:
        return change.duration
    return max(0, now - job.started_at)


def _remember(job: Job, change: Change, duration: int | None, now: int) -> None:
    """Add a failed attempt to the list of the job, which keeps at most 50: the first and the latest 49.

    Add the ids of the jobs that the run enqueues, of which the latest 100 are kept.
    """
    if change.failed:
        latest = Attempt(job.attempt, now, change.error, duration, job.worker)
        kept = job.attempts
        if len(kept) >= MAX_ATTEMPT_HISTORY:
            kept = (kept[0], *kept[2:])
        job.attempts = (*kept, latest)
    if change.jobs:
        job.carried = (*(job.carried or ()), *[spec.id for spec in change.jobs])[-MAX_CARRIED:]


def _event(
    job: Job,
    kind: Kind,
    now: int,
    *,
    worker: str | None = None,
    lease: str | None = None,
    delay: int | None = None,
    reason: str | None = None,
    error: Failure | None = None,
    duration: int | None = None,
) -> Event:
    job.events += 1
    spec = job.spec
    return Event(
        spec.id,
        job.seq,
        job.generation,
        job.events,
        kind,
        now,
        spec.queue,
        spec.task,
        job.state,
        job.attempt,
        job.failures,
        worker,
        lease,
        delay,
        reason,
        error,
        duration,
    )
