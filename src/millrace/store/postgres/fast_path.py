"""The fast path: an enqueue, a claim or a completion in one statement.

The functions in `functions/` repeat the rules of groups, unique keys, expiry, `max_running`, rates and counters, and
the end of a parent. Jobs to which further rules apply (hooks, lanes) need a step of the ledger.

An enqueue or a completion is checked twice: here by its arguments, and in the database by the stored rows. A claim is
checked in the database only. The database calls jobs and queues of the fast path plain. The model test checks that both
ways have the same result. A combination is a (queue, task, priority), which has an id in the database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millrace.domain.change import Change
from millrace.domain.job import Job, Lease, Spec, State, group_line
from millrace.domain.request import Claim, Enqueued, Receipt
from millrace.domain.rules.fast_path import only_completes
from millrace.domain.tables import Place
from millrace.store.postgres.sql import once
from millrace.store.sql.record import NEEDED, claimed_job_from_row, encode_spec

ComboIds = Mapping[tuple[str, str, int], tuple[int, int]]
ArgumentsOf = Callable[[Sequence[Spec], ComboIds, Mapping[str, int], str | None], list[Any] | None]


Floor = tuple[int, int, int]  # combination, available_at and seq of the last job of a full claim
SOON = 10_000  # milliseconds; jobs due by then are worth waking a worker for
_NO_FLOOR = (None, None, None)
_FLOOR_LASTS = 0.25  # seconds; a job that appears below the floor may be delayed by that


class Floors:
    """The floor: a position in the index of ready jobs, after which the next claim of this process may start to read.

    All jobs up to the floor were claimed recently (see `claim_plain`). A floor is valid for a short time. It is dropped
    when this process makes a call outside the fast path, because that call may return jobs to the queue.
    """

    def __init__(self) -> None:
        self._floor: Floor | None = None
        self._until = 0.0

    def forget(self) -> None:
        self._floor = None

    def at(self, time: float) -> Floor | None:
        return self._floor if time < self._until else None

    def taken(self, jobs: Sequence[Job], limit: int, combo_ids: ComboIds, used: Floor | None, time: float) -> None:
        names = {(job.queue, job.task, job.priority) for job in jobs}
        if len(jobs) < limit or len(names) != 1 or (combo := combo_ids.get(names.pop())) is None:
            self._floor = None
            return
        self._floor = combo[0], jobs[-1].available_at, jobs[-1].seq
        if used is None:
            self._until = time + _FLOOR_LASTS


def enqueue_arguments(
    specs: Sequence[Spec], combo_ids: ComboIds, watched: Mapping[str, int], reply_to: str | None
) -> list[Any] | None:
    """Return the arguments of `enqueue_plain`; None if a spec is not on the fast path or has an unknown combination."""
    combos: list[tuple[int, int]] = []
    for spec in specs:
        if spec.hook:
            return None
        combo = combo_ids.get((spec.queue, spec.task, spec.priority))
        if combo is None:
            return None
        combos.append(combo)
    joins, parents = _joins(specs), _parents(specs)
    if joins is None or parents is None:
        return None
    delays = [spec.delay or None for spec in specs]  # None, as in the event of a job without a delay
    expires = [spec.expires for spec in specs]
    return [
        [spec.id for spec in specs],
        [encode_spec(spec) for spec in specs],
        once([combo for combo, _ in combos]),
        once([queue for _, queue in combos]),
        [delay or None for delay in delays] if any(delays) else None,
        None if expires.count(None) == len(expires) else expires,
        once([spec.lease for spec in specs]),
        once([spec.keep_result for spec in specs]),
        [reply_to if spec.id in watched else None for spec in specs] if watched else [None],
        *joins,
        *parents,
    ]


def enqueue_one_arguments(
    specs: Sequence[Spec], combo_ids: ComboIds, watched: Mapping[str, int], reply_to: str | None
) -> list[Any] | None:
    """Return the arguments of `enqueue_one` for one spec that `is_simple`; None if its combination is unknown."""
    [spec] = specs
    combo = combo_ids.get((spec.queue, spec.task, spec.priority))
    if combo is None:
        return None
    reply = reply_to if spec.id in watched else None
    return [spec.id, encode_spec(spec), *combo, spec.delay, spec.expires, spec.lease, spec.keep_result, reply]


def _joins(specs: Sequence[Spec]) -> list[list[Any] | None] | None:
    """Return the lines and keys of the jobs, as arguments of `enqueue_plain`.

    Return None if the jobs have groups or keys and are not on the fast path: they are of several queues, or two of them
    have the same key.
    """
    groups, keys = [spec.group for spec in specs], [spec.key for spec in specs]
    any_group, any_key = groups.count(None) < len(specs), keys.count(None) < len(specs)
    if not any_group and not any_key:
        return [None] * 5
    used = [key for key in keys if key is not None]
    if len(set(used)) < len(used) or len({spec.queue for spec in specs}) > 1:
        return None
    return [
        [None if group is None else group_line(group) for group in groups] if any_group else None,
        [-spec.priority for spec in specs] if any_group else None,
        keys if any_key else None,
        [spec.scope for spec in specs] if any_key else None,
        [spec.window for spec in specs] if any_key else None,
    ]


def _parents(specs: Sequence[Spec]) -> list[list[Any] | None] | None:
    """Return the parents of the jobs, as arguments of `enqueue_plain`.

    Return None if the jobs are not on the fast path: a parent is not an earlier job of the same call, so that its state
    counts or there may be a cycle, or a job with parents has a group.
    """
    if not any(spec.after for spec in specs):
        return [None] * 3
    blocked: list[int] = []
    parents: list[str] = []
    children: list[int] = []
    earlier: set[str] = set()
    for number, spec in enumerate(specs, 1):
        after = dict.fromkeys(spec.after)
        if after and (spec.group is not None or not earlier.issuperset(after)):
            return None
        blocked.append(len(after))
        parents += after
        children += [number] * len(after)
        earlier.add(spec.id)
    return [blocked, parents, children]


def opened(specs: Sequence[Spec]) -> Counter[Place]:
    """Count by (queue, task) the jobs that are due soon. Workers are woken for these jobs.

    A group counts once, with the task of the member that comes first in it.
    """
    soon = [spec for spec in specs if spec.delay <= SOON and not spec.after]
    places: Counter[Place] = Counter([(spec.queue, spec.task) for spec in soon if spec.group is None])
    members = [spec for spec in soon if spec.group is not None]
    members.sort(key=lambda spec: (spec.delay > 0, -spec.priority))
    groups = {(spec.queue, spec.group): spec.task for spec in reversed(members)}  # the first counts
    places.update((queue, task) for (queue, _), task in groups.items())
    return places


def enqueued(specs: Sequence[Spec], seqs: Sequence[int]) -> list[Enqueued]:
    return [Enqueued("queued", spec.id, seq, 1, State.WAITING) for spec, seq in zip(specs, seqs, strict=True)]


def claim_arguments(request: Claim, claim_id: str, floor: Floor | None) -> list[Any]:
    tasks = None if request.tasks is None else list(request.tasks)
    return [list(request.queues), tasks, request.limit, request.lease, request.worker, claim_id, *(floor or _NO_FLOOR)]


def claimed(rows: Sequence[Any], request: Claim) -> list[Job] | None:
    """Return the claimed jobs. Return None if the database has found that the claim is not on the fast path."""
    if rows and rows[0][0] == -1:
        return None
    return [claimed_job_from_row(row, request.worker) for row in rows]


def complete_arguments(items: Sequence[tuple[Lease, Change]]) -> tuple[list[int], list[Any]] | None:
    """Return the indexes of the items in order of seq, and the arguments of the statement in this order.

    Because of this order, two calls cannot deadlock. Of items with the same lease, only the first one counts. Return
    None if a change does more than complete its job.
    """
    if not all(only_completes(change) for _, change in items):
        return None
    first = {items[index][0]: index for index in reversed(range(len(items)))}
    order = sorted(first.values(), key=lambda index: items[index][0].seq)
    ordered = [items[index] for index in order]
    return order, [
        [lease.seq for lease, _ in ordered],
        [lease.id for lease, _ in ordered],
        [change.result for _, change in ordered],
        [change.duration for _, change in ordered],
        SOON,
        NEEDED,
    ]


def opened_by_ends(
    queues: Sequence[str] | None, tasks: Sequence[str | None] | None, counts: Sequence[int] | None
) -> Counter[Place]:
    """Return how many jobs can be claimed, by (queue, task), because other jobs have completed."""
    places: Counter[Place] = Counter()
    if queues is not None and tasks is not None and counts is not None:
        for queue, task, count in zip(queues, tasks, counts, strict=True):
            places[queue, task] += count
    return places


def receipts(held: Sequence[int], order: Sequence[int], count: int) -> list[Receipt]:
    found = [Receipt.LOST] * count
    for n in held:
        found[order[n - 1]] = Receipt.OK
    return found
