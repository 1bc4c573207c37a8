"""Stores that do not keep their word are refused, with the promise they broke and what to do."""

from collections.abc import Sequence

import pytest

from millrace.domain.errors import StoreError
from millrace.store.object.blobs import Blobs
from millrace.store.object.driver import Answer, Expect, Listing, Refused, Unavailable, Write
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.probe import UnsafeStore, probe
from proof.blob_faults import BlobFault, FaultyBlobs, seeded_faults

CREATE = "creating an object that exists is refused"
SWAP = "a swap with the right tag is done"
STALE = "a swap with an old tag is refused"
NOWHERE = "a swap of an object that does not exist is refused"
ORDER = "keys are listed in order, and from a given key on"
RACE = "of several who create an object at once, one wins"


class Lying(MemoryBlobs):
    """A server that breaks one promise."""

    def __init__(self, breaks: str) -> None:
        super().__init__()
        self.breaks = breaks

    async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
        return [(await self._answers(write))[0] for write in writes]

    async def _answers(self, write: Write) -> Sequence[Answer]:
        overwrite = Write(write.key, write.body, Expect.ANYTHING)
        there = self._current(write.key)
        swaps = isinstance(write.expect, str)
        racing = "/race-" in write.key
        lie = {
            CREATE: write.expect is Expect.ABSENT and not racing,
            STALE: swaps and there is not None,
            NOWHERE: swaps and there is None,
            RACE: racing,
        }.get(self.breaks, False)
        if self.breaks == SWAP and swaps:
            return [Refused()]
        return await super().write([overwrite if lie else write])

    async def list(self, prefix: str, after: str | None, limit: int) -> Listing:
        listing = await super().list(prefix, None if self.breaks == ORDER else after, limit)
        return Listing(listing.entries[::-1]) if self.breaks == "sorted" else listing


async def test_an_honest_store_passes_every_check_and_is_left_clean():
    store = MemoryBlobs()

    found = await probe(store, racers=16, rounds=20)

    assert {CREATE, SWAP, STALE, NOWHERE, ORDER, RACE} <= set(found.checks)
    assert found.versioned and found.conditional_reads
    assert (await store.list("", None, 10)).entries == ()


@pytest.mark.parametrize("check", [CREATE, SWAP, STALE, NOWHERE, ORDER, RACE])
async def test_a_store_that_breaks_a_promise_is_refused_by_name(check):  # O-08
    store = Lying(check)

    with pytest.raises(UnsafeStore, match=rf"{store.url} cannot be used: it fails the check that") as refused:
        await probe(store)

    assert refused.value.check == check and check in str(refused.value)
    assert (await store.list("", None, 10)).entries == () or check == ORDER


async def test_a_store_that_lists_in_no_order_is_refused():
    with pytest.raises(UnsafeStore, match="S3 Express"):
        await probe(Lying("sorted"))


async def test_the_advice_names_the_header_and_the_way_out():
    versioned, plain = Lying(STALE), Lying(STALE)
    plain.keeps_versions = False

    with pytest.raises(UnsafeStore, match=r"does not honour If-Match.*\?versioning=optional"):
        await probe(versioned)
    with pytest.raises(UnsafeStore, match="does not honour If-None-Match"):
        await probe(Lying(CREATE))


@pytest.mark.parametrize("check", [CREATE, NOWHERE])
async def test_an_answer_that_says_no_but_did_it_is_caught(check):
    class Sly(MemoryBlobs):
        """Says that it refused, and does it all the same."""

        async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
            [write] = writes
            there = self._current(write.key)
            sly = {CREATE: write.expect is Expect.ABSENT, NOWHERE: there is None}[check]
            answers = await super().write(writes)
            if sly and isinstance(answers[0], Refused):
                await super().write([Write(write.key, write.body[::-1], Expect.ANYTHING)])
            return answers

    with pytest.raises(UnsafeStore) as refused:
        await probe(Sly())
    assert refused.value.check == check


async def test_a_stale_swap_that_is_refused_and_done_is_caught():
    class Sly(MemoryBlobs):
        async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
            answers = await super().write(writes)
            if isinstance(writes[0].expect, str) and isinstance(answers[0], Refused) and self._current(writes[0].key):
                await super().write([Write(writes[0].key, b"overwritten", Expect.ANYTHING)])
            return answers

    with pytest.raises(UnsafeStore) as refused:
        await probe(Sly())
    assert refused.value.check == STALE


@pytest.mark.parametrize("seed", range(5))
async def test_a_bad_line_is_not_taken_for_a_bad_store(seed):
    chances = {BlobFault.LOST_REPLY: 0.05, BlobFault.SERVER_ERROR: 0.05, BlobFault.CONFLICT: 0.05}
    store = FaultyBlobs(MemoryBlobs(), seeded_faults(seed, chances, frozenset({"read", "write"})))

    assert RACE in (await probe(store)).checks
    assert store.faults


async def test_a_condition_dropped_on_the_way_is_found():
    store = FaultyBlobs(MemoryBlobs(), lambda kind, number: BlobFault.UNCONDITIONAL if kind == "write" else None)

    with pytest.raises(UnsafeStore) as refused:
        await probe(store)
    assert refused.value.check == CREATE


async def test_a_store_out_of_reach_is_not_called_unsafe():
    class Away(MemoryBlobs):
        async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
            return [Unavailable("connection refused") for _ in writes]

    with pytest.raises(StoreError, match="cannot be reached: connection refused") as refused:
        await probe(Away())
    assert not isinstance(refused.value, UnsafeStore)


async def test_the_probe_does_not_touch_what_is_there():
    store = MemoryBlobs()
    await Blobs(store).create("tasks/0/a", b"x")

    await probe(store)

    assert [entry.key for entry in (await store.list("", None, 10)).entries] == ["tasks/0/a"]
