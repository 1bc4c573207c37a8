"""The four outcomes of a conditional write, and what is made of them (BO-05, BO-06)."""

from collections.abc import Sequence

import pytest

from millrace.domain.errors import StoreError
from millrace.store.object.blobs import Blobs, LostReply, RetryBudget, Won
from millrace.store.object.driver import Answer, Refused, Unavailable, Write
from millrace.store.object.memory import MemoryBlobs
from proof.blob_faults import (
    BlobFault,
    Crashed,
    FaultyBlobs,
    crash_points,
    scripted_faults,
    seeded_faults,
)
from tests.narrowing import checked_cast


class Naps:
    """Sleeps that take no time and are remembered."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


def blobs_with(faults, memory=None, **patience):
    naps = Naps()
    driver = FaultyBlobs(memory or MemoryBlobs(), scripted_faults(faults))
    return Blobs(driver, patience=RetryBudget(**patience), sleep=naps, chance=lambda: 1.0), naps


async def test_a_create_whose_answer_was_lost_is_found_to_be_ours():
    blobs, naps = blobs_with({1: BlobFault.LOST_REPLY})

    answer = await blobs.create("a", b"mine")

    assert isinstance(answer, Won)
    assert (await blobs.get("a")).tag == answer.tag
    assert blobs.driver.requests == {"put": 1, "get": 2} and naps.taken == []
    assert blobs.tally == {"unclear": 1, "proved": 1, "won": 1}


async def test_a_swap_whose_answer_was_lost_is_found_to_be_ours():
    blobs, _ = blobs_with({2: BlobFault.LOST_REPLY})
    first = await blobs.create("a", b"one")

    answer = await blobs.swap("a", b"two", first.tag)

    assert isinstance(answer, Won) and answer.tag != first.tag


async def test_a_write_that_arrived_twice_does_not_lose_against_itself():
    """A proxy may repeat a request; the second is refused because of the first."""
    blobs, _ = blobs_with({1: BlobFault.TWICE, 3: BlobFault.TWICE})

    first = await blobs.create("a", b"one")
    second = await blobs.swap("a", b"two", first.tag)

    assert isinstance(first, Won) and isinstance(second, Won)
    assert (await blobs.get("a")).body == b"two"


@pytest.mark.parametrize("fault", [BlobFault.LOST_REQUEST, BlobFault.SERVER_ERROR, BlobFault.CONFLICT])
async def test_a_write_that_was_not_done_is_done_again(fault):
    blobs, naps = blobs_with({1: fault})

    assert isinstance(await blobs.create("a", b"mine"), Won)
    assert (await blobs.get("a")).body == b"mine"
    assert naps.taken == [0.05]


async def test_an_answer_without_its_tag_is_completed_by_a_look():
    blobs, _ = blobs_with({1: BlobFault.NO_TAG})

    answer = await blobs.create("a", b"mine")

    assert isinstance(answer, Won) and answer.tag == (await blobs.get("a")).tag


async def test_a_lost_answer_does_not_hide_that_somebody_else_won():
    memory = MemoryBlobs()
    await Blobs(memory).create("a", b"theirs")
    blobs, _ = blobs_with({1: BlobFault.LOST_REQUEST}, memory)

    answer = await blobs.create("a", b"mine")

    assert isinstance(answer, LostReply) and answer.looked and answer.unsure
    assert answer.current is not None and answer.current.body == b"theirs"


async def test_a_refusal_shows_what_is_there_and_is_sure():
    memory = MemoryBlobs()
    await Blobs(memory).create("a", b"theirs")
    blobs, _ = blobs_with({}, memory)

    answer = await blobs.create("a", b"mine")

    assert isinstance(answer, LostReply) and answer.looked and not answer.unsure
    assert answer.current is not None and answer.current.body == b"theirs"


async def test_a_driver_whose_refusals_are_final_is_not_asked_twice():
    blobs = Blobs(MemoryBlobs())
    await blobs.create("a", b"theirs")

    assert await blobs.create("a", b"mine") == LostReply()
    assert blobs.requests == {"put": 2}


@pytest.mark.parametrize("final", [True, False])
async def test_a_late_write_of_our_own_is_recognised_after_the_retry(final):
    """The first attempt times out, is carried out while the second is on its way, and refuses it."""

    class Late(MemoryBlobs):
        held: Write | None = None

        async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
            if self.held is None:
                [self.held] = writes
                return [Unavailable("timed out")]
            if self.held is writes[0]:
                await super().write([self.held])
            return await super().write(writes)

    late = Late()
    late.refusal_is_final = final  # once an answer was lost, no refusal is
    blobs = Blobs(late, sleep=Naps())

    assert isinstance(await blobs.create("a", b"mine"), Won)
    assert len((await blobs.versions("a")).versions) == 1


async def test_patience_is_bounded_and_the_error_says_what_is_not_known():
    blobs, naps = blobs_with(dict.fromkeys(range(1, 50), BlobFault.LOST_REQUEST), attempts=4, first=1.0, longest=3.0)

    with pytest.raises(StoreError, match="reading 'a' failed 4 times"):
        await blobs.create("a", b"mine")
    assert naps.taken == [1.0, 2.0, 3.0]
    assert len(blobs.driver.faults) == 1 and blobs.driver.calls == 5


async def test_a_write_that_never_gets_an_answer_is_reported_as_unknown():
    blobs, _ = blobs_with(dict.fromkeys(range(1, 60), BlobFault.LOST_REQUEST), attempts=3)

    with pytest.raises(StoreError, match="'a' may or may not have been written, after 3 attempts: lost request"):
        await blobs.put("a", b"mine")


async def test_endless_conflict_is_reported_as_not_written():
    blobs, _ = blobs_with(dict.fromkeys(range(1, 60), BlobFault.CONFLICT), attempts=3)

    with pytest.raises(StoreError, match="'a' was not written, after 3 attempts: another write"):
        await blobs.create("a", b"mine")


async def test_a_store_that_refuses_the_current_tag_does_not_spin_for_ever():
    class Stubborn(MemoryBlobs):
        refusal_is_final = False

        async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
            return [
                Refused() if isinstance(write.expect, str) else (await super(Stubborn, self).write([write]))[0]
                for write in writes
            ]

    blobs = Blobs(Stubborn(), sleep=Naps())
    tag = checked_cast(Won, await blobs.create("a", b"one")).tag

    with pytest.raises(StoreError, match="refused although the object is as expected"):
        await blobs.swap("a", b"two", tag)


async def test_only_what_failed_is_asked_for_again():
    blobs, _ = blobs_with({4: BlobFault.SERVER_ERROR, 6: BlobFault.CONFLICT})
    await blobs.put_many({"a": b"1", "b": b"2", "c": b"3"})
    assert blobs.requests["put"] == 3

    found = await blobs.get_many(["a", "b", "c"])

    assert [blob and blob.body for blob in found] == [b"1", b"2", b"3"]
    assert blobs.requests["get"] == 3 and blobs.driver.calls == 8


@pytest.mark.parametrize("fault", [BlobFault.LOST_REPLY, BlobFault.LOST_REQUEST, BlobFault.SERVER_ERROR])
async def test_listing_deleting_and_versions_are_asked_for_again(fault):
    blobs, naps = blobs_with({2: fault, 4: fault, 6: fault})
    await blobs.put("r/a", b"1")

    assert [entry.key for entry in (await blobs.list("r/")).entries] == ["r/a"]
    await blobs.delete(["r/a"])
    assert len((await blobs.versions("r/a")).versions) == 2
    assert len(naps.taken) == 3


async def test_waiting_grows_and_is_spread():
    patience = RetryBudget(first=0.1, longest=1.0)

    assert [patience.delay(attempt, 1.0) for attempt in range(5)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])
    assert patience.delay(0, 0.0) == pytest.approx(0.025)


async def test_the_same_seed_brings_the_same_faults():
    async def run(seed: int) -> list[BlobFault | None]:
        plan = seeded_faults(seed, {BlobFault.LOST_REPLY: 0.3, BlobFault.SLOW: 0.3}, frozenset({"write"}))
        assert plan("read", 1) is None
        return [plan("write", number) for number in range(50)]

    assert await run(7) == await run(7) != await run(8)
    assert set(await run(7)) == {None, BlobFault.LOST_REPLY, BlobFault.SLOW}


async def test_a_condition_dropped_on_the_way_overwrites():
    """What the probe is for: nothing above can notice it."""
    memory = MemoryBlobs()
    await Blobs(memory).create("a", b"theirs")
    blobs, _ = blobs_with({1: BlobFault.UNCONDITIONAL}, memory)

    assert isinstance(await blobs.create("a", b"mine"), Won)
    assert (await blobs.get("a")).body == b"mine"


async def test_every_crash_point_is_visited_and_a_dead_client_does_nothing_more():
    async def scenario(blobs: Blobs) -> None:
        await blobs.put("ready/j", b"index")
        first = checked_cast(Won, await blobs.create("tasks/j", b"waiting"))
        await blobs.swap("tasks/j", b"running", first.tag)
        await blobs.write_many([Write("x/1", b"1"), Write("x/2", b"2")])
        await blobs.list("ready/")
        await blobs.delete(["ready/j"])

    counting = FaultyBlobs(MemoryBlobs())
    await scenario(Blobs(counting))
    states = []
    for plan in crash_points(counting.calls):
        memory = MemoryBlobs()
        client = FaultyBlobs(memory, plan)
        with pytest.raises(Crashed):
            await scenario(Blobs(client))
        with pytest.raises(Crashed):
            await client.read([])
        states.append(tuple(entry.key for entry in (await memory.list("", None, 99)).entries))

    assert counting.calls == 7 and len(states) == 14
    assert states[:4] == [(), ("ready/j",), ("ready/j",), ("ready/j", "tasks/j")]
    assert states[7:10] == [
        ("ready/j", "tasks/j", "x/1"),
        ("ready/j", "tasks/j", "x/1"),
        ("ready/j", "tasks/j", "x/1", "x/2"),
    ]
    assert states[12:] == [("ready/j", "tasks/j", "x/1", "x/2"), ("tasks/j", "x/1", "x/2")]


async def test_a_crash_is_no_error_that_somebody_handles():
    blobs = Blobs(FaultyBlobs(MemoryBlobs(), scripted_faults({1: BlobFault.CRASH_AFTER})))

    assert not issubclass(Crashed, Exception)
    with pytest.raises(Crashed, match="request 1"):
        await blobs.create("a", b"1")
    with pytest.raises(Crashed, match="request 1"):
        await blobs.now()
