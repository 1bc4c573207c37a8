"""Operations on jobs and queues: cancel, archive, delete, change settings, drain, obliterate, and queries.

Each function is one atomic step over a ledger's tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from millrace.domain.errors import InvalidInput, LanesInUse
from millrace.domain.event import Kind
from millrace.domain.job import ALIASES, FINISHED, LIVE, Job, State, Word, lane_line
from millrace.domain.ledger import Ledger, without_expired_result
from millrace.domain.request import (
    Archived,
    Cancelled,
    Deleted,
    LaneStatus,
    Page,
    Partition,
    Query,
    QueueCounts,
    WorkerInfo,
    WorkerRecord,
)
from millrace.domain.rules import transition
from millrace.domain.rules.check import check_name
from millrace.domain.rules.step import Step
from millrace.domain.settings import Limits, QueueSettings, StoreSettings, updated
from millrace.domain.tables import ANY_NUMBER, CANCELS, TaskRow

MOST_AHEAD = 10_000
MOST_DIGITS = 18  # of a cursor: more would not fit 64 bits
SEARCH_BUDGET = 5_000
STATE_WORDS = {*State, *get_args(Word), *ALIASES}
Target = Literal["queue", "task", "store"]


def cancel(ledger: Ledger, ids: Sequence[str], running: Literal["refuse", "request"], now: int) -> list[Cancelled]:
    step = ledger.step(now)
    ledger.tables.prefetch_ids(ids)
    return [_cancel_one(step, job_id, running) for job_id in ids]


def _cancel_one(step: Step, job_id: str, running: str) -> Cancelled:
    job = step.tables.by_id(job_id)
    if job is None:
        return Cancelled.NOT_FOUND
    if job.state is State.WAITING:
        step.log(transition.cancel(job, step.now))
        step.finished(job, State.WAITING)
        step.carry_out()
        return Cancelled.CANCELLED
    if job.state is not State.RUNNING:
        return Cancelled(job.state.value)
    if running == "refuse":
        return Cancelled.RUNNING
    job.cancel_requested = True
    step.tables.update(job)
    step.tables.wake((CANCELS, job.worker), 1)
    return Cancelled.REQUESTED


def archive(ledger: Ledger, ids: Sequence[str], archived: bool, now: int) -> list[Archived]:
    step = ledger.step(now)
    ledger.tables.prefetch_ids(ids)
    return [_archive_one(step, job_id, archived) for job_id in ids]


def _archive_one(step: Step, job_id: str, archived: bool) -> Archived:
    job = step.tables.by_id(job_id)
    if job is None:
        return Archived.NOT_FOUND
    if job.state not in FINISHED:
        return Archived.NOT_FINISHED
    if job.archived == archived:
        return Archived.UNCHANGED
    set_archived(step, job, archived)
    return Archived.DONE


def set_archived(step: Step, job: Job, archived: bool) -> None:
    by = 1 if archived else -1
    row = step.tables.queue(job.queue)
    row.archived += by
    row.archived_dead += by if job.state is State.DEAD else 0
    step.tables.put_queue(row)
    step.log(transition.archive(job, archived, step.now))
    step.tables.update(job)


def delete(ledger: Ledger, ids: Sequence[str], now: int) -> list[Deleted]:
    """Delete finished jobs before their retention ends; return one answer per id. Writes the event `pruned`."""
    step = ledger.step(now)
    ledger.tables.prefetch_ids(ids)
    return [_delete_one(step, job_id) for job_id in ids]


def _delete_one(step: Step, job_id: str) -> Deleted:
    job = step.tables.by_id(job_id)
    if job is None:
        return Deleted.NOT_FOUND
    if job.state not in FINISHED:
        return Deleted.NOT_FINISHED
    step.remove(job, Kind.PRUNED, "deleted")
    return Deleted.DELETED


def control(
    ledger: Ledger, target: Target, name: str, changes: Mapping[str, Any], now: int
) -> QueueSettings | Limits | StoreSettings:
    """Change the settings of a queue, a task or the store, and return them. With no `changes`, only return them."""
    if changes and target != "store":
        ledger.refuse_if_closed()
    if target == "queue":
        check_name("queue", name)
        return _control_queue(ledger, name, changes, now)
    if target == "task":
        check_name("task", name)
        return _control_task(ledger, name, changes)
    settings = updated(ledger.tables.settings(), changes)
    if changes:
        ledger.tables.put_settings(settings)
    return settings


def _control_queue(ledger: Ledger, name: str, changes: Mapping[str, Any], now: int) -> QueueSettings:
    row = ledger.tables.queue(name)
    old = row.settings
    new = updated(old, changes)
    if new == old:
        return new
    if new.lanes != old.lanes and row.live > 0:  # `live` leaves out hooks, which have no lane
        raise LanesInUse(name, old.lanes, new.lanes, row.live)
    row.settings = new
    if new.rate != old.rate or new.burst != old.burst:
        row.bucket = None
    if new.fair_share != old.fair_share:
        row.taken = 0  # counted from here on, so a store need not count claims of queues without fair_share
    if new.auto_retries != old.auto_retries:
        row.rearm = new.auto_retries > old.auto_retries
    ledger.tables.put_queue(row)
    step = ledger.step(now)
    for lane in set(old.paused_lanes) ^ set(new.paused_lanes):
        line = ledger.tables.line(name, lane_line(lane))
        if line is not None:
            step.elect(line)
    ledger.tables.wake((name, None), row.waiting)
    return new


def _control_task(ledger: Ledger, name: str, changes: Mapping[str, Any]) -> Limits:
    if not changes:
        known = ledger.tables.task(name)
        return Limits() if known is None else known.limits
    row = ledger.tables.task(name) or TaskRow(name, running=ledger.tables.running_of_task(name))
    old, row.limits = row.limits, updated(row.limits, changes)
    if row.limits.rate != old.rate or row.limits.burst != old.burst:
        row.bucket = None
    ledger.tables.put_task(row)
    ledger.tables.wake((None, name), ANY_NUMBER)
    return row.limits


def drain(ledger: Ledger, queue: str, limit: int, now: int, lane: int | None = None) -> int:
    """Cancel up to `limit` waiting jobs of a queue or lane, and return how many were cancelled.

    Hook jobs (`on_dead_letter`, `on_empty`) are not cancelled.
    """
    step = ledger.step(now)
    count = 0 if lane is None else _drain_line(step, queue, lane, limit)
    if lane is None or _waits_in(ledger, queue, lane):  # jobs not in the line: blocked, in backoff or not due yet
        wanted = ledger.tables.seqs_of_queue(
            queue,
            frozenset({State.WAITING}),
            limit - count,
            lambda job: not job.spec.hook and (lane is None or job.lane == lane),
        )
        count += _drain_all(step, wanted)
    step.carry_out()
    return count


def _drain_line(step: Step, queue: str, lane: int, limit: int) -> int:
    """Cancel up to `limit` jobs that wait in a lane, without reading other lanes. Return how many were cancelled.

    Raises InvalidInput if the queue has no such lane.
    """
    lanes = step.tables.queue(queue).settings.lanes or 0
    if not 0 <= lane < lanes:
        raise InvalidInput(f"queue {queue!r} has no lane {lane}: it has {lanes or 'no'} lanes, counted from 0")
    return _drain_all(step, step.tables.members(queue, lane_line(lane), limit))


def _waits_in(ledger: Ledger, queue: str, lane: int) -> bool:
    line = ledger.tables.line(queue, lane_line(lane))
    return line is not None and line.waiting > 0


def _drain_all(step: Step, seqs: Sequence[int]) -> int:
    """Cancel the given jobs, except any that are not waiting. Return how many were cancelled.

    The last job is cancelled first, so that the open job of a line changes only once.
    """
    step.tables.prefetch_seqs(seqs)
    count = 0
    for seq in reversed(seqs):
        job = step.tables.by_seq(seq)
        if job is not None and job.state is State.WAITING:
            step.log(transition.cancel(job, step.now, "drained"))
            step.finished(job, State.WAITING)
            count += 1
    return count


def obliterate(ledger: Ledger, queue: str, limit: int, now: int) -> int:
    """Delete up to `limit` jobs of a queue, in any state, and return how many.

    The worker of a deleted running job gets the receipt LOST when it settles the job.
    """
    step = ledger.step(now, wiped=queue)
    seqs = ledger.tables.seqs_of_queue(queue, frozenset(State), limit)
    for seq in seqs:
        job = ledger.tables.by_seq(seq)
        if job is not None and job.state in LIVE:
            was = job.state
            if was is State.RUNNING:
                step.tables.wake((CANCELS, job.worker), 1)
            step.log(transition.cancel(job, now, "obliterated"))
            step.finished(job, was)
    step.carry_out()
    for seq in seqs:
        job = ledger.tables.by_seq(seq)
        if job is not None and job.state in FINISHED:
            step.remove(job, Kind.PRUNED, "obliterated")
    return len(seqs)


def find(ledger: Ledger, query: Query, now: int) -> Page:
    if query.state is not None and query.state not in STATE_WORDS:
        raise InvalidInput(f"{query.state!r} is not a state. Known are: {', '.join(sorted(STATE_WORDS))}.")
    if query.cursor is not None:
        cursor_number(query.cursor)
    jobs, resume, scanned = ledger.tables.search(query, now, SEARCH_BUDGET)
    handed = tuple(without_expired_result(ledger.tables.hand_out(job), now) for job in jobs)
    return Page(handed, None if resume is None else str(resume), scanned)


def position(ledger: Ledger, job_id: str, now: int) -> int | None:
    """Return how many jobs run before this job, counted up to 10,000; None if the job is not waiting or does not
    exist.
    """
    job = ledger.tables.by_id(job_id)
    if job is None or job.state is not State.WAITING:
        return None
    return ledger.tables.ahead(job, now, MOST_AHEAD)


def cursor_number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS:
        raise InvalidInput(f"{text[:40]!r} is not a cursor of this store. Pass one that the store returned, or None.")
    return int(text)


def counts(ledger: Ledger, now: int) -> list[QueueCounts]:
    answers = []
    for name in ledger.tables.queues():
        row = ledger.tables.queue(name)
        scheduled, retrying, oldest = ledger.tables.waiting_counts(name, now)
        answers.append(
            QueueCounts(
                name,
                row.waiting,
                row.running,
                row.completed,
                row.dead,
                row.cancelled,
                row.blocked,
                scheduled,
                retrying,
                row.waiting - row.blocked - scheduled - retrying,
                row.archived,
                None if oldest is None else max(0, now - oldest),
                row.settings.paused,
                row.processed,
                row.died,
            )
        )
    return answers


def lanes(ledger: Ledger, queue: str) -> list[LaneStatus]:
    """Return the status of each lane of a pool; an empty list for a queue without lanes."""
    settings = ledger.tables.queue(queue).settings
    answers = []
    for lane in range(settings.lanes or 0):
        line = ledger.tables.line(queue, lane_line(lane))
        paused = lane in settings.paused_lanes
        if line is None:
            answers.append(LaneStatus(lane, paused=paused))
        else:
            running = line.live - line.waiting
            answers.append(LaneStatus(lane, line.waiting, running, line.holder, line.processed, line.died, paused))
    return answers


def beat(ledger: Ledger, info: WorkerInfo, ttl: int, now: int) -> None:
    if ttl == 0:
        ledger.tables.drop_worker(info.id)
        return
    known = ledger.tables.worker(info.id)
    started = now if known is None else known.started_at
    ledger.tables.put_worker(WorkerRecord(info, started, now, ttl, True))


def workers(ledger: Ledger, now: int) -> list[WorkerRecord]:
    return [
        WorkerRecord(record.info, record.started_at, record.last_beat, record.ttl, record.is_alive(now))
        for record in ledger.tables.workers()
    ]


def partitions(ledger: Ledger, n: int) -> list[Partition]:
    """Return at most `n` partitions, as ranges of seqs, that together cover all current jobs."""
    first, last = ledger.tables.seq_bounds()
    if last == 0:
        return []
    size = -(-(last - first + 1) // max(1, n))
    return [Partition(f"{start - 1}-{min(last, start + size - 1)}") for start in range(first, last + 1, size)]


def partition_bounds(partition: Partition) -> tuple[int, int]:
    after, _, to = partition.token.partition("-")
    if not (after.isdigit() and to.isdigit()):
        raise InvalidInput(f"{partition.token!r} is not a partition of this store. Pass one that the store returned.")
    return int(after), int(to)


def scan(
    ledger: Ledger, after: int, to: int, limit: int, now: int, query: Query | None = None
) -> tuple[list[Job], int | None]:
    """Return up to `limit` jobs with a seq after `after` and up to `to`, and the seq after which to continue.

    This seq is None if there are no more jobs. With a query, only jobs that match it are returned, perhaps none.
    """
    resume: int | None
    if query is None:
        jobs = ledger.tables.scan(after, to, limit)
        resume = jobs[-1].seq if jobs else None
    else:
        page = msgspec.structs.replace(query, cursor=str(after), limit=limit, newest_first=False)
        found, resume, _ = ledger.tables.search(page, now, SEARCH_BUDGET)
        jobs = [job for job in found if job.seq <= to]
        resume = None if resume is None or resume >= to else resume
    return [without_expired_result(ledger.tables.hand_out(job), now) for job in jobs], resume
