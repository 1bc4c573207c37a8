"""The probe: does this store keep its word?

Some servers that speak S3 ignore conditions and answer 200 to every racer; some honour them only in buckets without
versioning, or only if the tag is spelled their way. On such a bucket two workers would run the same job and nobody
would ever be told. So it is tried out at every connect, with objects of its own, and a store that fails is refused.

It finds a server that ignores conditions. That conditions are atomic cannot be proved by trying, only made likely:
`racers` and `rounds` say how hard to try.
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
    Done,
    Driver,
    Expect,
    NoAnswer,
    Read,
    Refused,
    Trouble,
    Want,
    Write,
)

PATIENCE = 4  # attempts at a request that gets no answer


class UnsafeStore(StoreError):
    """The store does not do what jobs depend on. `check` says which of its promises failed."""

    def __init__(self, url: str, check: str, advice: str) -> None:
        self.check = check
        super().__init__(f"{url} cannot be used: it fails the check that {check}. {advice}")


class Findings(msgspec.Struct, frozen=True):
    """`checks` names what was proved; `conditional_reads` whether an unchanged object costs no transfer."""

    checks: tuple[str, ...]
    versioned: bool
    conditional_reads: bool


async def probe(driver: Driver, *, racers: int = 8, rounds: int = 1) -> Findings:
    """Try everything that is relied on. Raises UnsafeStore with the first check that failed."""
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
        self.expect(isinstance(first, Done), "an object can be created", _DENIED)
        self.versioned = isinstance(first, Done) and first.versioned
        began = await self.blob(key)
        second = await self.write(key, Expect.ABSENT)
        unharmed = isinstance(second, Refused) and (await self.blob(key)).body == began.body
        self.expect(unharmed, "creating an object that exists is refused", self.ignored("If-None-Match"))
        swapped = await self.write(key, began.tag)
        now = await self.blob(key)
        done = isinstance(swapped, Done) and now.tag not in (began.tag, "")
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
        winners = [body for body, [answer] in zip(bodies, answers, strict=True) if isinstance(answer, Done)]
        clear = not any(isinstance(answer, Trouble) for [answer] in answers)
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
        self.expect(gone and isinstance(again, Done), "a deleted object is gone and can be created again", _DENIED)

    async def tidy(self) -> None:
        with suppress(StoreError):  # an object or two more under probe/; the error of the check matters more
            await self.driver.delete(sorted(self._used))

    async def write(self, key: str, expect: str | Expect) -> Answer:
        """Without an answer the outcome is not known, and a fresh body is tried under the same condition."""
        self._used.add(key)
        answer: Answer = Trouble("not asked")
        for _ in range(PATIENCE):
            body = secrets.token_hex(16).encode()
            [answer] = await self.driver.write([Write(key, body, expect)])
            if isinstance(answer, Done | Refused):
                return await self._seen(key, body) if isinstance(answer, Refused) else answer
            if isinstance(answer, Trouble):
                mine = await self._seen(key, body)
                if isinstance(mine, Done):
                    return mine
            await asyncio.sleep(0.05)
        reason = answer.reason if isinstance(answer, Trouble) else "another write was always under way"
        raise StoreError(f"{self.driver.url} cannot be reached: {reason}")

    async def _seen(self, key: str, body: bytes) -> Answer:
        """A refusal may be about our own write, sent twice on the way."""
        there = await self.read(Want(key))
        return Done(there.tag) if isinstance(there, Blob) and there.body == body else Refused()

    async def read(self, want: Want) -> Read:
        found: Read = None
        for _ in range(PATIENCE):
            [found] = await self.driver.read([want])
            if not isinstance(found, Trouble):
                return found
            await asyncio.sleep(0.05)
        raise StoreError(f"{self.driver.url} cannot be reached: {found.reason if isinstance(found, Trouble) else ''}")

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
            "It may be honest in a bucket without versioning: try one, with ?versioning=optional."
            if self.versioned
            else "Use a server that implements conditional writes, such as AWS S3, MinIO or Ceph."
        )
        return f"The server, or something between, does not honour {header}, so two workers could take one job. {where}"


_DENIED = "Check that these credentials may get, put, delete and list objects under this prefix."
_LISTING = "Directory buckets (S3 Express) and some small servers list in no order; use an ordinary bucket."
_ATOMIC = "Its conditional writes are not atomic, so two workers could take one job. Use another server."
