"""Admission: for each spec of an enqueue, decides whether it becomes a new job or is a duplicate.

The specs of one call are enqueued all or nothing. The call is refused if it names an unknown parent, has a dependency
cycle, exceeds a queue's depth, or has on_hit='raise' and a key that another job holds. The specs are treated as if they
were enqueued one after the other, except that `after` may name a later spec.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from millrace.domain.errors import (
    DeadLettersFull,
    DependencyCycle,
    DuplicateKey,
    QueueFull,
    UnknownDependency,
)
from millrace.domain.event import Event, Kind
from millrace.domain.job import FAILED, Job, Spec, State, has_result, lane_line
from millrace.domain.request import Enqueued
from millrace.domain.rules import transition
from millrace.domain.rules.fast_path import enqueue_simple
from millrace.domain.rules.lanes import lane_of
from millrace.domain.rules.step import Step, dependency_failure, dependency_verdict, latest
from millrace.domain.tables import KeyHold, QueueRow

MOST_AHEAD = 10_000


class Admission(msgspec.Struct):
    """Whether one spec of an enqueue becomes a new job or is a duplicate, by its id or by its key."""

    kind: Literal["new", "same", "by_id", "by_key"]  # "same": a repetition of the call that enqueued the job
    owner: str | None = None  # the job that holds the key
    lane: int | None = None
    replaces: bool = False
    unseen: bool = False  # the id has neither a record nor a past


def enqueue(step: Step, specs: Sequence[Spec], *, carried: bool = False) -> list[Enqueued]:
    """Enqueue the specs of one call, all or nothing, and return one answer per spec.

    Set `carried` for hook jobs and for jobs that a settle enqueues. They are never refused, because the step that
    enqueues them must not fail. The caller of a `carried` enqueue also calls `Step.carry_out`; any other enqueue does
    this itself.
    """
    simple = None if carried else enqueue_simple(step, specs)
    if simple is not None:
        return simple
    verdicts = _Plan(step, specs, carried).verdicts()
    together = None if carried else _write_together(step, specs, verdicts)
    if together is not None:
        return together
    new = [spec for spec, verdict in zip(specs, verdicts, strict=True) if verdict.kind == "new"]
    if not carried and len(new) < len(specs):
        step.tables.prefetch_specs(new)  # the others need no line and no seq
    fresh = {spec.id for spec in new}
    answers = []
    for spec, verdict in zip(specs, verdicts, strict=True):
        if verdict.kind == "new":
            answers.append(_write(step, spec, verdict, fresh, carried))
            fresh.discard(spec.id)
        else:
            answers.append(_duplicate(step, spec, verdict))
    return answers


def refuse_cycles(step: Step, specs: Sequence[Spec]) -> None:
    """Raise DependencyCycle if these jobs, enqueued by a settle, would depend on each other in a cycle."""
    if any(spec.after for spec in specs):
        plan = _Plan(step, specs, carried=True)
        plan.verdicts()
        plan.refuse_cycles()


class _Plan:
    """Decides about each spec from the tables and the earlier specs of the call. Writes nothing."""

    def __init__(self, step: Step, specs: Sequence[Spec], carried: bool) -> None:
        self._tables = step.tables
        self._now = step.now
        self._specs = specs
        self._carried = carried
        self._new: dict[str, Spec] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._depth: Counter[tuple[str, int | None]] = Counter()
        self._lanes: dict[str, int] = {}
        self._unseen = False

    def verdicts(self) -> list[Admission]:
        parents = [parent for spec in self._specs for parent in spec.after]
        if not self._carried:
            self._tables.prefetch_specs(self._specs)
        verdicts = [self._verdict(spec) for spec in self._specs]
        if parents and not self._carried:
            self._refuse_unknown_parents()
            self.refuse_cycles()
        return verdicts

    def _verdict(self, spec: Spec) -> Admission:
        known = self._known(spec)
        if known is not None:
            return known
        replaces = False
        if spec.key is not None:
            owner = self._key_owner(spec)
            if owner is not None:
                if not self._may_replace(spec, owner):
                    return self._hit(spec, owner)
                replaces = True
            self._keys[spec.queue, spec.key] = spec.id
        row = self._tables.queue(spec.queue)
        lane = self._lane(spec, row)
        self._take_room(spec, row, lane, replaces)
        self._new[spec.id] = spec
        return Admission("new", lane=lane, replaces=replaces, unseen=self._unseen)

    def _known(self, spec: Spec) -> Admission | None:
        """Return the decision if the id of the spec makes it a duplicate, or None if the spec may become a new job."""
        earlier = self._new.get(spec.id)
        if earlier is not None:
            return Admission("same" if _is_repeat(spec, earlier.token) else "by_id")
        job = self._tables.by_id(spec.id)
        if job is not None and _is_repeat(spec, job.spec.token):
            return Admission("same")
        gone = self._tables.past(spec.id)
        self._unseen = job is None and not gone
        if self._unseen:
            return None
        if any(_is_repeat(spec, past.token) for past in gone):
            return Admission("same")  # however that job ended, and even if another job has its id now
        taken = job is not None and not self._is_reusable(job, spec)
        return Admission("by_id") if taken or not spec.reuse else None

    def _is_reusable(self, job: Job, spec: Spec) -> bool:
        """Return whether a new job may take the id of this record."""
        if job.state is State.COMPLETED:
            return spec.rerun_expired and not has_result(job, self._now)
        return job.state in FAILED

    def _key_owner(self, spec: Spec) -> str | None:
        assert spec.key is not None
        in_batch = self._keys.get((spec.queue, spec.key))
        if in_batch is not None:
            return in_batch
        hold = self._tables.key(spec.queue, spec.key)
        if hold is None or (hold.until is not None and hold.until <= self._now):
            return None
        return hold.owner

    def _may_replace(self, spec: Spec, owner: str) -> bool:
        if spec.on_hit != "replace":
            return False
        job = self._tables.by_id(owner)
        return owner in self._new or (job is not None and job.state is State.WAITING)

    def _hit(self, spec: Spec, owner: str) -> Admission:
        if spec.on_hit == "raise" and not self._carried:
            raise DuplicateKey(spec.queue, spec.key or "", owner)
        return Admission("by_key", owner=owner)

    def _lane(self, spec: Spec, row: QueueRow) -> int | None:
        lanes = row.settings.lanes
        if lanes is None or spec.hook:
            return None
        if spec.group is not None:
            return lane_of(spec.group, lanes)
        first = self._lanes.get(spec.queue, row.next_lane) % lanes
        turns = (turn % lanes for turn in range(first, first + lanes))
        lane = next((lane for lane in turns if not self._is_full(row, lane)), first)
        self._lanes[spec.queue] = lane + 1
        return lane

    def _is_full(self, row: QueueRow, lane: int) -> bool:
        """Return whether a lane is at max_depth. A job without a partition key is not put into such a lane, but into
        another one.
        """
        most = row.settings.max_depth
        return most is not None and self._waiting(row, lane) + self._depth[row.name, lane] >= most

    def _take_room(self, spec: Spec, row: QueueRow, lane: int | None, replaces: bool) -> None:
        settings = row.settings
        if self._carried or spec.hook:
            return
        dead = row.dead - row.archived_dead
        if settings.dead_limit is not None and dead >= settings.dead_limit:
            raise DeadLettersFull(spec.queue, dead, settings.dead_limit)
        if settings.max_depth is None:
            return
        place = (spec.queue, lane)
        waiting = self._waiting(row, lane)
        if waiting + self._depth[place] - replaces >= settings.max_depth:
            raise QueueFull(spec.queue, waiting, settings.max_depth, lane)
        self._depth[place] += 1 - replaces

    def _waiting(self, row: QueueRow, lane: int | None) -> int:
        if lane is None:
            return row.waiting
        line = self._tables.line(row.name, lane_line(lane))
        return 0 if line is None else line.waiting

    def _refuse_unknown_parents(self) -> None:
        for spec in self._new.values():
            if spec.allow_missing:
                continue
            for parent in spec.after:
                known = parent in self._new or self._tables.by_id(parent) or self._tables.past(parent)
                if not known:
                    raise UnknownDependency(spec.id, parent)

    def refuse_cycles(self) -> None:
        """Raise DependencyCycle if the new jobs and their parents depend on each other in a cycle.

        This is a depth-first search. It reads the parents of stored jobs only if a stored job waits for a new one:
        otherwise no cycle can include a stored job.
        """
        awaited = any(self._tables.children(job_id) for job_id, spec in self._new.items() if spec.after)
        done: set[str] = set()
        for start, spec in self._new.items():
            if not spec.after or start in done:
                continue
            path: dict[str, list[str]] = {start: list(spec.after)}
            while path:
                node = next(reversed(path))
                if not path[node]:
                    done.add(node)
                    del path[node]
                    continue
                parent = path[node].pop()
                if parent in path:
                    steps = list(path)
                    raise DependencyCycle((*steps[steps.index(parent) :], parent))
                if parent not in done:
                    path[parent] = self._open_parents(parent, awaited)

    def _open_parents(self, job_id: str, look_at_stored: bool) -> list[str]:
        if job_id in self._new:
            return list(self._new[job_id].after)
        job = self._tables.by_id(job_id) if look_at_stored else None
        return self._tables.parents(job.seq) if job is not None and job.blocked else []


def _is_repeat(spec: Spec, token: str) -> bool:
    """Return whether the spec has this token, so that it is a repeat of the enqueue that created the job."""
    return spec.token != "" and spec.token == token


def _write_together(step: Step, specs: Sequence[Spec], verdicts: Sequence[Admission]) -> list[Enqueued] | None:
    """Enqueue the specs of a call in which every spec becomes a new job and affects no other job but its parents.

    The result is that of `_write` for each of them. Return None, and change nothing, if another rule applies to a spec.
    """
    tables, now = step.tables, step.now
    if any(tables.queue(name).settings.max_depth is not None for name in {spec.queue for spec in specs}):
        return None
    waits_for: dict[str, list[str]] = {}
    fresh = {spec.id for spec in specs}
    for spec, verdict in zip(specs, verdicts, strict=True):
        if verdict.kind != "new" or not verdict.unseen or verdict.replaces or verdict.lane is not None or spec.hook:
            return None
        if spec.after:
            waits_for[spec.id], failed = _parents(step, spec, fresh)
            if failed is not None:
                return None
    jobs: list[Job] = []
    events: list[Event] = []
    for spec, seq in zip(specs, tables.next_seqs(len(specs)), strict=True):
        job, event = transition.enqueue(spec, seq, 1, now, blocked=len(waits_for[spec.id]) if spec.after else 0)
        jobs.append(job)
        events.append(event)
    step.add_all(jobs, events)
    for job in jobs:
        spec = job.spec
        if spec.key is not None:
            _hold_key(step, spec, job.seq)
        if spec.after:
            for parent in waits_for[spec.id]:
                tables.add_dependency(parent, job.seq)
            step.keep_results_for(job)
    return [Enqueued("queued", job.spec.id, job.seq, 1, State.WAITING) for job in jobs]


def _hold_key(step: Step, spec: Spec, seq: int) -> None:
    assert spec.key is not None
    until = step.now + spec.window if spec.scope == "window" else None
    step.tables.put_key(KeyHold(spec.queue, spec.key, spec.id, seq, spec.scope, until))


def _write(step: Step, spec: Spec, verdict: Admission, fresh: set[str], carried: bool) -> Enqueued:
    tables = step.tables
    if verdict.replaces and spec.key is not None:
        _replace_owner(step, spec.queue, spec.key)
    generation = 1 if verdict.unseen else _next_generation(step, spec)
    [seq] = tables.next_seqs(1)
    open_parents, failed = _parents(step, spec, fresh) if spec.after else ([], None)
    row = tables.queue(spec.queue)
    if verdict.lane is not None and spec.group is None:
        row.next_lane = (verdict.lane + 1) % (row.settings.lanes or 1)
    job, event = transition.enqueue(spec, seq, generation, step.now, blocked=len(open_parents), lane=verdict.lane)
    tables.insert(job)
    step.log(event)
    for parent in open_parents:
        tables.add_dependency(parent, seq)
    if spec.key is not None:
        _hold_key(step, spec, seq)
    line = tables.line(spec.queue, job.line) if job.lane is not None and job.line else None
    position = line.live if line is not None else 0
    step.added(job)
    if failed is not None:
        step.bury(job, "dependency_failed", dependency_failure(*failed), failed[0])
    elif spec.after:
        step.keep_results_for(job)
    if not carried:
        step.carry_out()
    return _queued(step, job, row, position)


def _queued(step: Step, job: Job, row: QueueRow, ahead_in_lane: int) -> Enqueued:
    answer = Enqueued("queued", job.spec.id, job.seq, job.generation, job.state)
    if job.lane is not None and job.line is not None:
        line = step.tables.line(job.spec.queue, job.line)
        position = ahead_in_lane if job.spec.priority == 0 else step.tables.ahead(job, step.now, MOST_AHEAD)
        depth = line.waiting if line is not None else 0
        return msgspec.structs.replace(answer, lane=job.lane, position=position, depth=depth)
    if row.settings.max_depth is not None:
        return msgspec.structs.replace(answer, depth=row.waiting)
    return answer


def _replace_owner(step: Step, queue: str, key: str) -> None:
    hold = step.tables.key(queue, key)
    owner = step.tables.by_seq(hold.seq) if hold is not None else None
    if hold is not None:
        step.tables.drop_key(hold)
    if owner is not None and owner.state is State.WAITING:
        step.log(transition.cancel(owner, step.now, "replaced"))
        step.finished(owner, State.WAITING)


def _next_generation(step: Step, spec: Spec) -> int:
    """Return the generation of the new job. Delete the record of a finished job with the same id, if there is one."""
    ended = step.tables.by_id(spec.id)
    if ended is not None:
        step.remove(ended, Kind.PRUNED, "replaced")
        return ended.generation + 1
    return 1 + max((past.generation for past in step.tables.past(spec.id)), default=0)


def _parents(step: Step, spec: Spec, fresh: set[str]) -> tuple[list[str], tuple[str, State] | None]:
    """Return (ids of the parents to wait for, failed parent).

    The failed parent is an (id, state) that buries the new job, or None. If there is one, the list of ids is empty.
    """
    still_open = []
    failed = None
    for parent in dict.fromkeys(spec.after):
        state = State.WAITING if parent in fresh else step.state_of(parent)
        verdict = dependency_verdict(spec, state)
        if verdict == "failed":
            failed = failed or (parent, state)
        elif verdict == "open":
            still_open.append(parent)
    return ([], failed) if failed is not None else (still_open, None)


def _duplicate(step: Step, spec: Spec, verdict: Admission) -> Enqueued:
    if verdict.kind == "by_key" and spec.on_hit == "extend" and spec.key is not None:
        hold = step.tables.key(spec.queue, spec.key)
        if hold is not None and hold.until is not None:
            hold.until = step.now + spec.window
            step.tables.put_key(hold)
    by: Literal["id", "key"] = "key" if verdict.kind == "by_key" else "id"
    owner = (verdict.owner or "") if verdict.kind == "by_key" else spec.id
    job = step.tables.by_id(owner)
    if job is None or (verdict.kind == "same" and job.spec.token != spec.token):
        return _answer_from_past(step, spec, owner, verdict, by)
    if verdict.kind == "same":
        return Enqueued("queued", job.spec.id, job.seq, job.generation, job.state, lane=job.lane)
    completed = job.state is State.COMPLETED and by == "id"
    kept = completed and has_result(job, step.now)
    return Enqueued(
        "completed" if kept else "duplicate",
        job.spec.id,
        job.seq,
        job.generation,
        job.state,
        by,
        result=job.result if kept else None,
        result_expired=completed and not kept,
        payload_differs=job.spec.payload != spec.payload,
        lane=job.lane,
    )


def _answer_from_past(step: Step, spec: Spec, owner: str, verdict: Admission, by: Literal["id", "key"]) -> Enqueued:
    gone = step.tables.past(owner)
    if verdict.kind == "same":
        past = next(past for past in gone if past.token == spec.token)
        return Enqueued("queued", past.id, past.seq, past.generation, past.state)
    if not gone:  # a window can last longer than the past of its owner is kept
        return Enqueued("duplicate", owner, 0, 0, State.COMPLETED, by)
    past = latest(gone)
    return Enqueued("duplicate", past.id, past.seq, past.generation, past.state, by)
