"""Upkeep: the changes that are due because time has passed. Each round does a limited number of changes.

Expiry comes before auto-retry. Every job that `dead_cap` evicts is recorded as an event and counted.
"""

from __future__ import annotations

from millrace.domain.event import Kind
from millrace.domain.job import FINISHED, State
from millrace.domain.ledger import Ledger
from millrace.domain.request import Maintained, Replayed
from millrace.domain.rules.dead import next_retry
from millrace.domain.rules.operate import set_archived
from millrace.domain.rules.replaying import bring_children_back, replay_one
from millrace.domain.rules.step import Step
from millrace.domain.rules.transition import recheck_after
from millrace.domain.tables import QueueRow

WORKER_MEMORY = 60 * 60 * 1000  # how long a worker without a heartbeat is still listed


def maintain(ledger: Ledger, now: int, limit: int) -> Maintained:
    jobs = maintain_jobs(ledger, now, limit)
    return add_up(jobs, trim(ledger, now, limit))


def maintain_jobs(ledger: Ledger, now: int, limit: int) -> Maintained:
    """Expire, prune, evict and auto-retry jobs, and delete expired results and keys. Return the number of each."""
    step = ledger.step(now)
    promoted = ledger.promote(step, limit)
    expired = ledger.expire(step, limit)
    pruned = evicted = archived = armed = 0
    for name in ledger.tables.queues():
        row = ledger.tables.queue(name)
        pruned += _prune(step, row, limit)
        gone, hidden = _cap_dead(step, row, limit)
        evicted += gone
        archived += hidden
        armed += _arm_dead(step, row, limit)
    retried = _auto_retry(step, limit)
    results, looked_at = _drop_results(step, limit)
    for hold in ledger.tables.lapsed_keys(now, limit):
        ledger.tables.drop_key(hold)
    bounds_met = (promoted, expired, pruned, evicted, archived, armed, retried, looked_at)
    return Maintained(expired, retried, pruned, evicted, archived, results, more=any(n >= limit for n in bounds_met))


def trim(ledger: Ledger, now: int, limit: int) -> Maintained:
    """Delete old events and the records of workers that stopped long ago. Return the number of each."""
    step = ledger.step(now)
    trimmed = _trim_history(step, limit)
    return Maintained(events=trimmed, workers=_forget_workers(step), more=trimmed >= limit)


def add_up(*parts: Maintained) -> Maintained:
    """Return the sum of the results of several rounds."""
    sums = {name: sum(getattr(part, name) for part in parts) for name in Maintained.__struct_fields__}
    return Maintained(**{**sums, "more": any(part.more for part in parts)})


def _prune(step: Step, row: QueueRow, limit: int) -> int:
    count = 0
    for dead, keep in ((True, row.settings.keep_dead), (False, row.settings.keep_completed)):
        if keep is None:
            continue
        seqs = step.tables.finished(row.name, dead, step.now - keep, limit)
        step.tables.prefetch_seqs(seqs)
        for seq in seqs:
            job = step.tables.by_seq(seq)
            if job is not None and job.state in FINISHED:
                step.remove(job, Kind.PRUNED, "retention")
                count += 1
    return count


def _cap_dead(step: Step, row: QueueRow, limit: int) -> tuple[int, int]:
    """Evict or archive the oldest dead jobs above `dead_cap`. Return (number evicted, number archived)."""
    settings = row.settings
    if settings.dead_cap is None or settings.dead_overflow == "reject":
        return 0, 0
    over = min(limit, row.dead - row.archived_dead - settings.dead_cap)
    if over <= 0:
        return 0, 0
    for seq in step.tables.oldest_unarchived_dead(row.name, over):
        job = step.tables.by_seq(seq)
        if job is None:
            continue
        if settings.dead_overflow == "evict":
            step.remove(job, Kind.EVICTED, "dead_cap")
        else:
            set_archived(step, job, True)
    return (over, 0) if settings.dead_overflow == "evict" else (0, over)


def _arm_dead(step: Step, row: QueueRow, limit: int) -> int:
    """Schedule an auto-retry for jobs that died before `auto_retries` was set or increased. Return how many jobs."""
    if not row.rearm:
        return 0
    settings = row.settings
    seqs = step.tables.seqs_of_queue(
        row.name,
        frozenset({State.DEAD}),
        limit,
        lambda job: job.next_retry_at is None and next_retry(job, settings) is not None,
    )
    step.tables.prefetch_seqs(seqs)
    for seq in seqs:
        job = step.tables.by_seq(seq)
        if job is not None and job.state is State.DEAD:
            job.next_retry_at = next_retry(job, settings)
            step.tables.update(job)
    if len(seqs) < limit:
        row.rearm = False
        step.tables.put_queue(row)
    return len(seqs)


def _auto_retry(step: Step, limit: int) -> int:
    back: list[str] = []
    for seq in step.tables.due_retries(step.now, limit):
        job = step.tables.by_seq(seq)
        if job is None or job.state is not State.DEAD:
            continue
        if next_retry(job, step.tables.queue(job.queue).settings) is None:  # auto-retry has been disabled since
            job.next_retry_at = None
            step.tables.update(job)
            continue
        job.auto_retries += 1
        if replay_one(step, job.spec.id, "auto_retry") is Replayed.REPLAYED:
            back.append(job.spec.id)
        else:  # another job holds its key: try again later; this counts as one of its auto-retries
            settings = step.tables.queue(job.queue).settings
            again = job.auto_retries < settings.auto_retries
            job.next_retry_at = step.now + settings.auto_retry_delay if again else None
            step.tables.update(job)
    bring_children_back(step, back)
    return len(back)


def _drop_results(step: Step, limit: int) -> tuple[int, int]:
    """Delete expired results that no child needs any more. Return (number deleted, number checked)."""
    seqs = step.tables.expired_results(step.now, limit)
    dropped = 0
    for seq in seqs:
        job = step.tables.by_seq(seq)
        if job is None:
            continue
        if job.has_dependents and step.tables.is_needed(job.id):
            job.result_until = step.now + recheck_after(job, step.now)
        elif job.has_dependents and job.spec.keep_result is None:  # its `result_until` was only for this check
            job.has_dependents, job.result_until = False, None
        else:
            job.result = job.result_until = None
            job.result_expired = True
            dropped += 1
        step.tables.update(job)
    return dropped, len(seqs)


def _trim_history(step: Step, limit: int) -> int:
    keep = step.tables.settings().keep_events
    if keep is None:
        return 0
    trimmed = step.tables.trim_events(step.now - keep, limit)
    for past in step.tables.stale_past(step.now - keep, limit):
        if not step.tables.children(past.id):  # dependents that wait need to know how this job ended
            step.tables.drop_past(past)
    return trimmed


def _forget_workers(step: Step) -> int:
    gone = [record.info.id for record in step.tables.workers() if not record.is_alive(step.now - WORKER_MEMORY)]
    for worker_id in gone:
        step.tables.drop_worker(worker_id)
    return len(gone)
