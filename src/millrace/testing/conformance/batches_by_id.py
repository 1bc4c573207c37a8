"""Calls with many ids or specs: the store answers each item separately, at any position, on and off the fast path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.errors import DuplicateKey, QueueError, QueueFull, UnknownDependency
from millrace.domain.job import Spec, State
from millrace.domain.request import Archived, Cancelled, Replayed
from millrace.domain.rules.lanes import lane_of
from millrace.store.protocol import Store
from millrace.testing.builders import a_burial, a_spec, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.batch_scenes import batches, claim_all, neighbour, prepare, records, spec_by
from millrace.testing.conformance.scenes import control, count, put, put_dead, take_ids

KINDS = ("waiting", "running", "completed", "dead", "cancelled", "archived", "unknown", "twice", "other-queue")
"""`other-queue` is one of the usual kind elsewhere; `twice` is a double of its neighbour, which is a usual one."""

Answers = Mapping[str, tuple[Any, Any]]  # by kind: the first answer, and that of its double

CANCEL: Answers = {
    "waiting": (Cancelled.CANCELLED, Cancelled.CANCELLED),
    "running": (Cancelled.RUNNING, Cancelled.RUNNING),
    "completed": (Cancelled.COMPLETED, Cancelled.COMPLETED),
    "dead": (Cancelled.DEAD, Cancelled.DEAD),
    "cancelled": (Cancelled.CANCELLED, Cancelled.CANCELLED),
    "archived": (Cancelled.COMPLETED, Cancelled.COMPLETED),
    "unknown": (Cancelled.NOT_FOUND, Cancelled.NOT_FOUND),
}
REQUEST: Answers = {**CANCEL, "running": (Cancelled.REQUESTED, Cancelled.REQUESTED)}
REPLAY: Answers = {
    "waiting": (Replayed.WAITING, Replayed.WAITING),
    "running": (Replayed.RUNNING, Replayed.RUNNING),
    **dict.fromkeys(("completed", "dead", "cancelled", "archived"), (Replayed.REPLAYED, Replayed.WAITING)),
    "unknown": (Replayed.NOT_FOUND, Replayed.NOT_FOUND),
}
ARCHIVE: Answers = {
    **dict.fromkeys(("waiting", "running"), (Archived.NOT_FINISHED, Archived.NOT_FINISHED)),
    **dict.fromkeys(("completed", "dead", "cancelled"), (Archived.DONE, Archived.UNCHANGED)),
    "archived": (Archived.UNCHANGED, Archived.UNCHANGED),
    "unknown": (Archived.NOT_FOUND, Archived.NOT_FOUND),
}
UNARCHIVE: Answers = {
    **ARCHIVE,
    **dict.fromkeys(("completed", "dead", "cancelled"), (Archived.UNCHANGED, Archived.UNCHANGED)),
    "archived": (Archived.DONE, Archived.UNCHANGED),
}
CALLS: dict[str, tuple[str, Answers]] = {
    "cancel": ("waiting", CANCEL),
    "request": ("waiting", REQUEST),
    "replay": ("completed", REPLAY),
    "archive": ("completed", ARCHIVE),
    "unarchive": ("archived", UNARCHIVE),
}
CHANGES = {"cancel": "waiting", "request": "waiting", "replay": "completed dead cancelled archived"}
"""What a call does more to than to set a flag: those of these kinds have another state afterwards."""


async def ask(store: Store, call: str, ids: Sequence[str]) -> Sequence[Any]:
    if call in ("cancel", "request"):
        running: Literal["refuse", "request"] = "refuse" if call == "cancel" else "request"
        return await store.cancel(ids, running)
    if call == "replay":
        return await store.replay(ids)
    return await store.archive(ids, call == "archive")


async def in_states(store: Store, way: str, usual: str, wanted: Sequence[Sequence[str]]) -> list[list[str]]:
    """Create jobs in the states that `wanted` names. Return one list of job ids for each list of kinds in `wanted`."""
    await prepare(store, way)
    made: dict[str, list[Spec]] = {kind: [] for kind in KINDS}
    ids: list[list[str]] = []
    for number, kinds in enumerate(wanted):
        batch: list[str] = []
        for place, kind in enumerate(kinds):
            spec = spec_by(way, 100 * number + place, queue="other" if kind == "other-queue" else "default")
            made[usual if kind == "other-queue" else kind].append(spec)
            batch.append(spec.id)
        ids.append([batch[neighbour(i)] if kind == "twice" else batch[i] for i, kind in enumerate(kinds)])
    finished = made["completed"] + made["dead"] + made["archived"]
    await store.enqueue([*finished, *made["running"]])
    jobs = {job.id: job for job in await claim_all(store)}
    await store.settle(
        [(jobs[spec.id].lease, a_burial() if spec in made["dead"] else Change.completed()) for spec in finished]
    )
    await store.enqueue(made["waiting"] + made["cancelled"])
    await store.cancel([spec.id for spec in made["cancelled"]])
    await store.archive([spec.id for spec in made["archived"]])
    return ids


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("way", ["plain", "group", "key", "pool"])
async def test_a_batch_of_ids_is_answered_one_by_one(store: Store, clock: VirtualClock, way: str, call: str) -> None:
    """The answer and the change for each id depend only on the state of its job, not on the other ids in the call."""
    usual, answers = CALLS[call]
    wanted = batches(way, usual, [kind for kind in KINDS if kind != usual])
    for kinds, ids in zip(wanted, await in_states(store, way, usual, wanted), strict=True):
        before = await records(store, ids)
        known = [usual if kind in ("twice", "other-queue") else kind for kind in kinds]
        expected = [
            answers[kind][job_id in ids[:place]] for place, (kind, job_id) in enumerate(zip(known, ids, strict=True))
        ]

        assert list(await ask(store, call, ids)) == expected, kinds

        for kind, (job_id, job) in zip(_kinds_once(known, ids), (await records(store, ids)).items(), strict=True):
            old = before[job_id]
            if kind in CHANGES.get(call, "").split():
                assert job is not None
                assert job.state is (State.WAITING if call == "replay" else State.CANCELLED), kinds
            elif old is not None:
                assert job is not None
                flags = {"cancel_requested": call == "request" and kind == "running", "archived": _flag(call, kind)}
                assert (job.state, job.lease_id) == (old.state, old.lease_id), kinds
                assert {name: getattr(job, name) for name in flags} == flags, kinds


def _kinds_once(kinds: Sequence[str], ids: Sequence[str]) -> list[str]:
    return [kind for place, (kind, job_id) in enumerate(zip(kinds, ids, strict=True)) if job_id not in ids[:place]]


def _flag(call: str, kind: str) -> bool:
    finished = kind in ("completed", "dead", "cancelled", "archived")
    return call == "archive" if call in ("archive", "unarchive") and finished else kind == "archived"


# ── replay ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("before", "after"), [(4, 3), (2, 5), (5, 1), (None, 3), (3, None)])
@pytest.mark.parametrize("grouped", [True, False], ids=["by key", "in turn"])
async def test_a_replayed_job_stands_in_a_lane_that_its_pool_has_now(
    store: Store, clock: VirtualClock, grouped: bool, before: int | None, after: int | None
) -> None:
    """If the number of lanes has changed, a replayed job gets one of the current lanes; its partition key, if it has
    one, selects the lane.
    """
    await control(store, lanes=before)
    made = [a_spec(group=f"key-{number}" if grouped else None) for number in range(9)]
    await store.enqueue(made)
    while jobs := await claim_all(store):
        await store.settle([(job.lease, Change.completed()) for job in jobs])
    old = await records(store, (spec.id for spec in made))
    await control(store, lanes=after)

    assert await store.replay([spec.id for spec in made]) == [Replayed.REPLAYED] * len(made)

    for spec in made:
        job, was = (await records(store, [spec.id]))[spec.id], old[spec.id]
        assert job is not None and was is not None
        by_key = None if after is None or spec.group is None else lane_of(spec.group, after)
        assert job.lane == (by_key if grouped else None if after is None else (was.lane or 0) % after)
    lanes = await store.lanes("default")
    assert sum(lane.waiting for lane in lanes) == (0 if after is None else len(made))
    taken = await take_ids(store)
    assert len(taken) == (len(made) if after is None else sum(lane.waiting > 0 for lane in lanes)), "one per lane"


async def test_a_batch_of_replays_of_one_key_brings_one_back(store: Store, clock: VirtualClock) -> None:
    """Of several jobs with the same key, only the first is replayed. The answer for every other job is KEY_TAKEN."""
    dead = [await put_dead(store, key="k") for _ in range(3)]
    free = await put_dead(store)

    answers = await store.replay([dead[1].id, free.id, dead[0].id, dead[2].id])

    assert answers == [Replayed.REPLAYED, Replayed.REPLAYED, Replayed.KEY_TAKEN, Replayed.KEY_TAKEN]
    assert sorted(await take_ids(store)) == sorted([dead[1].id, free.id])


# ── enqueue ───────────────────────────────────────────────────────────────────────────────────────

ASKED = ("waiting", "completed", "dead", "same-token", "key-taken", "twice", "other-queue")


@pytest.mark.parametrize("way", ["plain", "group", "key", "pool", "limits"])
async def test_enqueue_answers_each_spec_of_a_batch_by_itself(store: Store, clock: VirtualClock, way: str) -> None:
    """A duplicate among the specs of a call does not affect the answers for the others."""
    await prepare(store, way)
    wanted = batches(way, "new", ASKED)
    for number, kinds in enumerate(wanted):
        batch: list[Spec] = []
        expected: list[tuple[str, str | None]] = []
        for place, kind in enumerate(kinds):
            spec = spec_by(way, 100 * number + place, queue="other" if kind == "other-queue" else "default")
            batch.append(await _known(store, spec, kind, batch))
            expected.append(ANSWERS.get(kind, ("queued", None)))
        if kinds[0] == "twice":
            batch[0] = msgspec.structs.replace(batch[1], token="another")
            expected[:2] = ("queued", None), ("duplicate", "id")

        answers = await store.enqueue(batch)

        assert [(answer.status, answer.by) for answer in answers] == expected, kinds
        known = await records(store, (answer.id for answer in answers))
        for answer in answers:
            job = known[answer.id]
            assert job is not None
            assert (answer.seq, answer.generation, answer.state) == (job.seq, job.generation, job.state), kinds


ANSWERS: dict[str, tuple[str, str | None]] = {
    "waiting": ("duplicate", "id"),
    "completed": ("completed", "id"),
    "dead": ("queued", None),  # as a new generation
    "same-token": ("queued", None),  # the same answer as before
    "key-taken": ("duplicate", "key"),
    "twice": ("duplicate", "id"),
}


async def _known(store: Store, spec: Spec, kind: str, batch: Sequence[Spec]) -> Spec:
    """Bring the store into the state that `kind` names, and return the spec that the tested call enqueues."""
    if kind in ("new", "other-queue") or (kind == "twice" and not batch):
        return spec
    if kind == "twice":
        return msgspec.structs.replace(batch[-1], token=spec.token)
    if kind == "key-taken":
        owner = await put(store, key=f"held-{spec.id}")
        return msgspec.structs.replace(spec, key=owner.key)
    await store.enqueue([spec])
    if kind in ("completed", "dead"):
        [job] = [job for job in await claim_all(store) if job.id == spec.id]
        await store.settle([(job.lease, Change.completed() if kind == "completed" else a_burial())])
    return spec if kind == "same-token" else msgspec.structs.replace(spec, token=f"again-{spec.id}")


REFUSED: dict[str, tuple[type[QueueError], dict[str, Any]]] = {
    "unknown parent": (UnknownDependency, {"after": ("nobody",)}),
    "key": (DuplicateKey, {"key": "taken", "on_hit": "raise"}),
    "full queue": (QueueFull, {"queue": "full"}),
}


@pytest.mark.parametrize("size", [2, 3, 20])
@pytest.mark.parametrize("why", REFUSED)
async def test_one_spec_that_is_refused_stops_its_batch_wherever_it_stands(
    store: Store, clock: VirtualClock, why: str, size: int
) -> None:
    """If one spec of a call is refused, at any position, no job of that call is stored."""
    await control(store, "full", max_depth=0)
    await put(store, key="taken")
    error, fields = REFUSED[why]
    before = await count(store)
    for place in {0, 1, size // 2, size - 1}:
        batch = specs(size)
        batch[place] = a_spec(**fields)
        with pytest.raises(error):
            await store.enqueue(batch)

        assert set((await records(store, (spec.id for spec in batch))).values()) == {None}
    assert await count(store) == before
