"""Admission: what an enqueue of many specs does, decided before the first of them is written.

All or nothing: a batch that names an unknown parent, closes a cycle, meets a full queue or a key that was to
raise leaves no trace. Within a batch, specs count as enqueued one after the other, except that `after` may
point forwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from millrace.domain import transition
from millrace.domain.errors import (
    DeadLettersFull,
    DependencyCycle,
    DuplicateKey,
    QueueFull,
    UnknownDependency,
)
from millrace.domain.event import Kind
from millrace.domain.job import Job, Spec, State, lane_line
from millrace.domain.line import lane_of
from millrace.domain.plain import enqueue_plain
from millrace.domain.request import Enqueued
from millrace.domain.step import Step, dependency_failure
from millrace.domain.tables import KeyHold, Past, QueueRow

MOST_AHEAD = 10_000


class Verdict(msgspec.Struct):
    """What one spec of a batch comes to."""

    kind: Literal["new", "same", "by_id", "by_key"]
    owner: str | None = None  # of the key that was hit
    lane: int | None = None
    replaces: bool = False
    unseen: bool = False  # neither a record nor a tombstone knows the id


def enqueue(step: Step, specs: Sequence[Spec], *, carried: bool = False) -> list[Enqueued]:
    """`carried` jobs come with a settle, which must not fail for their sake: nothing refuses those.

    What their arrival brings to an end is carried out by the step they come with, in its own loop: a thousand
    deaths with a hook each must not become a thousand nested calls.
    """
    plain = None if carried else enqueue_plain(step, specs)
    if plain is not None:
        return plain
    verdicts = _Plan(step, specs, carried).verdicts()
    fresh = {spec.id for spec, verdict in zip(specs, verdicts, strict=True) if verdict.kind == "new"}
    answers = []
    for spec, verdict in zip(specs, verdicts, strict=True):
        if verdict.kind == "new":
            answers.append(_write(step, spec, verdict, fresh, carried))
            fresh.discard(spec.id)
        else:
            answers.append(_duplicate(step, spec, verdict))
    return answers


def refuse_cycles(step: Step, specs: Sequence[Spec]) -> None:
    """DependencyCycle when these jobs, carried by a settle, would wait for each other for ever."""
    if any(spec.after for spec in specs):
        plan = _Plan(step, specs, carried=True)
        plan.verdicts()
        plan.refuse_cycles()


class _Plan:
    """Looks at the tables and at the earlier specs of the batch; writes nothing."""

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

    def verdicts(self) -> list[Verdict]:
        parents = [parent for spec in self._specs for parent in spec.after]
        self._tables.prefetch_ids([*(spec.id for spec in self._specs), *parents])
        verdicts = [self._verdict(spec) for spec in self._specs]
        if parents and not self._carried:
            self._refuse_unknown_parents()
            self.refuse_cycles()
        return verdicts

    def _verdict(self, spec: Spec) -> Verdict:
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
        return Verdict("new", lane=lane, replaces=replaces, unseen=self._unseen)

    def _known(self, spec: Spec) -> Verdict | None:
        """An id that is there already; None when the spec may become a job."""
        earlier = self._new.get(spec.id)
        if earlier is not None:
            return Verdict("same" if _asked_again(spec, earlier.token) else "by_id")
        job = self._tables.by_id(spec.id)
        if job is not None and _asked_again(spec, job.spec.token):
            return Verdict("same")
        gone = self._tables.past(spec.id)
        self._unseen = job is None and not gone
        if self._unseen:
            return None
        if any(_asked_again(spec, past.token) for past in gone):
            return Verdict("same")  # whatever has become of the job, and whoever has its id now
        in_the_way = job is not None and job.state not in (State.DEAD, State.CANCELLED)
        return Verdict("by_id") if in_the_way or not spec.reuse else None

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

    def _hit(self, spec: Spec, owner: str) -> Verdict:
        if spec.on_hit == "raise" and not self._carried:
            raise DuplicateKey(spec.queue, spec.key or "", owner)
        return Verdict("by_key", owner=owner)

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
        """A full lane is passed over by jobs that may go to any, so that one which stands still stops only its own."""
        most = row.settings.max_depth
        return most is not None and self._waiting(row, lane) + self._depth[row.name, lane] >= most

    def _take_room(self, spec: Spec, row: QueueRow, lane: int | None, replaces: bool) -> None:
        settings = row.settings
        if self._carried or spec.hook:
            return
        if settings.dead_overflow == "reject" and settings.dead_cap is not None:
            dead = row.dead - row.archived_dead
            if dead >= settings.dead_cap:
                raise DeadLettersFull(spec.queue, dead, settings.dead_cap)
        if settings.max_depth is None:
            return
        place = (spec.queue, lane)
        depth = self._waiting(row, lane) + self._depth[place] - replaces
        if depth >= settings.max_depth:
            raise QueueFull(spec.queue, depth, settings.max_depth, lane)
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
        """Depth first over open dependencies. A stored job leads back to a new one only if it already waits for it."""
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


def _asked_again(spec: Spec, token: str) -> bool:
    """Is this the very enqueue that made the other job? Then it gets the same answer (BW-14)."""
    return spec.token != "" and spec.token == token


def _write(step: Step, spec: Spec, verdict: Verdict, fresh: set[str], carried: bool) -> Enqueued:
    tables = step.tables
    if verdict.replaces and spec.key is not None:
        _replace_owner(step, spec.queue, spec.key)
    generation = 1 if verdict.unseen else _make_way(step, spec)
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
        until = step.now + spec.window if spec.scope == "window" else None
        tables.put_key(KeyHold(spec.queue, spec.key, spec.id, seq, spec.scope, until))
    line = tables.line(spec.queue, job.line) if job.lane is not None and job.line else None
    position = line.live if line is not None else 0
    step.added(job)
    if failed is not None:
        step.bury(job, "dependency_failed", dependency_failure(*failed))
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


def _make_way(step: Step, spec: Spec) -> int:
    """The generation of the new job; an ended record under the same id makes way for it."""
    ended = step.tables.by_id(spec.id)
    if ended is not None:
        step.remove(ended, Kind.PRUNED, "replaced")
        return ended.generation + 1
    return 1 + max((past.generation for past in step.tables.past(spec.id)), default=0)


def _parents(step: Step, spec: Spec, fresh: set[str]) -> tuple[list[str], tuple[str, State] | None]:
    """(parents still to wait for, the first one that failed under the policy `bury`)."""
    still_open = []
    failed = None
    for parent in dict.fromkeys(spec.after):
        state = State.WAITING if parent in fresh else _state_of(step, parent)
        if state in (State.DEAD, State.CANCELLED) and spec.on_dependency == "bury":
            failed = failed or (parent, state)
        elif state is State.COMPLETED or (state in (State.DEAD, State.CANCELLED) and spec.on_dependency == "run"):
            continue
        else:
            still_open.append(parent)
    return ([], failed) if failed is not None else (still_open, None)


def _state_of(step: Step, job_id: str) -> State:
    """The state that a dependent sees; an id nobody has seen counts as one that is still to come."""
    job = step.tables.by_id(job_id)
    if job is not None:
        return job.state
    gone = step.tables.past(job_id)
    return _latest(gone).state if gone else State.WAITING


def _latest(gone: list[Past]) -> Past:
    return max(gone, key=lambda past: past.generation)


def _duplicate(step: Step, spec: Spec, verdict: Verdict) -> Enqueued:
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
    kept = completed and (job.result_until is None or job.result_until > step.now) and not job.result_expired
    return Enqueued(
        "completed" if kept else "duplicate",
        job.spec.id,
        job.seq,
        job.generation,
        job.state,
        by,
        result=job.result if kept else None,
        result_expired=completed and not kept,
        payload_differs=by == "id" and job.spec.payload != spec.payload,
    )


def _answer_from_past(step: Step, spec: Spec, owner: str, verdict: Verdict, by: Literal["id", "key"]) -> Enqueued:
    gone = step.tables.past(owner)
    if verdict.kind == "same":
        past = next(past for past in gone if past.token == spec.token)
        return Enqueued("queued", past.id, past.seq, past.generation, past.state)
    if not gone:  # a window outlives even the memory of its owner
        return Enqueued("duplicate", owner, 0, 0, State.COMPLETED, by)
    past = _latest(gone)
    return Enqueued("duplicate", past.id, past.seq, past.generation, past.state, by)
