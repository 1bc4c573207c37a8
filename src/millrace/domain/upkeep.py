"""Upkeep: what time alone brings about. Bounded rounds; whoever runs one says how much it did.

Expiry wins over auto-retry (BE-10). What is evicted by the cap on dead letters is announced as an event and
counted, never silent (BE-09).
"""

from __future__ import annotations

from millrace.domain.event import Kind
from millrace.domain.job import FINISHED, State
from millrace.domain.ledger import Ledger
from millrace.domain.operate import replay_one, set_archived
from millrace.domain.request import Maintained, Replayed
from millrace.domain.step import Step
from millrace.domain.tables import QueueRow

WORKER_MEMORY = 60 * 60 * 1000  # how long a worker that stopped beating is still shown as gone


def maintain(ledger: Ledger, now: int, limit: int) -> Maintained:
    done = look_after_jobs(ledger, now, limit)
    return add_up(done, forget_the_past(ledger, now, limit))


def look_after_jobs(ledger: Ledger, now: int, limit: int) -> Maintained:
    """What has expired, is to be pruned, evicted or brought back."""
    step = ledger.step(now)
    promoted = ledger.promote(step, limit)
    expired = ledger.expire(step, limit)
    pruned = evicted = archived = 0
    for name in ledger.tables.queues():
        row = ledger.tables.queue(name)
        pruned += _prune(step, row, limit)
        gone, hidden = _cap_dead(step, row, limit)
        evicted += gone
        archived += hidden
    retried = _auto_retry(step, limit)
    results = _drop_results(step, limit)
    for hold in ledger.tables.lapsed_keys(now, limit):
        ledger.tables.drop_key(hold)
    bounds_met = (promoted, expired, pruned, evicted, archived, retried, results)
    return Maintained(expired, retried, pruned, evicted, archived, results, more=any(n >= limit for n in bounds_met))


def forget_the_past(ledger: Ledger, now: int, limit: int) -> Maintained:
    """Events past their retention, those of the round before too, and workers that have been gone for long."""
    step = ledger.step(now)
    trimmed = _trim_history(step, limit)
    return Maintained(events=trimmed, workers=_forget_workers(step), more=trimmed >= limit)


def add_up(*parts: Maintained) -> Maintained:
    """What several rounds did together."""
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
    """(evicted, archived): what the cap on dead letters took away, oldest first."""
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


def _auto_retry(step: Step, limit: int) -> int:
    count = 0
    for seq in step.tables.due_retries(step.now, limit):
        job = step.tables.by_seq(seq)
        if job is None or job.state is not State.DEAD:
            continue
        job.auto_retries += 1
        if replay_one(step, job.spec.id, "auto_retry") is Replayed.REPLAYED:
            count += 1
        else:  # its key is held by another job now: try again later, within the same number of tries
            settings = step.tables.queue(job.queue).settings
            again = job.auto_retries < settings.auto_retries
            job.next_retry_at = step.now + settings.auto_retry_delay if again else None
            step.tables.update(job)
    return count


def _drop_results(step: Step, limit: int) -> int:
    seqs = step.tables.expired_results(step.now, limit)
    for seq in seqs:
        job = step.tables.by_seq(seq)
        if job is not None:
            job.result = job.result_until = None
            job.result_expired = True
            step.tables.update(job)
    return len(seqs)


def _trim_history(step: Step, limit: int) -> int:
    keep = step.tables.settings().keep_events
    if keep is None:
        return 0
    trimmed = step.tables.trim_events(step.now - keep, limit)
    for past in step.tables.stale_past(step.now - keep, limit):
        if not step.tables.children(past.id):  # a dependent still needs to know how this one ended (BE-05)
            step.tables.drop_past(past)
    return trimmed


def _forget_workers(step: Step) -> int:
    gone = [
        record.info.id for record in step.tables.workers() if record.last_beat + record.ttl + WORKER_MEMORY < step.now
    ]
    for worker_id in gone:
        step.tables.drop_worker(worker_id)
    return len(gone)
