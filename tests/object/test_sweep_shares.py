"""A round in shares, each by a sweeper of its own, then the rest: together they do what one whole sweep does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from millrace.domain.change import Change
from millrace.spark.upkeep import SweepOutcome, swept_in_shares
from millrace.store.object.keys import Layout
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.store.object.sweep.round import Part, shares
from millrace.store.object.sweep.sweeper import SWEPT
from millrace.store.protocol import Sweeping
from millrace.testing.builders import a_burial, a_claim, a_spec
from millrace.testing.clock import START, VirtualClock
from millrace.testing.invariants import assert_holds, gather
from tests.object.archiving import here
from tests.object.test_crash_points import copy

OPTIONS = ObjectOptions(look_every=0, feed_delay=0, lock_patience=1, listing_reuse=0, inline_limit=1_000)
FAMILIES = ("ready/", "held/", "leases/", "done/", "gone/", "deps/", "lines/", "keys/", "tasks/", "data/")


@dataclass
class Yard:
    store: ObjectStore
    blobs: MemoryBlobs
    clock: VirtualClock

    def keys(self, *prefixes: str) -> list[str]:
        return [key for key in self.blobs._keys if key.startswith(prefixes)]

    async def sweep(self, n: int, **how) -> SweepOutcome:
        return await swept_in_shares(self.store, here(self.store), n, **how)


async def a_yard(clock: VirtualClock, blobs: MemoryBlobs) -> Yard:
    store = ObjectStore(lambda: blobs, clock=clock, options=OPTIONS)
    await store.connect()
    return Yard(store, blobs, clock)


@pytest.fixture
async def yard() -> Yard:
    """Something of everything: ready, held, running, done, gone, waiting for others, in lines, with keys."""
    clock = VirtualClock()
    yard = await a_yard(clock, MemoryBlobs(clock=clock))
    store = yard.store
    await store.enqueue([a_spec(id=f"gone{n}", keep_result=0) for n in range(6)])
    for job in await store.claim(a_claim(6)):
        await store.settle([(job.lease, Change.completed(b"1"))])
    await store.control("queue", "default", {"keep_completed": 1})
    clock.advance(1)
    await store.maintain()
    await store.control("queue", "default", {"keep_completed": None, "max_running": 50})
    large = b'"' + b"x" * 2_000 + b'"'
    await store.enqueue([a_spec(id=f"done{n}", payload=large) for n in range(20)])
    for job in await store.claim(a_claim(20)):
        await store.settle([(job.lease, a_burial())])
    await store.enqueue([a_spec(id=f"runs{n}") for n in range(8)])
    await store.claim(a_claim(8, lease=3_600))
    await store.enqueue([a_spec(id=f"waits{n}", key=f"k{n}", group=f"g{n % 3}") for n in range(20)])
    await store.enqueue([a_spec(id=f"child{n}", after=(f"waits{n}",)) for n in range(6)])
    clock.advance(20)
    await store.sweep(full=True)  # the manifests of large batches are no damage
    return yard


async def test_a_store_of_objects_is_swept_by_workers_too(yard):
    assert isinstance(yard.store, Sweeping)


@pytest.mark.parametrize("n", [1, 3, 5, 16, 100])
async def test_every_key_is_in_one_share(yard, n):
    layout = Layout(1)
    parts = [Part(layout, share) for share in shares(layout, n)]
    assert 1 <= len(parts) <= n
    for family in FAMILIES:
        keys = yard.keys(family)
        assert keys, f"there is nothing under {family}"
        met = Counter(
            key
            for part in parts
            for prefix in part.prefixes(family)
            for key in keys
            if key.startswith(prefix) and part.holds(key)
        )
        assert met == dict.fromkeys(keys, 1)


async def test_a_store_in_order_is_left_as_it_is_and_the_round_is_noted(yard):
    yard.clock.advance(200)
    before = {key: [*life] for key, life in yard.blobs._lives.items() if key != SWEPT}

    outcome = await yard.sweep(4)

    assert outcome.total.repairs == {} and outcome.total.looked_at > 60
    assert {key: life for key, life in yard.blobs._lives.items() if key != SWEPT} == before
    looked_at = (await yard.store.sweep()).looked_at
    assert looked_at < outcome.total.looked_at / 2, "the next sweep looks at everything again"


async def damaged(yard: Yard) -> None:
    """Some of every index is lost, and some of it says what is not so."""
    for family in ("ready/", "leases/", "done/", "gone/", "deps/", "held/"):
        keys = yard.keys(family)
        await yard.blobs.delete(keys[:3])
        for key in keys[3:5]:
            head, _, name = key.rpartition(".")
            wrong = f"{head}.{name}x" if family != "deps/" else f"{key}x"
            await yard.store.blobs.put(wrong, b"")
    [queue] = yard.keys("control/queues/default")
    [seen] = await yard.store.engine.objects.read([queue])
    from millrace.store.object.engine.objects import sealed

    assert seen.value is not None and seen.tag is not None and b'"running":8' in seen.value
    await yard.store.blobs.swap(queue, sealed(seen.value.replace(b'"running":8', b'"running":5')), seen.tag)
    yard.clock.advance(20)


@pytest.mark.parametrize("n", [2, 16])
async def test_shares_repair_what_one_sweep_repairs(yard, n):
    await damaged(yard)
    other = await a_yard(yard.clock, copy(yard.blobs, yard.clock))

    at_once = await other.store.sweep(full=True)
    outcome = await yard.sweep(n)

    assert outcome.total.repairs == at_once.repairs
    assert set(at_once.repairs) == {"index_restored", "index_removed", "counters_corrected"}
    assert sum(bool(swept.repairs) for _, swept in outcome.shares) > 1, "one share had it all"
    assert yard.keys(*FAMILIES) == other.keys(*FAMILIES)
    assert (await yard.store.sweep(full=True)).repairs == {}
    assert_holds(await gather(yard.store, since=START))


async def test_counters_are_nobodys_share(yard):
    await damaged(yard)

    outcome = await yard.sweep(4)

    assert outcome.rest.counters_corrected == 1
    assert not any(swept.counters_corrected for _, swept in outcome.shares)


async def test_a_dry_run_says_the_same_and_changes_nothing(yard):
    await damaged(yard)
    changes = yard.blobs._changes

    dry = await yard.sweep(4, dry_run=True)
    assert yard.blobs._changes == changes

    done = await yard.sweep(4)
    for kind in ("index_restored", "index_removed"):
        assert dry.total.repairs[kind] == done.total.repairs[kind]


async def test_a_share_that_is_swept_twice_is_repaired_once(yard):
    """Spark runs a task again, or two of it at once."""
    await damaged(yard)
    for share in yard.store.shares(4):
        await yard.store.sweep_share(share)

    assert [(await yard.store.sweep_share(share)).repairs for share in yard.store.shares(4)] == [{}] * 4
