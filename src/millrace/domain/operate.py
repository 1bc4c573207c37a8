"""What an operator does to jobs and queues: cancel, replay, archive, settings, drain, obliterate, reading.

Functions over a ledger's tables, each one atomic step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

from millrace.domain import transition
from millrace.domain.check import check_name
from millrace.domain.errors import CursorExpired, InvalidInput, LanesInUse
from millrace.domain.event import Event, Kind
from millrace.domain.job import ALIASES, FINISHED, LIVE, Job, State, Word, lane_line
from millrace.domain.ledger import Ledger, without_expired_result
from millrace.domain.line import lane_again
from millrace.domain.request import (
    Archived,
    Cancelled,
    EventPage,
    EventSpan,
    LaneStatus,
    Page,
    Partition,
    Query,
    QueueCounts,
    Replayed,
    WorkerInfo,
    WorkerRecord,
)
from millrace.domain.settings import Limits, QueueSettings, StoreSettings, updated
from millrace.domain.step import Step
from millrace.domain.tables import KeyHold, TaskRow

MOST_AHEAD = 10_000
END = "end"  # as a cursor: whatever happens from now on
MOST_DIGITS = 18  # of a cursor: more is no 64-bit number
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
    return Cancelled.REQUESTED


def replay(ledger: Ledger, ids: Sequence[str], now: int) -> list[Replayed]:
    step = ledger.step(now)
    ledger.tables.prefetch_ids(ids)
    return [replay_one(step, job_id) for job_id in ids]


def replay_one(step: Step, job_id: str, reason: str | None = None) -> Replayed:
    job = step.tables.by_id(job_id)
    if job is None:
        return Replayed.NOT_FOUND
    if job.state not in FINISHED:
        return Replayed(job.state.value)
    if not _take_key_back(step, job):
        return Replayed.KEY_TAKEN
    step.uncount_finished(job)
    job.lane = lane_again(job, step.tables.queue(job.queue).settings.lanes)
    step.log(transition.replay(job, step.now, reason))
    for parent in _live_parents(step, job):
        step.tables.add_dependency(parent, job.seq)
        job.blocked += 1
    step.added(job)
    return Replayed.REPLAYED


def _live_parents(step: Step, job: Job) -> list[str]:
    """A job that is brought back waits again for parents that are still to end, not for those that have ended."""
    live = []
    for parent_id in dict.fromkeys(job.spec.after):
        parent = step.tables.by_id(parent_id)
        if parent is not None and parent.state in LIVE and not _waits_for(step, parent, job.id):
            live.append(parent_id)
    return live


def _waits_for(step: Step, job: Job, wanted: str) -> bool:
    """Does `job` wait, directly or not, for an id? A later generation of a parent may."""
    seen: set[str] = set()
    front = [job]
    while front:
        waiting = front.pop()
        for parent_id in step.tables.parents(waiting.seq) if waiting.blocked else ():
            if parent_id == wanted:
                return True
            parent = step.tables.by_id(parent_id)
            if parent is not None and parent_id not in seen:
                seen.add(parent_id)
                front.append(parent)
    return False


def _take_key_back(step: Step, job: Job) -> bool:
    """The job's end, or a replacement, let go of its key; bringing it back must not make two live owners (I11)."""
    spec = job.spec
    if spec.key is None:
        return True
    hold = step.tables.key(spec.queue, spec.key)
    if hold is not None and hold.seq != job.seq and (hold.until is None or hold.until > step.now):
        return False
    if spec.scope != "window":  # a window is over when its time is, whatever becomes of the job
        step.tables.put_key(KeyHold(spec.queue, spec.key, spec.id, job.seq, spec.scope))
    return True


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


def control(
    ledger: Ledger, target: Target, name: str, changes: Mapping[str, Any], now: int
) -> QueueSettings | Limits | StoreSettings:
    """Change durable settings and answer what they are now; no changes: only answer."""
    if target == "queue":
        check_name("queue", name)
        return _control_queue(ledger, name, changes, now)
    if target == "task":
        check_name("task", name)
        return _control_task(ledger, name, changes)
    settings = updated(ledger.tables.settings(), changes)
    ledger.tables.put_settings(settings)
    return settings


def _control_queue(ledger: Ledger, name: str, changes: Mapping[str, Any], now: int) -> QueueSettings:
    row = ledger.tables.queue(name)
    old = row.settings
    new = updated(old, changes)
    if new == old:
        return new
    if new.lanes != old.lanes and row.live > 0:  # hooks stand in no lane
        raise LanesInUse(name, old.lanes, new.lanes, row.live)
    row.settings = new
    if new.rate != old.rate or new.burst != old.burst:
        row.bucket = None
    if new.fair_share != old.fair_share:
        row.taken = 0  # turns are counted from here, so a store need not count claims where nobody takes turns
    ledger.tables.put_queue(row)
    step = ledger.step(now)
    for lane in set(old.paused_lanes) ^ set(new.paused_lanes):
        line = ledger.tables.line(name, lane_line(lane))
        if line is not None:
            step.elect(line)
    ledger.tables.stir(name, row.waiting)
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
    for queue in ledger.tables.queues():
        ledger.tables.stir(queue, ledger.tables.queue(queue).waiting)
    return row.limits


def drain(ledger: Ledger, queue: str, limit: int, now: int, lane: int | None = None) -> int:
    """Cancel up to `limit` waiting jobs of a queue or lane; settings, running jobs and counters stay (BW-06).

    Hooks are no work of the queue but word of what happened to it: they stay too.
    """
    step = ledger.step(now)
    count = 0 if lane is None else _drain_line(step, queue, lane, limit)
    if lane is None or _waits_in(ledger, queue, lane):  # beside the line: blocked, in backoff, or outside until due
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
    """Cancel the members that stand in a lane's line, without a look at those of other lanes."""
    lanes = step.tables.queue(queue).settings.lanes or 0
    if not 0 <= lane < lanes:
        raise InvalidInput(f"queue {queue!r} has no lane {lane}: it has {lanes or 'no'} lanes, counted from 0")
    return _drain_all(step, step.tables.members(queue, lane_line(lane), limit))


def _waits_in(ledger: Ledger, queue: str, lane: int) -> bool:
    line = ledger.tables.line(queue, lane_line(lane))
    return line is not None and line.waiting > 0


def _drain_all(step: Step, seqs: Sequence[int]) -> int:
    """From the back, so that a line elects its next member once and not after every one."""
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
    """Remove up to `limit` jobs of a queue, running ones too: their settles will be LOST."""
    step = ledger.step(now)
    step.wiped = queue
    seqs = ledger.tables.seqs_of_queue(queue, frozenset(State), limit)
    for seq in seqs:
        job = ledger.tables.by_seq(seq)
        if job is not None and job.state in LIVE:
            was = job.state
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
        raise InvalidInput(f"{query.state!r} is no state; known are: {', '.join(sorted(STATE_WORDS))}")
    if query.cursor is not None:
        cursor_number(query.cursor)
    jobs, resume, scanned = ledger.tables.search(query, now, SEARCH_BUDGET)
    handed = tuple(without_expired_result(ledger.tables.hand_out(job), now) for job in jobs)
    return Page(handed, None if resume is None else str(resume), scanned)


def position(ledger: Ledger, job_id: str, now: int) -> int | None:
    """How many jobs run before it, counted up to 10,000; None when it does not wait."""
    job = ledger.tables.by_id(job_id)
    if job is None or job.state is not State.WAITING:
        return None
    return ledger.tables.ahead(job, now, MOST_AHEAD)


def events(ledger: Ledger, cursor: str | None, limit: int) -> EventPage:
    """A page of the feed after `cursor`; None is its start, and "end" gives nothing but the cursor to go on from."""
    trimmed, newest = ledger.tables.feed_bounds()
    if cursor == END:
        return EventPage((), str(newest))
    after = trimmed if cursor is None else cursor_number(cursor)
    if after < trimmed:
        raise CursorExpired(str(after), trimmed - after, str(trimmed))
    page = ledger.tables.feed(after, limit)
    return EventPage(tuple(event for _, event in page), str(page[-1][0] if page else max(after, 0)))


def event_spans(ledger: Ledger, after: str | None, n: int, limit: int | None, until: str | None) -> list[EventSpan]:
    """Equal shares of what lies between two cursors, which are the numbers of events here."""
    trimmed, newest = ledger.tables.feed_bounds()
    start = trimmed if after is None else cursor_number(after)
    end = newest if until is None else cursor_number(until)
    if start < trimmed:
        raise CursorExpired(str(start), trimmed - start, str(trimmed))
    if max(start, end) > newest:
        raise InvalidInput(
            f"the feed ends at cursor {newest}, before cursor {max(start, end)}. Is it another store, or an older copy "
            "of this one? Begin anew from None"
        )
    end = max(start, end if limit is None else min(end, start + limit))
    size = max(1, -(-(end - start) // max(1, n)))
    cuts = [*range(start, end, size), end] if end > start else [start, start]
    return [EventSpan(str(first), str(last), last - first) for first, last in pairwise(cuts)]


def span_bounds(span: EventSpan) -> tuple[int, int]:
    return cursor_number(span.after), cursor_number(span.until)


def span_events(ledger: Ledger, after: int, until: int, limit: int) -> list[Event]:
    """The next events of a span that was read up to `after`; empty at its end."""
    if after >= until:
        return []
    check_not_trimmed(ledger, after)
    return [event for _, event in ledger.tables.feed(after, min(limit, until - after))]


def check_not_trimmed(ledger: Ledger, after: int) -> None:
    trimmed, _ = ledger.tables.feed_bounds()
    if after < trimmed:
        raise CursorExpired(str(after), trimmed - after, str(trimmed))


def cursor_before(ledger: Ledger, at: int) -> str:
    """By halves: events come in the order of the clock."""
    low, high = ledger.tables.feed_bounds()
    while low < high:
        middle = (low + high) // 2
        if ledger.tables.feed(middle, 1)[0][1].at < at:
            low = middle + 1
        else:
            high = middle
    return str(low)


def cursor_number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS:
        raise InvalidInput(f"{text[:40]!r} is not a cursor of this store; use one that it gave out, or None")
    return int(text)


def counts(ledger: Ledger, now: int) -> list[QueueCounts]:
    answers = []
    for name in ledger.tables.queues():
        row = ledger.tables.queue(name)
        scheduled, retrying, oldest = ledger.tables.words(name, now)
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
    """Each lane of a pool: what waits, what holds it, what it has done (W-45)."""
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
    known = ledger.tables.worker(info.id)
    started = now if known is None else known.started_at
    ledger.tables.put_worker(WorkerRecord(info, started, now, ttl, True))


def workers(ledger: Ledger, now: int) -> list[WorkerRecord]:
    return [
        WorkerRecord(record.info, record.started_at, record.last_beat, record.ttl, record.last_beat + record.ttl >= now)
        for record in ledger.tables.workers()
    ]


def partitions(ledger: Ledger, n: int) -> list[Partition]:
    """At most n ranges of seq that together hold every job there is now."""
    first, last = ledger.tables.seq_bounds()
    if last == 0:
        return []
    size = -(-(last - first + 1) // max(1, n))
    return [Partition(f"{start - 1}-{min(last, start + size - 1)}") for start in range(first, last + 1, size)]


def partition_bounds(partition: Partition) -> tuple[int, int]:
    after, _, to = partition.token.partition("-")
    if not (after.isdigit() and to.isdigit()):
        raise InvalidInput(f"{partition.token!r} is not a partition of this store; use one that it gave out")
    return int(after), int(to)


def scan(ledger: Ledger, after: int, to: int, limit: int, now: int) -> list[Job]:
    jobs = ledger.tables.scan(after, to, limit)
    return [without_expired_result(ledger.tables.hand_out(job), now) for job in jobs]
