"""Replay of finished jobs. By default, children that were buried because a parent died or was cancelled are replayed
with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.domain.job import FINISHED, LIVE, Job
from millrace.domain.ledger import Ledger
from millrace.domain.request import Replayed
from millrace.domain.rules import transition
from millrace.domain.rules.lanes import lane_again
from millrace.domain.rules.step import Step, dependency_verdict
from millrace.domain.tables import KeyHold

WITH_PARENT = "parent_replayed"  # the reason in the event of a child


def replay(ledger: Ledger, ids: Sequence[str], now: int, children: bool = True) -> list[Replayed]:
    """Replay jobs and return one answer per id.

    With `children`, also replay the children that were buried because one of these jobs died or was cancelled.
    """
    step = ledger.step(now)
    ledger.tables.prefetch_ids(ids)
    answers = [replay_one(step, job_id) for job_id in ids]
    if children:
        bring_children_back(
            step, [job_id for job_id, answer in zip(ids, answers, strict=True) if answer is Replayed.REPLAYED]
        )
    return answers


def bring_children_back(step: Step, parents: Sequence[str]) -> None:
    """Replay the jobs that were buried because these parents died or were cancelled, then the children of those jobs,
    and so on.
    """
    tables = step.tables
    while parents:
        wanted = set(parents)
        seqs = tables.dead_dependents(parents)
        tables.prefetch_seqs(seqs)
        children = [child for child in map(tables.by_seq, seqs) if child is not None and child.failed_parent in wanted]
        tables.prefetch_ids(dict.fromkeys(parent for child in children for parent in child.spec.after))
        tables.prefetch_seqs(child.seq for child in children)  # these are changed, not their parents
        parents = [child.id for child in children if child_back(step, child)]


def return_with(ledger: Ledger, parent: str, seq: int, now: int) -> None:
    """Replay the child `seq`, which was buried because `parent` died or was cancelled, and then the children of that
    child.

    For stores that replay each child in a separate step.
    """
    step = ledger.step(now)
    child = step.tables.by_seq(seq)
    if child is not None and child.failed_parent == parent and child_back(step, child):
        bring_children_back(step, [child.id])


def child_back(step: Step, child: Job) -> bool:
    """Replay a dead child and return whether it was replayed.

    The child stays dead if another of its parents is dead or cancelled. It is replayed together with that parent.
    """
    for parent in dict.fromkeys(child.spec.after):
        if dependency_verdict(child.spec, step.state_of(parent)) == "failed":
            child.failed_parent = parent
            step.tables.update(child)
            return False
    return replay_one(step, child.id, WITH_PARENT) is Replayed.REPLAYED


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
    for parent in _live_parents(step, job, unseen=reason == WITH_PARENT):
        step.tables.add_dependency(parent, job.seq)
        job.blocked += 1
    step.added(job)
    step.keep_results_for(job)
    return Replayed.REPLAYED


def _live_parents(step: Step, job: Job, unseen: bool) -> list[str]:
    """Return the ids of the parents that a replayed job waits for.

    These are the parents that are waiting or running, except one that itself waits for this job. With `unseen`,
    parents that were never enqueued are included too. It is set if the job is replayed together with a parent.
    """
    live = []
    for parent_id in dict.fromkeys(job.spec.after):
        parent = step.tables.by_id(parent_id)
        if parent is None:
            if unseen and not step.tables.past(parent_id):
                live.append(parent_id)
        elif parent.state in LIVE and not _waits_for(step, parent, job.id):
            live.append(parent_id)
    return live


def _waits_for(step: Step, job: Job, wanted: str) -> bool:
    """Return whether `job` waits for the job `wanted`, directly or through its parents.

    A parent can wait for its own child if the parent's id was enqueued again later, with `after` naming the child.
    """
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
    """Let the replayed job hold its key again. Return False if another job holds the key."""
    spec = job.spec
    if spec.key is None:
        return True
    hold = step.tables.key(spec.queue, spec.key)
    if hold is not None and hold.seq != job.seq and (hold.until is None or hold.until > step.now):
        return False
    if spec.scope != "window":  # a window ends at its time, also if the job is replayed
        step.tables.put_key(KeyHold(spec.queue, spec.key, spec.id, job.seq, spec.scope))
    return True
