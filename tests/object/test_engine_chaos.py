"""Several clients do everything at once, their requests in any order: what SPEC part 1 promises holds in the end.

Nobody crashes here (tests/object/test_crash_points.py does that), so no sweep is needed either: whatever lost a race
has put its own things in order, and every job that is due can be claimed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import LanesInUse, QueueFull
from millrace.domain.event import Event, Kind
from millrace.domain.job import FINISHED, Job, Spec, State
from millrace.domain.request import Query, Receipt
from millrace.store.object.blobs import RetryBudget
from millrace.store.object.engine.values import QueueValue, TasksValue, decode
from millrace.store.object.keys import TASKS
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.testing.builders import (
    a_burial,
    a_claim,
    a_reclaim,
    a_retry_change,
    a_spec,
    an_extension,
)
from millrace.testing.clock import START, VirtualClock
from millrace.testing.invariants import Evidence, check, gather
from proof.blob_faults import BlobFault, Crashed, FaultyBlobs, no_faults, seeded_faults
from proof.simulation.loop import VirtualLoop
from tests.narrowing import the
from tests.object.stopping import Unsteady

NETWORK = {BlobFault.LOST_REPLY: 0.01, BlobFault.LOST_REQUEST: 0.01, BlobFault.CONFLICT: 0.01, BlobFault.TWICE: 0.01}
DEATHS = {BlobFault.CRASH_BEFORE: 0.002, BlobFault.CRASH_AFTER: 0.002}
QUEUES = ("plain", "lanes", "limited")
COUNTED = ("waiting", "running", "completed", "dead", "cancelled", "blocked", "archived")


@dataclass
class Crowd:
    """`clients` of one bucket, each of which does `steps` things, one after the other."""

    seed: int
    faults: Mapping[BlobFault, float] = field(default_factory=dict[BlobFault, float])
    apart: int = 0  # milliseconds, at most, between a client's clock and the true one
    clock: VirtualClock = field(default_factory=VirtualClock)
    accepted: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.bucket = MemoryBlobs(clock=self.clock)
        self._numbers = iter(range(1, 1_000_000))
        self.deaths = 0

    async def client(self, *, sure: bool = False) -> ObjectStore:
        number = next(self._numbers)
        steady = Unsteady(self.bucket, random.Random(self.seed * 1_000 + number))
        plan = no_faults if sure else seeded_faults(self.seed * 1_000 + number, self.faults)
        driver = FaultyBlobs(steady, plan)
        options = ObjectOptions(look_every=0, feed_delay=0, lock_patience=5)
        apart = 0 if sure else self.chance.randrange(-self.apart, self.apart + 1)
        place = self.bucket.url + (f" {number}" if self.apart else "")  # a process of its own has its own numbers
        store = ObjectStore(lambda: driver, clock=lambda: self.clock() + apart, options=options, place=place)
        store.blobs.patience = RetryBudget(14, 0.0001, 0.0005)
        await store.connect()
        return store

    async def run(self, clients: int, steps: int) -> None:
        first = await self.client(sure=True)
        await first.control("queue", "lanes", {"lanes": 2})
        await first.control("queue", "limited", {"max_running": 2, "max_depth": 8, "on_empty": "emptied"})
        await first.control("queue", "plain", {"keep_dead": 60_000, "auto_retries": 1, "auto_retry_delay": 5_000})
        await asyncio.gather(*(self._live_again(steps) for _ in range(clients)))
        judge = await self.client(sure=True)
        if self.deaths:
            self.clock.advance(3_600)
            await judge.sweep(full=True)
        await everything_holds(judge, in_order=not self.deaths and not self.apart)
        await self._finish(judge)
        events = await everything_holds(judge, in_order=not self.deaths and not self.apart)
        assert self.accepted <= {event.job for event in events}, "a job that was accepted is gone without a trace"

    async def _live_again(self, steps: int) -> None:
        """Whoever dies is followed by somebody else, who knows nothing of it."""
        while steps > 0:
            lived = 0
            try:
                store = await self.client()
                held: list[Job] = []
                while lived < steps:
                    await self._live(store, held)
                    lived += 1
                while held:
                    await self._settle(store, held)
                return
            except Crashed:
                self.deaths += 1
                steps -= lived + 1

    async def _live(self, store: ObjectStore, held: list[Job]) -> None:
        deeds = [
            self._enqueue, self._enqueue, self._enqueue, self._claim, self._claim, self._settle, self._settle,
            self._extend, self._reclaim, self._cancel, self._replay, self._maintain, self._operate, self._wait,
        ]  # fmt: skip
        deed: Callable[[ObjectStore, list[Job]], Awaitable[None]] = self.chance.choice(deeds)
        await deed(store, held)

    def _id(self) -> str:
        return f"job-{self.chance.randrange(40)}"

    def _spec(self) -> Spec:
        chance = self.chance
        queue = chance.choice(QUEUES)
        group = chance.choice((None, None, "a", "b")) if queue != "limited" else None
        return a_spec(
            id=self._id(),
            queue=queue,
            group=group,
            priority=chance.choice((0, 0, 0, 5)),
            **chance.choice(({}, {}, {"key": "k1"}, {"key": "k2", "on_hit": "replace"})),
            after=tuple({self._id() for _ in range(chance.choice((0, 0, 0, 1)))}) if queue == "plain" else (),
            on_dependency=chance.choice(("bury", "run")),
            allow_missing=False,
            delay=chance.choice((0, 0, 0, 3)),
            expires=chance.choice((None, None, None, 20)),
            on_dead_letter=chance.choice((None, None, "mourn")),
            max_attempts=2,
        )

    async def _enqueue(self, store: ObjectStore, held: list[Job]) -> None:
        batch = {spec.id: spec for spec in (self._spec() for _ in range(self.chance.choice((1, 1, 2, 6))))}
        wanted = [spec for spec in batch.values() if not set(spec.after) & set(batch)]
        known = set(self.accepted)
        wanted = [
            spec for spec in wanted if set(spec.after) <= known - {spec.id} and not (spec.after and spec.id in known)
        ]
        if not wanted:
            return
        try:
            answers = await store.enqueue(wanted)
        except QueueFull:
            return
        self.accepted.update(answer.id for answer in answers if answer.status == "queued")

    async def _claim(self, store: ObjectStore, held: list[Job]) -> None:
        held += await store.claim(a_claim(self.chance.choice((1, 3)), queues=QUEUES))

    async def _settle(self, store: ObjectStore, held: list[Job]) -> None:
        some = [held.pop(self.chance.randrange(len(held))) for _ in range(min(len(held), self.chance.choice((1, 2))))]
        if not some:
            return
        changes = [self._change(job) for job in some]
        receipts = await store.settle([(job.lease, change) for job, change in zip(some, changes, strict=True)])
        assert len(receipts) == len(some)

    def _change(self, job: Job) -> Change:
        kind = self.chance.choice(("complete", "complete", "retry", "bury", "snooze", "carry"))
        if kind == "retry" and job.failures < 1:
            return a_retry_change(delay=self.chance.choice((0, 2)))
        if kind == "bury":
            return a_burial()
        if kind == "snooze":
            return Change.snooze(1_000)
        if kind == "carry":
            return Change.completed(b"1", jobs=(a_spec(queue="plain", group="a"),))
        return Change.completed(b"1")

    async def _extend(self, store: ObjectStore, held: list[Job]) -> None:
        if held:
            receipts = await store.extend([an_extension(job) for job in held])
            held[:] = [job for job, receipt in zip(held, receipts, strict=True) if receipt is not Receipt.LOST]

    async def _reclaim(self, store: ObjectStore, held: list[Job]) -> None:
        held += await store.reclaim(a_reclaim(5, ignore=held))

    async def _cancel(self, store: ObjectStore, held: list[Job]) -> None:
        await store.cancel([self._id(), self._id()], self.chance.choice(("refuse", "request")))

    async def _replay(self, store: ObjectStore, held: list[Job]) -> None:
        await store.replay([self._id(), self._id()])

    async def _maintain(self, store: ObjectStore, held: list[Job]) -> None:
        await store.maintain()

    async def _operate(self, store: ObjectStore, held: list[Job]) -> None:
        match self.chance.randrange(8):
            case 0:
                await store.archive([self._id(), self._id()])
            case 1:
                await store.control("queue", "plain", {"paused": True})
                await store.control("queue", "plain", {"paused": False})
            case 2:
                await store.control("queue", "lanes", {"pause_lane": 0})
                await store.control("queue", "lanes", {"resume_lane": 0})
            case 3:
                await store.drain(self.chance.choice(QUEUES), 2)
            case 4:
                with contextlib.suppress(LanesInUse):
                    await store.control("queue", "lanes", {"lanes": self.chance.choice((2, 3))})
            case 5:
                await store.control("queue", "plain", {"max_running": self.chance.choice((None, 3))})
            case 6:
                await store.control("task", "work", {"max_running": self.chance.choice((None, 4))})
            case _:
                await store.find(Query(queue=self.chance.choice(QUEUES)))

    async def _wait(self, store: ObjectStore, held: list[Job]) -> None:
        self.clock.advance(self.chance.choice((0.5, 2, 10, 31)))

    async def _finish(self, store: ObjectStore) -> None:
        """Everything that is due can be claimed, and everything that was accepted comes to an end."""
        await store.control("queue", "plain", {"paused": False})  # whoever paused it may have died since
        await store.control("queue", "lanes", {"paused_lanes": ()})
        for _ in range(200):
            self.clock.advance(40)
            await store.maintain()
            for job in await store.reclaim(a_reclaim(100)):
                await store.settle([(job.lease, a_retry_change() if job.failures < 1 else a_burial())])
            jobs = await store.claim(a_claim(20, queues=QUEUES))
            await store.settle([(job.lease, Change.completed(b"1")) for job in jobs])
            if not jobs and not (await store.find(Query(state="running", limit=1))).jobs:
                break
        waiting = (await store.find(Query(state="waiting", limit=1_000))).jobs
        live = {job.id for job in waiting}
        stuck = [job for job in waiting if not (job.blocked and set(job.spec.after) & live)]
        assert stuck == [], "nobody can claim these"
        found = await store.get(sorted(self.accepted))
        assert all(job is None or job.state in FINISHED or job.id in live for job in found)


async def everything_holds(store: ObjectStore, *, in_order: bool) -> list[Event]:
    """The shared invariants, but for one: of two enqueues at once, the feed may tell of the later number first.

    What a dead client did not tell, the sweep tells later, and where clocks differ, the feed has the events of
    different jobs in the order of those clocks. Then each job's events are put in their order, and what is judged by
    the order of different jobs' events is left out.
    """
    evidence = await gather(store, since=START)
    forgiven = {"seq"}
    if not in_order:
        evidence.events = each_in_order(evidence.events)
        forgiven |= {"line_order", "two_in_line", "before_parent"}
        forgiven |= {"max_running"}  # what the dead still hold may be more than a limit that came later
    broken = [str(violation) for violation in check(evidence) if violation.name not in forgiven]
    assert not broken, broken
    runs_are_held_by_one(evidence.events)
    await counters_are_exact(store, evidence)
    return evidence.events


def each_in_order(events: list[Event]) -> list[Event]:
    """Every job's events in the places that they have in the feed, but in the order of their numbers."""
    of_job: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        of_job[event.seq].append(event)
    ordered = {seq: iter(sorted(some, key=lambda event: event.n)) for seq, some in of_job.items()}
    return [next(ordered[event.seq]) for event in events]


async def counters_are_exact(store: ObjectStore, evidence: Evidence) -> None:
    """What limits go by equals a recount (E-09)."""
    objects, layout = store.engine.objects, store.engine.layout
    for counts in the(evidence.counts):
        [seen] = await objects.read([layout.queue(counts.queue)])
        row = None if seen.value is None else decode(seen.value, QueueValue).row
        if row is not None:
            stored = [getattr(row, name) for name in COUNTED]
            recount = [getattr(counts, name) for name in COUNTED]
            assert stored == recount, f"{counts.queue}: {COUNTED} are {recount}, stored is {stored}"
    [seen] = await objects.read([TASKS])
    for task in () if seen.value is None else decode(seen.value, TasksValue).rows.values():
        running = sum(job.state is State.RUNNING and job.task == task.name for job in evidence.jobs)
        assert task.running == running, f"{task.name} counts {task.running} running, {running} are"


def runs_are_held_by_one(events: list[Event]) -> None:
    holder: dict[int, str | None] = {}
    for event in sorted(events, key=lambda event: (event.seq, event.n)):
        if event.kind is Kind.CLAIMED:
            assert holder.get(event.seq) is None, f"{event.job} was claimed while {holder[event.seq]} held it"
            holder[event.seq] = event.lease
        elif event.kind is Kind.RECLAIMED:
            holder[event.seq] = event.lease
        elif event.lease is not None:
            assert holder.get(event.seq) == event.lease, f"{event} under another lease than {holder.get(event.seq)}"
            holder[event.seq] = None


def virtually(seed: int, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """In an event loop in which time is a number: the same seed gives the same course of things."""
    loop = VirtualLoop(random.Random(seed))
    state = random.getstate()
    random.seed(seed)
    try:
        with mock.patch.object(time, "monotonic", loop.time):
            loop.run_until_complete(main())
    finally:
        random.setstate(state)
        loop.sweep_up()
        loop.close()


@pytest.mark.parametrize("seed", range(1, 13))
def test_a_crowd_leaves_everything_in_order(seed: int) -> None:
    virtually(seed, lambda: Crowd(seed).run(clients=4, steps=25))


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_crowd_behind_a_bad_network_leaves_everything_in_order(seed: int) -> None:
    virtually(seed, lambda: Crowd(seed, NETWORK, apart=200).run(clients=3, steps=20))


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_crowd_in_which_some_die_leaves_nothing_that_one_sweep_does_not_put_in_order(seed: int) -> None:
    virtually(seed, lambda: Crowd(seed, DEATHS).run(clients=4, steps=25))


@pytest.mark.nightly
@pytest.mark.parametrize("faults", [{}, NETWORK, DEATHS], ids=["calm", "network", "deaths"])
@pytest.mark.parametrize("seed", range(100, 400))
def test_a_crowd_leaves_everything_in_order_for_many_seeds(seed: int, faults: Mapping[BlobFault, float]) -> None:
    virtually(seed, lambda: Crowd(seed, faults).run(clients=5, steps=40))
