"""Call batches (the items of one call) for tests which check that each item is handled independently of the others.

A call batch has usual items and unusual ones, for example a stale lease, at different positions. The tests run once for
each value in `WAYS`. In the way `plain`, jobs take the fast path (see `domain/rules/fast_path.py`). In the other ways,
jobs have a group, a key, a child, a lane or limits, so only the ledger can handle them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from millrace.domain.change import Change
from millrace.domain.job import Job, Lease, Spec
from millrace.domain.request import Receipt
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_reclaim, a_spec
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import control

SMALL, LARGE = 3, 20
LANES = 60  # more than jobs, so that each has its own lane and all can run at once
WAYS = ("plain", "group", "key", "child", "pool", "limits")


def batches(way: str, usual: str, odd: Sequence[str]) -> list[list[str]]:
    """Return call batches of two, three and twenty items, as lists of kinds: each item is `usual`, or one of `odd`.

    If `way` is `plain`, there is a call batch of three for each odd kind at each position. Other ways are slower, so
    each odd kind is at one position only.
    """
    places = [range(SMALL) if way == "plain" else (number % SMALL,) for number in range(len(odd))]
    pairs = [[odd[0], usual], [usual, odd[0]]]
    small = [
        [kind if place == at else usual for place in range(SMALL)]
        for kind, own in zip(odd, places, strict=True)
        for at in own
    ]
    turns = range(3) if way == "plain" else (1,)
    return pairs + small + [[_alternating(usual, odd, place, turn) for place in range(LARGE)] for turn in turns]


def _alternating(usual: str, odd: Sequence[str], place: int, turn: int) -> str:
    return odd[(place // 3 + turn) % len(odd)] if place % 3 == turn else usual


async def prepare(store: Store, way: str) -> None:
    """Apply the queue and task settings that `way` needs. Only `pool` and `limits` need any."""
    if way == "pool":
        await control(store, lanes=LANES)
    elif way == "limits":
        await control(store, max_running=1_000)
        await store.control("task", "work", {"max_running": 1_000})


def spec_by(way: str, number: int, **fields: Any) -> Spec:
    """Return a spec for jobs of this `way`. Each spec has its own group or key, so that all jobs can run at the same
    time.
    """
    own: dict[str, dict[str, Any]] = {
        "group": {"group": f"group-{number}"},
        "key": {"key": f"key-{number}"},
    }
    return a_spec(**own.get(way, {}), **fields)


def neighbour(place: int) -> int:
    """Return the position of an item next to position `place`. An item of kind `twice` repeats this neighbour."""
    return place - 1 if place else 1


class BatchItem(NamedTuple):
    """One item of a call that takes leases: the lease, and its kind (`usual`, or one of `LEASES`)."""

    kind: str
    lease: Lease


LEASES = ("stale", "settled", "unknown", "forged", "cancelling", "late", "twice", "other-queue")
"""Reclaimed by another worker; settled before; of no job; of this job with another's lease id; cancellation requested;
expired, but not reclaimed; a double of its neighbour; of another queue."""


async def running(
    store: Store, clock: VirtualClock, way: str, wanted: Sequence[Sequence[str]]
) -> list[list[BatchItem]]:
    """Enqueue and claim jobs. Then make their leases of the wanted kinds: let some become `stale`, settle others, and
    so on.

    Return one list of leases for each list of kinds in `wanted`.
    """
    await prepare(store, way)
    made = [[_to_run(way, 100 * i + k, kind) for k, kind in enumerate(kinds)] for i, kinds in enumerate(wanted)]
    await store.enqueue([spec for batch in made for spec in batch])
    if way == "child":
        parents = [spec.id for batch in made for spec in batch]
        await store.enqueue([a_spec(queue="children", after=(parent,)) for parent in parents])
    jobs = {job.id: job for job in await claim_all(store)}
    by_kind = {
        kind: [jobs[spec.id] for spec, one in _pairs(made, wanted) if one == kind] for kind in ("usual", *LEASES)
    }
    clock.advance(11)
    taken = await store.reclaim(a_reclaim(1_000, lease=3600, ignore=by_kind["late"]))
    assert {job.id for job in taken} == {job.id for job in by_kind["stale"]}
    await store.settle([(job.lease, Change.completed()) for job in by_kind["settled"]])
    await store.cancel([job.id for job in by_kind["cancelling"]], "request")
    return [_leases(kinds, [jobs[spec.id] for spec in batch]) for kinds, batch in zip(wanted, made, strict=True)]


def _to_run(way: str, number: int, kind: str) -> Spec:
    lease = 10 if kind in ("stale", "late") else 3600
    return spec_by(way, number, lease=lease, queue="other" if kind == "other-queue" else "default")


def _pairs(made: Iterable[Iterable[Spec]], wanted: Iterable[Iterable[str]]) -> list[tuple[Spec, str]]:
    return [pair for batch, kinds in zip(made, wanted, strict=True) for pair in zip(batch, kinds, strict=True)]


def _leases(kinds: Sequence[str], jobs: Sequence[Job]) -> list[BatchItem]:
    items = []
    for place, (kind, job) in enumerate(zip(kinds, jobs, strict=True)):
        lease, beside = job.lease, jobs[neighbour(place)].lease
        if kind == "unknown":
            lease = Lease("nobody", 10**9, lease.id)
        elif kind == "forged":
            lease = Lease(job.id, job.seq, beside.id)
        elif kind == "twice":
            lease = beside
        items.append(BatchItem(kind, lease))
    return items


def receipts(items: Sequence[BatchItem], *, once: bool, cancels: Sequence[bool]) -> list[Receipt]:
    """Return the receipt that the store must give for each item.

    Set `once` if the call ends the lease, so that the same lease again is LOST. `cancels` says for each item whether
    the call reports a requested cancellation.
    """
    used: set[Lease] = set()
    answers = []
    for (kind, lease), tells in zip(items, cancels, strict=True):
        lost = kind in ("stale", "settled", "unknown", "forged") or (once and lease in used)
        used.add(lease)
        answers.append(Receipt.LOST if lost else Receipt.CANCELLING if kind == "cancelling" and tells else Receipt.OK)
    return answers


async def claim_all(store: Store, **claim: Any) -> list[Job]:
    """Claim until no job is left, by default from the queues `default` and `other`. Return all claimed jobs."""
    jobs: list[Job] = []
    while found := await store.claim(a_claim(1_000, **{"queues": ("default", "other"), **claim})):
        jobs += found
    return jobs


async def records(store: Store, ids: Iterable[str]) -> dict[str, Job | None]:
    wanted = list(dict.fromkeys(ids))
    return dict(zip(wanted, await store.get(wanted), strict=True))
