"""The plain ways: an enqueue, a claim or an end that is one statement, because no rule has anything to say about it.

What is plain is decided twice: here by what was asked, and in the database by what is there. Whatever is not takes the
ledger's way, which comes to the same; the model test compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from millrace.domain.change import Change, Verb
from millrace.domain.job import Job, Lease, Spec, State
from millrace.domain.request import Claim, Enqueued, Receipt
from millrace.store.postgres.record import claimed_job, encode_spec

T = TypeVar("T")
ComboIds = Mapping[tuple[str, str, int], tuple[int, int]]


Floor = tuple[int, int, int]  # combination, available_at and seq of the last job of a full claim
SOON = 10_000  # milliseconds: jobs due by then are worth waking somebody for
_NO_FLOOR = (None, None, None)
_FLOOR_LASTS = 0.25  # seconds; so late may a job be that came in below it


class Floors:
    """Where the next claim of this process may begin to look (see `claim_plain`): no longer than a moment, and only
    while nothing but plain work was done here, so that what this process itself gives back is found in order."""

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
    """For `enqueue_plain`; None when one of the specs is not plain."""
    combos: list[tuple[int, int]] = []
    for spec in specs:
        if spec.key is not None or spec.group is not None or spec.after or spec.hook:
            return None
        combo = combo_ids.get((spec.queue, spec.task, spec.priority))
        if combo is None:
            return None
        combos.append(combo)
    delays = [spec.delay for spec in specs]
    expires = [spec.expires for spec in specs]
    return [
        [spec.id for spec in specs],
        [encode_spec(spec) for spec in specs],
        _once([combo for combo, _ in combos]),
        _once([queue for _, queue in combos]),
        delays if any(delays) else None,
        None if expires.count(None) == len(expires) else expires,
        _once([spec.lease for spec in specs]),
        _once([spec.keep_result for spec in specs]),
        [reply_to if spec.id in watched else None for spec in specs] if watched else [None],
    ]


def _once(values: list[T]) -> list[T]:
    """One that stands for all, where they are equal."""
    return values[:1] if values.count(values[0]) == len(values) else values


def opened(specs: Sequence[Spec]) -> Counter[str]:
    """By queue, how many there are to wake somebody for."""
    return Counter([spec.queue for spec in specs if spec.delay <= SOON])


def enqueued(specs: Sequence[Spec], seqs: Sequence[int]) -> list[Enqueued]:
    return [Enqueued("queued", spec.id, seq, 1, State.WAITING) for spec, seq in zip(specs, seqs, strict=True)]


def claim_arguments(request: Claim, claim_id: str, floor: Floor | None) -> list[Any]:
    tasks = None if request.tasks is None else list(request.tasks)
    return [list(request.queues), tasks, request.limit, request.lease, request.worker, claim_id, *(floor or _NO_FLOOR)]


def claimed(rows: Sequence[Any], request: Claim) -> list[Job] | None:
    """The jobs; None when the claim is not a plain one."""
    if rows and rows[0][0] == -1:
        return None
    return [claimed_job(row, request.worker) for row in rows]


def complete_arguments(items: Sequence[tuple[Lease, Change]]) -> tuple[list[int], list[Any]] | None:
    """(order of the items, arguments): by seq, so that two calls never wait for each other in a circle."""
    for _, change in items:
        if change.verb is not Verb.COMPLETE or change.jobs or change.failed or change.stalled or change.reason:
            return None
        if change.error is not None:
            return None
    order = sorted(range(len(items)), key=lambda index: items[index][0].seq)
    ordered = [items[index] for index in order]
    return order, [
        [lease.seq for lease, _ in ordered],
        [lease.id for lease, _ in ordered],
        [change.result for _, change in ordered],
        [change.duration for _, change in ordered],
    ]


def receipts(held: Sequence[int], order: Sequence[int]) -> list[Receipt]:
    found = [Receipt.LOST] * len(order)
    for n in held:
        found[order[n - 1]] = Receipt.OK
    return found
