"""Calls with many leases: the store handles each item separately, at any position, on and off the fast path."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.domain.change import RETURNS_TO_WAITING, Change
from millrace.domain.job import Lease, State
from millrace.domain.request import Extension, Receipt
from millrace.store.protocol import Store
from millrace.testing.builders import a_burial, a_claim, a_reclaim, a_retry_change, a_spec, seconds
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.batch_scenes import (
    LEASES,
    WAYS,
    batches,
    claim_all,
    prepare,
    receipts,
    records,
    running,
    spec_by,
)
from millrace.testing.conformance.scenes import control

DONE = (Change.completed(b"1"),)
ALL_SORTS = (Change.completed(b"1"), a_retry_change(5), Change.snooze(9), Change.release(), a_burial(), Change.cancel())
STATES = {"complete": State.COMPLETED, "bury": State.DEAD, "cancel": State.CANCELLED}


@pytest.mark.parametrize("changes", [DONE, ALL_SORTS], ids=["completions", "all sorts"])
@pytest.mark.parametrize("way", WAYS)
async def test_settle_judges_each_item_of_a_batch_by_itself(
    store: Store, clock: VirtualClock, way: str, changes: tuple[Change, ...]
) -> None:
    """Invalid leases in a call (stale, settled, unknown or forged) are LOST. The jobs with valid leases are settled."""
    all_items = await running(store, clock, way, batches(way, "usual", LEASES))
    ids = [item.lease.job for items in all_items for item in items if item.kind != "unknown"]
    for items in all_items:
        before = await records(store, (item.lease.job for item in items))
        asked = [(item.lease, changes[place % len(changes)]) for place, item in enumerate(items)]
        expected = receipts(items, once=True, cancels=[change.verb in RETURNS_TO_WAITING for _, change in asked])

        assert await store.settle(asked) == expected, [item.kind for item in items]

        after = await records(store, before)
        written = {
            lease.job: change for (lease, change), answer in zip(asked, expected, strict=True) if answer != "lost"
        }
        for job_id, job in after.items():
            if job_id not in written:
                assert job == before[job_id], [item.kind for item in items]
            elif job is not None:
                asked_to_end = any(item.kind == "cancelling" and item.lease.job == job_id for item in items)
                returned = State.CANCELLED if asked_to_end else State.WAITING
                assert job.state is STATES.get(written[job_id].verb.value, returned), [item.kind for item in items]
    assert None not in (await records(store, ids)).values()


@pytest.mark.parametrize("way", WAYS)
async def test_extend_judges_each_item_of_a_batch_by_itself(store: Store, clock: VirtualClock, way: str) -> None:
    """Invalid leases in a call (stale, settled, unknown or forged) are LOST. The valid leases are extended."""
    for items in await running(store, clock, way, batches(way, "usual", LEASES)):
        before = await records(store, (item.lease.job for item in items))
        asked = [Extension(item.lease, seconds(7200), b"50%") for item in items]
        expected = receipts(items, once=False, cancels=[True] * len(items))

        assert await store.extend(asked) == expected, [item.kind for item in items]

        held = {item.lease.job for item, answer in zip(items, expected, strict=True) if answer is not Receipt.LOST}
        for job_id, job in (await records(store, before)).items():
            if job_id not in held:
                assert job == before[job_id], [item.kind for item in items]
            else:
                assert job is not None
                assert (job.lease_until, job.progress) == (clock() + seconds(7200), b"50%")


@pytest.mark.parametrize("way", WAYS)
async def test_a_lost_item_does_not_keep_the_others_from_being_settled_again(
    store: Store, clock: VirtualClock, way: str
) -> None:
    """If a client repeats a settle of several jobs, every item is LOST and no job changes."""
    [items] = await running(store, clock, way, [["usual", "stale", "usual", "settled", "other-queue"]])
    asked = [(item.lease, Change.completed()) for item in items]
    await store.settle(asked)
    before = await records(store, (item.lease.job for item in items))

    assert await store.settle(asked) == [Receipt.LOST] * len(items)
    assert await records(store, before) == before


HELD = ("live", "spared", "other-queue", "other-task", "waiting", "settled")


@pytest.mark.parametrize("way", WAYS)
async def test_reclaim_judges_each_lease_by_itself(store: Store, clock: VirtualClock, way: str) -> None:
    """Reclaim returns exactly the jobs with expired leases that match its request, up to its limit."""
    await prepare(store, way)
    await control(store, "other", max_running=1_000)
    kinds = [kind for batch in batches(way, "usual", HELD) for kind in batch]
    made = [
        spec_by(
            way,
            number,
            lease=3600 if kind == "live" else 10,
            queue="other" if kind == "other-queue" else "default",
            task="other" if kind == "other-task" else "work",
        )
        for number, kind in enumerate(kinds)
    ]
    await store.enqueue([spec for spec, kind in zip(made, kinds, strict=True) if kind != "waiting"])
    jobs = {job.id: job for job in await claim_all(store)}
    await store.enqueue([spec for spec, kind in zip(made, kinds, strict=True) if kind == "waiting"])
    of_kind = {kind: [spec.id for spec, one in zip(made, kinds, strict=True) if one == kind] for kind in kinds}
    await store.settle([(jobs[job_id].lease, Change.completed()) for job_id in of_kind["settled"]])
    clock.advance(11)

    request: dict[str, Any] = {
        "queues": ["default"],
        "tasks": ["work"],
        "ignore": [jobs[job_id] for job_id in of_kind["spared"]],
    }
    first = await store.reclaim(a_reclaim(20, **request))
    rest = await store.reclaim(a_reclaim(1_000, **request))

    assert len(first) == 20, "no more than asked for"
    assert sorted(job.id for job in first + rest) == sorted(of_kind["usual"])
    assert all(job.lease.id != jobs[job.id].lease.id for job in first + rest)
    untouched = await records(store, of_kind["live"] + of_kind["spared"] + of_kind["other-queue"])
    assert {job.lease_id if job else None for job in untouched.values()} == {
        jobs[job_id].lease.id for job_id in untouched
    }


CLAIMED = ("cancelled", "running", "delayed", "expired", "blocked", "other-queue", "other-task", "completed")


@pytest.mark.parametrize("way", WAYS)
async def test_claim_judges_each_job_by_itself(store: Store, clock: VirtualClock, way: str) -> None:
    """A claim skips the jobs that it cannot take, and returns the claimable ones in order."""
    await prepare(store, way)
    parent = a_spec(id="parent", task="parent")
    kinds = [kind for batch in batches(way, "usual", CLAIMED) for kind in batch]
    made = [
        spec_by(
            way,
            number,
            delay=600 if kind == "delayed" else 0,
            expires=1 if kind == "expired" else None,
            after=("parent",) if kind == "blocked" else (),
            queue="other" if kind == "other-queue" else "default",
            task=kind if kind in ("running", "completed", "other-task") else "work",
        )
        for number, kind in enumerate(kinds)
    ]
    await store.enqueue([parent, *made])
    await claim_all(store, tasks=["running"])
    done = await claim_all(store, tasks=["completed"])
    await store.settle([(job.lease, Change.completed()) for job in done])
    await store.cancel([spec.id for spec, kind in zip(made, kinds, strict=True) if kind == "cancelled"])
    clock.advance(2)

    taken = await claim_all(store, queues=("default",), tasks=["work"])

    wanted = [spec for spec, kind in zip(made, kinds, strict=True) if kind == "usual"]
    assert [job.id for job in taken] == [spec.id for spec in sorted(wanted, key=lambda spec: -spec.priority)]
    assert len({job.lease.id for job in taken}) == len(taken)


async def test_a_pair_of_leases_of_which_one_is_another_jobs_is_told_apart(store: Store, clock: VirtualClock) -> None:
    """If the lease ids of two running jobs are exchanged, settle and extend report both as LOST."""
    await store.enqueue([a_spec(), a_spec()])
    one, two = await store.claim(a_claim(2))
    exchanged = [Lease(a.id, a.seq, b.lease.id) for a, b in ((one, two), (two, one))]

    assert await store.settle([(lease, Change.completed()) for lease in exchanged]) == [Receipt.LOST] * 2
    assert await store.extend([Extension(lease) for lease in exchanged]) == [Receipt.LOST] * 2
    assert await store.settle([(job.lease, Change.completed()) for job in (two, one)]) == [Receipt.OK] * 2
