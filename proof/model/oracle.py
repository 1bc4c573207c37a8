"""Which jobs a claim must return, computed the slow way: by checking every job against the rules.

The ledger finds them through indexes. This module does not, so a mistake there is noticed even if the store under
test shares the ledger's code. Tokens and turns are counted independently for the same reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from millrace.domain.event import Event, Kind
from millrace.domain.job import LIVE, Job, State
from millrace.domain.request import Claim
from millrace.domain.settings import Limits, QueueSettings
from millrace.domain.tables import Tables

PLENTY = 1 << 40


class Tokens:
    """Token buckets by the rules: full when set, filled by the clock, spent only by deliveries.

    `taken` counts what each queue has delivered since its `fair_share` was set, which determines the fair turns.
    """

    def __init__(self) -> None:
        self._left: dict[tuple[str, str], tuple[float, int]] = {}
        self.taken: Counter[str] = Counter()

    def reset(self, kind: str, name: str) -> None:
        self._left.pop((kind, name), None)

    def there(self, kind: str, name: str, limits: Limits, now: int) -> float:
        assert limits.rate is not None
        size = float(limits.burst if limits.burst is not None else max(1, math.ceil(limits.rate)))
        if (kind, name) not in self._left:
            return size
        left, at = self._left[kind, name]
        return min(size, left + max(0, now - at) * limits.rate / 1000.0)

    def spend(self, kind: str, name: str, limits: Limits, count: int, now: int) -> None:
        if limits.rate is None:
            self.reset(kind, name)
        else:
            self._left[kind, name] = (max(0.0, self.there(kind, name, limits, now) - count), now)

    def room(self, kind: str, name: str, limits: Limits, running: int, now: int) -> int:
        if isinstance(limits, QueueSettings) and limits.paused:
            return 0
        room = PLENTY
        if limits.max_running is not None:
            room = max(0, limits.max_running - running)
        if limits.rate is not None:
            room = min(room, math.floor(self.there(kind, name, limits, now) + 1e-9))
        return room


def claimable(jobs: Iterable[Job], settings: dict[str, QueueSettings], now: int) -> list[Job]:
    """Jobs that may run now by their own facts and their groups or lanes."""
    free: list[Job] = []
    lines: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        if job.state not in (State.WAITING, State.RUNNING):
            continue
        if job.line is not None:
            lines.setdefault((job.queue, job.line), []).append(job)
        elif job.state is State.WAITING and not job.blocked:
            free.append(job)
    for members in lines.values():
        first = _first_in_line(members, settings, now)
        if first is not None:
            free.append(first)
    return [job for job in free if job.available_at <= now]


def _first_in_line(members: list[Job], settings: dict[str, QueueSettings], now: int) -> Job | None:
    one = members[0]
    if any(job.state is State.RUNNING for job in members):
        return None
    if one.lane is not None and one.lane in settings[one.queue].paused_lanes:
        return None
    holders = [job for job in members if job.holds]
    assert len(holders) <= 1, f"line {one.line} is held by {[job.id for job in holders]}"
    waiting = holders or [job for job in members if not job.blocked and _is_in_line(job, now)]
    return min(waiting, key=lambda job: (-job.priority, job.seq), default=None)


def _is_in_line(job: Job, now: int) -> bool:
    """Whether the job is in line: in a lane from the start, in a group once it is due."""
    steps_out = job.lane is None or (job.failures > 0 and not job.spec.retry_blocks)
    return not steps_out or job.available_at <= now


def expected_claim(tables: Tables, jobs: list[Job], request: Claim, tokens: Tokens, now: int) -> list[str]:
    """Ids in the order in which this claim must return them."""
    rows = {name: tables.queue(name) for name in tables.queues()}
    wanted = list(dict.fromkeys(request.queues))
    running = Counter(job.queue for job in jobs if job.state is State.RUNNING)
    running_tasks = Counter(job.task for job in jobs if job.state is State.RUNNING)
    room = {q: tokens.room("queue", q, rows[q].settings, running[q], now) for q in wanted if q in rows}
    limits = {row.name: row.limits for row in tables.tasks()}
    room_of_task = {t: tokens.room("task", t, limits[t], running_tasks[t], now) for t in limits}
    taken = tokens.taken.copy()
    left = [
        job
        for job in claimable(jobs, {name: row.settings for name, row in rows.items()}, now)
        if job.queue in wanted and (request.tasks is None or job.task in request.tasks)
    ]
    answer: list[str] = []
    while len(answer) < request.limit:
        heads = []
        for queue in wanted:
            own = [job for job in left if job.queue == queue and room_of_task.get(job.task, PLENTY) > 0]
            if own and room[queue] > 0:
                oldest_first = _is_fair_turn(taken[queue], rows[queue].settings.fair_share)
                heads.append(min(own, key=_by_age if oldest_first else _by_priority))
        if not heads:
            break
        best = min(heads, key=_by_priority)
        left.remove(best)
        room[best.queue] -= 1
        if best.task in room_of_task:
            room_of_task[best.task] -= 1
        taken[best.queue] += 1
        answer.append(best.id)
    return answer


def buckets_left_ahead(tables: Tables, jobs: list[Job], request: Claim, now: int) -> list[str]:
    """Queues and tasks whose bucket waits for the old time after the clock was set back, although a claim with room
    for more had a due job of theirs. A task counts if its queue has no limit.
    """
    open_jobs = [
        job
        for job in jobs
        if job.open and job.available_at <= now and job.queue in request.queues and not _has_expired(job, now)
        if request.tasks is None or job.task in request.tasks
    ]
    free = {name for name in request.queues if tables.queue(name).settings == QueueSettings()}
    queues = [tables.queue(name) for name in sorted({job.queue for job in open_jobs})]
    limited = [tables.task(name) for name in sorted({job.task for job in open_jobs if job.queue in free})]
    return [row.name for row in (*queues, *limited) if row is not None and row.bucket and row.bucket.at > now]


def _has_expired(job: Job, now: int) -> bool:
    return job.expires_at is not None and job.expires_at <= now


def _is_fair_turn(taken: int, share: float) -> bool:
    return share > 0 and (taken + 1) % max(1, round(1 / share)) == 0


def _by_priority(job: Job) -> tuple[int, int, int]:
    return (-job.priority, job.available_at, job.seq)


def _by_age(job: Job) -> tuple[int, int]:
    return (job.available_at, job.seq)


def check_children(before: dict[str, Job], after: list[Job], events: list[Event], wanted: bool) -> None:
    """Check which children are replayed with a parent: those that died because of a failed parent and have no failed
    parent now.
    """
    back = {event.job for event in events if event.reason == "parent_replayed"}
    replayed = {event.job for event in events if event.kind is Kind.REPLAYED}
    failed = {job.id for job in after if job.state in (State.DEAD, State.CANCELLED)}
    assert wanted or not back, f"{back} came back, though the replay was to leave children alone"
    for job_id in back:
        was = before[job_id]
        assert was.reason == "dependency_failed" and replayed & {*was.spec.after}, (
            f"{was} was replayed without a parent"
        )
        assert not failed & {*was.spec.after}, f"{job_id} came back while {failed & {*was.spec.after}} are failed"
    for job in after if wanted else ():
        was = before[job.id]
        if job.state is State.DEAD and was.failed_parent in replayed and job.spec.key is None:
            assert job.failed_parent not in replayed, f"{job.id} is dead of {job.failed_parent}, which is back"


def open_dependents(jobs: list[Job]) -> set[tuple[int, str]]:
    """Pairs of the seq of an open job and the id of a job it depends on."""
    return {(job.seq, parent) for job in jobs if job.state in LIVE for parent in job.spec.after}


def results_needed(jobs: list[Job]) -> set[int]:
    """Seqs of completed jobs whose result an open job may read."""
    wanted = {parent for job in jobs if job.state in LIVE for parent in job.spec.after}
    simply = {parent for job in jobs if job.state in LIVE and not job.replays for parent in job.spec.after}
    needed = set()
    for job in jobs:
        if job.id not in wanted or job.state is not State.COMPLETED or job.result is None or job.result_until is None:
            continue
        if job.id in simply and job.generation == 1 and not job.replays:
            assert job.has_dependents, f"an open job runs after {job}, which does not know"
        if job.has_dependents:
            needed.add(job.seq)
    return needed
