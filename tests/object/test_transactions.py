"""Transactions over objects, by themselves: all of one or nothing, whoever crashes, whatever answers get lost.

A counter says how often it was changed and by whom, and every transaction leaves a receipt. So in the end it can be
told whether one was applied twice, in part, or taken back after somebody had seen it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from millrace.domain.errors import StoreError
from millrace.store.object.blobs import Blobs, RetryBudget
from millrace.store.object.driver import Answer, Write
from millrace.store.object.engine.objects import MANY_CREATES, Committed, Objects, SeenObject, Swap, opened, sealed
from millrace.store.object.memory import MemoryBlobs
from proof.blob_faults import BlobFault, Crashed, FaultyBlobs, scripted_faults, seeded_faults
from tests.object.stopping import Stop, StoppingBlobs, Unsteady

encoded = msgspec.json.encode
NEW = encoded("new")


def client(bucket: MemoryBlobs, *, patience: float = 0.0) -> tuple[Objects, StoppingBlobs]:
    """A client of its own, which can be stopped; it takes a lock for abandoned at once, unless told otherwise."""
    driver = StoppingBlobs(bucket)
    return Objects(Blobs(driver), patience), driver


async def given(objects: Objects, **values: str) -> None:
    for key, value in values.items():
        [seen] = await objects.read([key])
        assert not (await objects.commit([Swap(seen, encoded(value))])).lost


async def change(objects: Objects, primary: str, **values: str | None) -> Committed:
    """Read, and write all of them as one."""
    seen = await objects.read(list(values))
    wanted = [None if value is None else encoded(value) for value in values.values()]
    return await objects.commit([Swap(one, value) for one, value in zip(seen, wanted, strict=True)], primary)


async def values(objects: Objects, *keys: str) -> list[str | None]:
    return [None if seen.value is None else msgspec.json.decode(seen.value) for seen in await objects.read(keys)]


async def started(action: Awaitable[Committed], stop: Stop) -> asyncio.Future[Committed]:
    task = asyncio.ensure_future(action)
    await stop.reached()
    return task


async def free(objects: Objects, key: str) -> None:
    """Make whoever stands in the way of this object give up."""
    for _ in range(20):
        [seen] = await objects.read([key])
        if seen.lock is None:
            return
        await objects.unlock(seen)
    raise AssertionError(f"{key} is still locked")


# all or nothing


@pytest.fixture
def bucket() -> MemoryBlobs:
    return MemoryBlobs()


async def test_a_reader_sees_the_old_values_before_the_primary_is_written_and_the_new_ones_after(
    bucket: MemoryBlobs,
) -> None:
    a, driver = client(bucket)
    b, _ = client(bucket)
    await given(a, p="old", q="old", r="old")

    before, after = driver.stop("write", "p"), driver.stop("write", "p", after=True)
    writing = await started(change(a, "p", p="new", q="new", r="new"), before)
    assert await values(b, "q", "r", "p") == ["old", "old", "old"]
    before.go()
    await after.reached()
    assert await values(b, "q", "r", "p") == ["new", "new", "new"]
    after.go()
    assert not (await writing).lost


async def test_whoever_lost_one_object_has_written_none(bucket: MemoryBlobs) -> None:
    a, driver = client(bucket)
    b, _ = client(bucket)
    await given(a, p="old", q="old", r="old")

    stop = driver.stop("write", "q")
    writing = await started(change(a, "p", p="a", q="a", r="a"), stop)
    await given(b, r="b")
    stop.go()

    assert (await writing).lost == ("r",)
    assert await values(b, "p", "q", "r") == ["old", "old", "b"]
    assert [opened(blob.body).pending for blob in await b.blobs.get_many(["p", "q", "r"]) if blob] == [None] * 3


async def test_a_crash_after_the_commit_is_no_crash(bucket: MemoryBlobs) -> None:
    a, driver = client(bucket)
    b, _ = client(bucket)
    await given(a, p="old", q="old")

    stop = driver.stop("write", "p", after=True)
    writing = await started(change(a, "p", p="new", q="new"), stop)
    writing.cancel()
    assert await values(b, "p", "q") == ["new", "new"]
    await given(b, p="newer")  # carries q through first
    c, _ = client(bucket)
    assert await values(c, "p", "q") == ["newer", "new"]


async def test_a_crash_before_the_commit_is_as_if_nothing_had_been(bucket: MemoryBlobs) -> None:
    a, driver = client(bucket)
    b, _ = client(bucket)
    await given(a, p="old", q="old")

    stop = driver.stop("write", "p")
    writing = await started(change(a, "p", p="new", q="new"), stop)
    writing.cancel()
    await free(b, "q")
    await given(b, q="b")
    assert await values(b, "p", "q") == ["old", "b"]


# who was given up comes back


@pytest.mark.parametrize("primary_exists", [True, False])
async def test_a_transaction_that_was_given_up_cannot_commit(bucket: MemoryBlobs, primary_exists: bool) -> None:
    a, driver = client(bucket)
    b, _ = client(bucket)
    await given(a, q="old", **({"p": "old"} if primary_exists else {}))

    stop = driver.stop("write", "p")
    writing = await started(change(a, "p", p="a", q="a"), stop)
    await free(b, "q")
    stop.go()

    assert (await writing).lost == ("p",)
    assert await values(b, "p", "q") == ["old" if primary_exists else None, "old"]


async def test_many_new_objects_that_were_given_up_do_not_come_back(bucket: MemoryBlobs) -> None:
    """Their primary is a manifest that does not exist yet: giving up makes one that says nothing."""
    a, driver = client(bucket)
    b, _ = client(bucket)
    names = [f"n{number}" for number in range(MANY_CREATES + 1)]

    stop = driver.stop("write", "batches/")
    writing = await started(
        a.commit([Swap(seen, NEW) for seen in await a.read(names)]),
        stop,
    )
    await free(b, names[0])
    stop.go()

    assert (await writing).lost
    assert await values(b, *names) == [None] * len(names)


async def test_who_gives_up_a_transaction_that_was_just_committed_leaves_it_alone(bucket: MemoryBlobs) -> None:
    a, driver = client(bucket)
    b, other = client(bucket)
    await given(a, p="old", q="old")

    stop = driver.stop("write", "p")
    writing = await started(change(a, "p", p="a", q="a"), stop)
    [seen] = await b.read(["q"])
    between = other.stop("write", "p")  # b has seen that p does not list it
    giving_up = asyncio.ensure_future(b.abandon(seen))
    await between.reached()
    stop.go()
    assert not (await writing).lost
    between.go()

    assert not await giving_up
    assert await values(b, "p", "q") == ["a", "a"]


# what is carried through, and what is forgotten


async def test_an_object_that_is_pending_and_a_primary_at_once_is_not_forgotten(bucket: MemoryBlobs) -> None:
    """p is the primary of a transaction that is given up, and pending in another that commits meanwhile.

    Giving up writes p anew, so the other's last step finds another tag there. It must not take that for done.
    """
    a, first = client(bucket)
    b, second = client(bucket)
    c, third = client(bucket)
    await given(a, k="old", p="old", q="old")

    stop = first.stop("write", "p")
    early = await started(change(a, "p", k="a", p="a"), stop)  # k is locked
    commit = second.stop("write", "q")
    late = await started(change(b, "q", p="b", q="b"), commit)  # p is locked
    [seen] = await c.read(["k"])
    between = third.stop("write", "p")
    giving_up = asyncio.ensure_future(c.abandon(seen))
    await between.reached()
    forward = second.stop("write", "p")
    commit.go()
    await forward.reached()
    between.go()
    assert await giving_up
    forward.go()
    assert not (await late).lost
    stop.go()
    assert (await early).lost

    await given(b, q="later")  # drops what q says of the transaction
    d, _ = client(bucket)
    assert await values(d, "k", "p", "q") == ["old", "b", "later"]


async def test_carrying_through_does_not_end_before_it_is_done(bucket: MemoryBlobs) -> None:
    """The same, where somebody else carries through."""
    a, first = client(bucket)
    b, second = client(bucket)
    c, third = client(bucket)
    d, fourth = client(bucket)
    await given(a, k="old", p="old", q="old")

    stop = first.stop("write", "p")
    early = await started(change(a, "p", k="a", p="a"), stop)
    crash = second.stop("write", "q", after=True)
    late = await started(change(b, "q", p="b", q="b"), crash)
    late.cancel()
    [seen] = await c.read(["k"])
    between = third.stop("write", "p")
    giving_up = asyncio.ensure_future(c.abandon(seen))
    await between.reached()
    carry = fourth.stop("write", "p")
    writing = await started(change(d, "q", q="d"), carry)
    between.go()
    await giving_up
    carry.go()
    assert not (await writing).lost
    stop.go()
    await early

    e, _ = client(bucket)
    assert await values(e, "p", "q") == ["b", "d"]


async def test_a_manifest_may_be_deleted_once_it_was_carried_through(bucket: MemoryBlobs) -> None:
    a, _ = client(bucket)
    b, reading = client(bucket)
    names = [f"n{number}" for number in range(MANY_CREATES + 1)]
    assert not (await a.commit([Swap(seen, NEW) for seen in await a.read(names)])).lost
    [manifest] = (await a.blobs.list("batches/")).entries

    stop = reading.stop("read", "batches/")
    asked = asyncio.ensure_future(values(b, *names))  # has read the objects, not yet the manifest
    await stop.reached()
    body = await a.blobs.get(manifest.key)
    assert body is not None
    [(tx, keys)] = (opened(body.body).commits or {}).items()
    assert await a.carry_through(tx, keys) == len(names)
    await a.blobs.delete([manifest.key])
    stop.go()

    assert await asked == ["new"] * len(names)


async def test_a_lock_is_waited_for_by_its_transaction_not_by_its_tag(bucket: MemoryBlobs) -> None:
    """A tag may be that of another object long ago; a lock that was just met is not an old one."""
    a, driver = client(bucket)
    b, _ = client(bucket, patience=60.0)
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    b.sleep = sleep
    await given(a, p="old", q="old", r="old")
    for number, key in enumerate(("q", "r")):
        stop = driver.stop("write", "p")
        writing = await started(change(a, "p", p=f"{number}", **{key: "new"}), stop)
        [seen] = await b.read([key])
        assert seen.lock is not None
        await b.unlock(seen)
        b._locks = dict.fromkeys(b._locks, -1e9) if number == 0 else b._locks  # an hour later
        stop.go()
        assert not (await writing).lost
    assert len(waited) == 2


async def test_locks_that_were_met_are_not_remembered_for_ever(bucket: MemoryBlobs) -> None:
    a, driver = client(bucket)
    b, _ = client(bucket, patience=60.0)

    async def sleep(seconds: float) -> None: ...

    b.sleep = sleep
    await given(a, p="old", q="old")
    for number in range(30):
        stop = driver.stop("write", "p")
        writing = await started(change(a, "p", p=f"{number}", q=f"{number}"), stop)
        [seen] = await b.read(["q"])
        await b.unlock(seen)
        stop.go()
        await writing
    assert len(b._locks) <= 30
    assert len(await b.read(["q"])) == 1


# unique bodies


async def test_nonces_do_not_repeat_when_somebody_seeds_the_random_numbers(bucket: MemoryBlobs) -> None:
    """A body that comes back is a tag that comes back, and a write of others that is taken for one's own (BO-05)."""
    state = random.getstate()
    try:
        random.seed(7)
        first = sealed(NEW)
        random.seed(7)
        assert sealed(NEW) != first
    finally:
        random.setstate(state)


def test_nonces_do_not_repeat_after_a_fork() -> None:
    sealed(NEW)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, sealed(NEW))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1_000) != sealed(NEW)
    os.close(reading)
    os.close(writing)


# answers that get lost


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("fault", [BlobFault.LOST_REPLY, BlobFault.TWICE, BlobFault.CONFLICT, BlobFault.LOST_REQUEST])
async def test_a_transaction_behind_a_bad_network_is_done_once(
    bucket: MemoryBlobs, fault: BlobFault, number: int
) -> None:
    plain, _ = client(bucket)
    await given(plain, p="0", q="0", r="0")
    faulty = Objects(
        Blobs(FaultyBlobs(bucket, scripted_faults({number + 3: fault})), RetryBudget(6, 0.0001, 0.001)), patience=0.0
    )
    assert not (await change(faulty, "p", p="1", q="1", r="1")).lost
    assert await values(plain, "p", "q", "r") == ["1", "1", "1"]
    assert not (await change(plain, "q", p="2", q="2", r="2")).lost
    assert await values(plain, "p", "q", "r") == ["2", "2", "2"]


async def test_a_commit_whose_answer_was_lost_and_that_was_overwritten_says_that_it_is_unsure(
    bucket: MemoryBlobs,
) -> None:
    """It was there; whoever wrote after it has carried it through. The caller must look, not do it again."""
    await given(client(bucket)[0], p="old", q="old")
    b, _ = client(bucket)
    overtaken = False

    class Overtaken(FaultyBlobs):
        async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
            nonlocal overtaken
            answers = await super().write(writes)
            if writes[0].key == "p" and not overtaken:
                overtaken = True
                await given(b, p="later")
            return answers

    plan = scripted_faults({4: BlobFault.LOST_REPLY})  # two reads, q, p
    a = Objects(Blobs(Overtaken(bucket, plan), RetryBudget(6, 0.0001, 0.001)), patience=0.0)

    committed = await change(a, "p", p="new", q="new")

    assert committed.lost == ("p",)
    assert committed.unsure
    assert await values(b, "p", "q") == ["later", "new"]


async def test_a_network_that_is_gone_after_the_commit_does_not_make_it_an_error(bucket: MemoryBlobs) -> None:
    """Giving the others their values is a courtesy; whoever reads them asks the primary."""
    await given(client(bucket)[0], p="old", q="old")
    b, _ = client(bucket)
    faults = dict.fromkeys(range(5, 20), BlobFault.SERVER_ERROR)
    a = Objects(Blobs(FaultyBlobs(bucket, scripted_faults(faults)), RetryBudget(3, 0.0001, 0.001)), patience=0.0)

    committed = await change(a, "p", p="new", q="new")

    assert not committed.lost
    assert await values(b, "p", "q") == ["new", "new"]
    await given(b, p="later")
    assert await values(b, "p", "q") == ["later", "new"]


async def test_a_commit_that_is_written_anew_before_its_answer_is_found_is_still_a_commit(bucket: MemoryBlobs) -> None:
    """Giving up another transaction writes the same primary anew, with what it lists and under another nonce."""
    plain, _ = client(bucket)
    await given(plain, k="old", p="old", q="old")
    c, other = client(bucket)
    stop = other.stop("write", "p")
    left = await started(change(c, "p", k="c", p="c"), stop)  # k is locked, under p
    b, _ = client(bucket)

    class Overtaken(FaultyBlobs):
        async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
            answers = await super().write(writes)
            if writes[0].key == "p":
                await free(b, "k")
            return answers

    plan = scripted_faults({4: BlobFault.TWICE})  # two reads, q, p
    a = Objects(Blobs(Overtaken(bucket, plan), RetryBudget(6, 0.0001, 0.001)), patience=0.0)

    committed = await change(a, "p", p="new", q="new")

    assert not committed.lost
    stop.go()
    assert (await left).lost
    assert await values(b, "k", "p", "q") == ["old", "new", "new"]


# durability


async def test_what_is_written_as_one_is_durable_as_one(bucket: MemoryBlobs) -> None:
    """A power loss must not keep the primary and lose the others, nor keep what overwrote it and lose their values."""
    seen: list[Write] = []

    class Noting(StoppingBlobs):
        async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
            seen.extend(writes)
            return await super().write(writes)

    a = Objects(Blobs(Noting(bucket)), patience=0.0)
    await given(a, p="old", q="old")
    seen.clear()
    found = await a.read(["p", "q"])
    await a.commit([Swap(one, NEW) for one in found], "p", durable=False)
    assert [write.key for write in seen if not write.durable] == []


# everything at once, by chance


class Counted(msgspec.Struct, frozen=True):
    """A counter: what is on it, how often it was changed, and by whom last."""

    amount: int
    times: int
    by: str


class Receipt(msgspec.Struct, frozen=True):
    moved: dict[str, int]


COUNTERS = tuple(f"counter-{number}" for number in range(5))
START = 1_000
FAULTS = {
    BlobFault.LOST_REPLY: 0.03,
    BlobFault.LOST_REQUEST: 0.02,
    BlobFault.CONFLICT: 0.02,
    BlobFault.TWICE: 0.02,
    BlobFault.NO_TAG: 0.02,
    BlobFault.CRASH_BEFORE: 0.004,
    BlobFault.CRASH_AFTER: 0.004,
}


@dataclass
class Chaos:
    """Several clients that move amounts between counters, crash, and are followed by others."""

    seed: int
    bucket: MemoryBlobs = field(default_factory=MemoryBlobs)
    done: set[str] = field(default_factory=set[str])
    not_done: set[str] = field(default_factory=set[str])
    seen: dict[tuple[str, int], Counted] = field(default_factory=dict[tuple[str, int], Counted])
    crashes: int = 0
    unclear: int = 0
    contended: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._numbers = iter(range(1, 1_000_000))

    def client(self) -> Objects:
        number = next(self._numbers)
        driver = Unsteady(self.bucket, random.Random(self.seed * 1_000 + number))
        faulty = FaultyBlobs(driver, seeded_faults(self.seed * 1_000 + number, FAULTS))
        blobs = Blobs(faulty, RetryBudget(12, 0.0, 0.0), chance=self.chance.random, sleep=_no_time)
        return Objects(blobs, patience=0.0, sleep=_no_time)

    async def run(self, clients: int, transfers: int) -> None:
        plain = Objects(Blobs(self.bucket))
        for key in COUNTERS:
            value = Counted(START, 0, "start")
            assert not (await plain.commit([Swap(SeenObject(key, None, None), msgspec.json.encode(value))])).lost
        await asyncio.gather(*(self._live(transfers) for _ in range(clients)), self._watch(), self._sweep())
        await self._judge()

    async def _live(self, transfers: int) -> None:
        """One after the other; a client that crashes is followed by a new one, its transaction by nothing."""
        objects = self.client()
        for _ in range(transfers):
            name = f"tx-{next(self._numbers)}"
            try:
                await self._transfer(objects, name)
            except Crashed:
                self.crashes += 1
                objects = self.client()
            except StoreError:
                self.unclear += 1

    async def _transfer(self, objects: Objects, name: str) -> None:
        moved = self._drawn()
        receipts = [f"receipts/{name}-{part}" for part in range(self.chance.choice((1, 1, 2, MANY_CREATES + 2)))]
        for _ in range(40):
            seen = await objects.read([*moved, *receipts])
            if any(one.value is not None for one in seen if one.key in receipts):
                self.unclear += 1  # it was done, and its answer got lost: as an enqueue finds its own token
                return
            locked = [one for one in seen if one.lock is not None]
            if locked:
                self.contended += 1
                for one in locked:
                    await (objects.unlock(one) if self.chance.random() < 0.5 else _no_time(0))
                continue
            changes = [self._moved(one, moved[one.key], name) for one in seen if one.key in moved]
            changes += [Swap(one, msgspec.json.encode(Receipt(moved))) for one in seen if one.key not in moved]
            self.chance.shuffle(changes)
            primary = self.chance.choice([None, *moved])
            committed = await objects.commit(changes, primary)
            if not committed.lost:
                self.done.add(name)
                return
            if committed.unsure:
                self.unclear += 1
                return
        self.not_done.add(name)

    def _drawn(self) -> dict[str, int]:
        keys = self.chance.sample(COUNTERS, self.chance.choice((2, 2, 3)))
        moved = {key: self.chance.randrange(1, 50) for key in keys[1:]}
        return {keys[0]: -sum(moved.values()), **moved}

    def _moved(self, seen: SeenObject, by: int, name: str) -> Swap:
        assert seen.value is not None
        was = self._noted(seen)
        return Swap(seen, msgspec.json.encode(Counted(was.amount + by, was.times + 1, name)))

    def _noted(self, seen: SeenObject) -> Counted:
        """A value that was seen once is never another one: what is decided stays so."""
        assert seen.value is not None, f"{seen.key} is gone"
        value = msgspec.json.decode(seen.value, type=Counted)
        assert self.seen.setdefault((seen.key, value.times), value) == value
        return value

    async def _watch(self) -> None:
        """A reader never sees a counter go back."""
        objects = Objects(Blobs(Unsteady(self.bucket, random.Random(self.seed))))
        last = dict.fromkeys(COUNTERS, 0)
        for _ in range(400):
            for seen in await objects.read(COUNTERS):
                times = self._noted(seen).times
                assert times >= last[seen.key]
                last[seen.key] = times

    async def _sweep(self) -> None:
        """Manifests are carried through, then deleted."""
        objects = Objects(Blobs(Unsteady(self.bucket, random.Random(-self.seed))))
        for _ in range(60):
            for entry in (await objects.blobs.list("batches/")).entries:
                blob = await objects.blobs.get(entry.key)
                commits = {} if blob is None else opened(blob.body).commits or {}
                for tx, keys in commits.items():
                    await objects.carry_through(tx, keys)
                if commits:
                    await objects.blobs.delete([entry.key])
            for _ in range(20):
                await asyncio.sleep(0)

    async def _judge(self) -> None:
        objects = Objects(Blobs(self.bucket), patience=0.0, sleep=_no_time)
        keys = [entry.key for entry in (await objects.blobs.list("receipts/")).entries]
        for key in (*COUNTERS, *keys):
            await free(objects, key)
        amounts = dict.fromkeys(COUNTERS, START)
        times = dict.fromkeys(COUNTERS, 0)
        parts: dict[str, list[bool]] = {}
        applied: set[str] = set()
        for seen in await objects.read(keys):
            name = seen.key.removeprefix("receipts/").rsplit("-", 1)[0]
            parts.setdefault(name, []).append(seen.value is not None)
            if seen.value is None or name in applied:
                continue
            applied.add(name)
            for key, by in msgspec.json.decode(seen.value, type=Receipt).moved.items():
                amounts[key] += by
                times[key] += 1
        assert all(len(set(there)) == 1 for there in parts.values()), "a transaction left half of its receipts"
        found = {seen.key: self._noted(seen) for seen in await objects.read(COUNTERS)}
        assert sum(value.amount for value in found.values()) == START * len(COUNTERS)
        assert {key: (value.amount, value.times) for key, value in found.items()} == {
            key: (amounts[key], times[key]) for key in COUNTERS
        }
        assert self.done <= applied, "what was answered as done is not there"
        assert not self.not_done & applied, "what was answered as not done is there"


async def _no_time(seconds: float) -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(1, 25))
async def test_amounts_are_moved_entirely_or_not_at_all(seed: int) -> None:
    chaos = Chaos(seed)
    await chaos.run(clients=4, transfers=12)
    assert chaos.done
    assert chaos.contended


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1_000, 1_300))
async def test_amounts_are_moved_entirely_or_not_at_all_for_many_seeds(seed: int) -> None:
    chaos = Chaos(seed)
    await chaos.run(clients=6, transfers=25)
    assert chaos.done
