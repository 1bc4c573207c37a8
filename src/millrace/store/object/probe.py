"""The probe: tests at every connect whether a store honours conditional writes.

Some S3 servers ignore conditions and confirm every concurrent write. Others honour them only in buckets without
versioning, or only with a certain spelling of the tag. On such a bucket, two workers could run the same job without
noticing. So every connect runs tests with objects of its own, and refuses a store that fails one.

The probe detects servers that ignore conditions. It can make it likely that conditions are atomic, but cannot prove it;
`racers` and `rounds` set how hard it tries.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress

import msgspec

from millrace.domain.errors import StoreError
from millrace.store.object.driver import (
    UNCHANGED,
    Answer,
    Blob,
    Driver,
    Expect,
    NoAnswer,
    Read,
    Refused,
    Unavailable,
    Want,
    Write,
    WriteReply,
)

PATIENCE = 4  # attempts of a request that gets no answer


class UnsafeStore(StoreError):
    """Raised when the store lacks a guarantee that jobs depend on. `check` is the check that failed."""

    def __init__(self, url: str, check: str, advice: str) -> None:
        self.check = check
        super().__init__(f"{url} cannot be used: it fails the check that {check}. {advice}")


class Findings(msgspec.Struct, frozen=True):
    """The result of the probe. `checks` lists the checks that have passed.

    `conditional_reads` says whether a read of an unchanged object transfers no body.
    """

    checks: tuple[str, ...]
    versioned: bool
    conditional_reads: bool


async def probe(driver: Driver, *, racers: int = 8, rounds: int = 1) -> Findings:
    """Test everything that the object store relies on, and return the findings.

    Raise UnsafeStore for the first check that fails.
    """
    trial = _Trial(driver, f"probe/{secrets.token_hex(8)}")
    try:
        await trial.conditional_writes()
        await trial.listing()
        for number in range(rounds):
            await trial.race(racers, number)
        conditional_reads = await trial.conditional_reads()
        await trial.deletion()
    finally:
        await trial.tidy()
    return Findings(tuple(trial.passed), trial.versioned, conditional_reads)


class _Trial:
    def __init__(self, driver: Driver, place: str) -> None:
        self.driver = driver
        self.place = place
        self.passed: list[str] = []
        self.versioned = False
        self._used: set[str] = set()

    async def conditional_writes(self) -> None:
        key = f"{self.place}/a"
        first = await self.write(key, Expect.ABSENT)
        self.expect(isinstance(first, WriteReply), "an object can be created", _DENIED)
        self.versioned = isinstance(first, WriteReply) and first.versioned
        began = await self.blob(key)
        second = await self.write(key, Expect.ABSENT)
        unharmed = isinstance(second, Refused) and (await self.blob(key)).body == began.body
        self.expect(unharmed, "creating an object that exists is refused", self.ignored("If-None-Match"))
        swapped = await self.write(key, began.tag)
        now = await self.blob(key)
        done = isinstance(swapped, WriteReply) and now.tag not in (began.tag, "")
        self.expect(done, "a swap with the right tag is done", self.ignored("If-Match"))
        stale = await self.write(key, began.tag)
        unharmed = isinstance(stale, Refused) and (await self.blob(key)).body == now.body
        self.expect(unharmed, "a swap with an old tag is refused", self.ignored("If-Match"))
        nowhere = f"{self.place}/nowhere"
        lost = await self.write(nowhere, began.tag)
        unharmed = isinstance(lost, Refused) and await self.read(Want(nowhere)) is None
        self.expect(unharmed, "a swap of an object that does not exist is refused", self.ignored("If-Match"))

    async def listing(self) -> None:
        for name in ("c", "b"):
            await self.write(f"{self.place}/{name}", Expect.ANYTHING)
        found = await self._names(None)
        rest = await self._names(f"{self.place}/a")
        in_order = found == ["a", "b", "c"] and rest == ["b", "c"]
        self.expect(in_order, "keys are listed in order, and from a given key on", _LISTING)

    async def _names(self, after: str | None) -> list[str]:
        for _ in range(PATIENCE):
            try:
                listing = await self.driver.list(f"{self.place}/", after, 10)
            except NoAnswer:
                continue
            return [entry.key.rpartition("/")[2] for entry in listing.entries]
        return []

    async def race(self, racers: int, number: int) -> None:
        key = f"{self.place}/race-{number}"
        self._used.add(key)
        bodies = [secrets.token_hex(16).encode() for _ in range(racers)]
        answers = await asyncio.gather(*(self.driver.write([Write(key, body)]) for body in bodies))
        winners = [body for body, [answer] in zip(bodies, answers, strict=True) if isinstance(answer, WriteReply)]
        clear = not any(isinstance(answer, Unavailable) for [answer] in answers)
        stored = await self.blob(key)
        alone = len(winners) <= 1 and (not winners or stored.body == winners[0]) and (bool(winners) or not clear)
        self.expect(alone, "of several who create an object at once, one wins", _ATOMIC)

    async def conditional_reads(self) -> bool:
        blob = await self.blob(f"{self.place}/a")
        return await self.read(Want(blob.key, unless=blob.tag)) is UNCHANGED

    async def deletion(self) -> None:
        key = f"{self.place}/a"
        await self.driver.delete([key, f"{self.place}/nowhere"])
        gone = await self.read(Want(key)) is None
        again = await self.write(key, Expect.ABSENT)
        self.expect(
            gone and isinstance(again, WriteReply), "a deleted object is gone and can be created again", _DENIED
        )

    async def tidy(self) -> None:
        with suppress(StoreError):  # a leftover under probe/ is harmless; the check's own error matters more
            await self.driver.delete(sorted(self._used))

    async def write(self, key: str, expect: str | Expect) -> Answer:
        """Write a new body under the condition `expect`, until the outcome is known. Raise StoreError after too many
        attempts.
        """
        self._used.add(key)
        answer: Answer = Unavailable("not asked")
        for _ in range(PATIENCE):
            body = secrets.token_hex(16).encode()
            [answer] = await self.driver.write([Write(key, body, expect)])
            if isinstance(answer, WriteReply | Refused):
                return await self._seen(key, body) if isinstance(answer, Refused) else answer
            if isinstance(answer, Unavailable):
                mine = await self._seen(key, body)
                if isinstance(mine, WriteReply):
                    return mine
            await asyncio.sleep(0.05)
        reason = answer.reason if isinstance(answer, Unavailable) else "another write was always in progress"
        raise StoreError(f"{self.driver.url} cannot be reached: {reason}")

    async def _seen(self, key: str, body: bytes) -> Answer:
        """Return a success if the object has our body, otherwise a refusal.

        A refused write may have succeeded: if it was sent twice, the first attempt makes the server refuse the second.
        """
        there = await self.read(Want(key))
        return WriteReply(there.tag) if isinstance(there, Blob) and there.body == body else Refused()

    async def read(self, want: Want) -> Read:
        found: Read = None
        for _ in range(PATIENCE):
            [found] = await self.driver.read([want])
            if not isinstance(found, Unavailable):
                return found
            await asyncio.sleep(0.05)
        raise StoreError(
            f"{self.driver.url} cannot be reached: {found.reason if isinstance(found, Unavailable) else ''}"
        )

    async def blob(self, key: str) -> Blob:
        found = await self.read(Want(key))
        self.expect(isinstance(found, Blob), "what was written can be read", _DENIED, note=False)
        assert isinstance(found, Blob)
        return found

    def expect(self, holds: bool, check: str, advice: str, *, note: bool = True) -> None:
        if not holds:
            raise UnsafeStore(self.driver.url, check, advice)
        if note:
            self.passed.append(check)

    def ignored(self, header: str) -> str:
        where = (
            "It may work in a bucket without versioning: try one, with ?versioning=optional."
            if self.versioned
            else "Use a server that implements conditional writes, such as AWS S3, MinIO or Ceph."
        )
        return f"The server, or something between, does not honour {header}, so two workers could take one job. {where}"


_DENIED = "Check that these credentials may get, put, delete and list objects under this prefix."
_LISTING = "Directory buckets (S3 Express) and some small servers list in no order; use an ordinary bucket."
_ATOMIC = "Its conditional writes are not atomic, so two workers could take one job. Use another server."
