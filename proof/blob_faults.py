"""Faults on purpose, one layer down: blobs whose requests conflict, get lost, dawdle, or end with their client.

`FaultyBlobs` lies between `Blobs` and any driver, where a network would. Requests are numbered from 1 in the order they
are made, each object of a batch for itself, so that a run can be repeated and stopped at every single one:

    calls = FaultyBlobs(MemoryBlobs())
    await scenario(Blobs(calls))
    for plan in crash_points(calls.calls):
        await scenario_that_dies(Blobs(FaultyBlobs(fresh, plan)))
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

import msgspec

from millrace.store.object.driver import (
    Answer,
    Blob,
    Conflict,
    Driver,
    Expect,
    Listing,
    NoAnswer,
    Read,
    Removing,
    Unavailable,
    VersionPage,
    Want,
    Write,
    WriteReply,
)
from millrace.testing.faults import drawn

T = TypeVar("T")
BlobPlan = Callable[[str, int], "BlobFault | None"]  # (kind of request, its number) → what goes wrong


class BlobFault(StrEnum):
    CONFLICT = "conflict"  # 409: not done, because another write was under way
    LOST_REPLY = "lost reply"  # done, and nobody is told
    LOST_REQUEST = "lost request"  # not done, and nobody is told
    SERVER_ERROR = "server error"  # 5xx: not done
    TWICE = "twice"  # the request arrives twice, and the second answer is the one that counts
    SLOW = "slow"
    NO_TAG = "no tag"  # done, but the answer comes without its ETag
    UNCONDITIONAL = "unconditional"  # the condition is dropped on the way: whatever is there is overwritten
    CRASH_BEFORE = "crash before"  # the client dies; the request was not sent
    CRASH_AFTER = "crash after"  # the client dies; the request was carried out


CRASHES = (BlobFault.CRASH_BEFORE, BlobFault.CRASH_AFTER)
_CARRIED_OUT = frozenset(
    {BlobFault.LOST_REPLY, BlobFault.TWICE, BlobFault.SLOW, BlobFault.NO_TAG, BlobFault.UNCONDITIONAL}
)


class Crashed(BaseException):
    """The client is dead. Not an Exception: no handler of errors outlives its process."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"the client crashed at request {number}")


def no_faults(kind: str, number: int) -> BlobFault | None:
    return None


def scripted_faults(faults: Mapping[int, BlobFault]) -> BlobPlan:
    """Faults by number of the request."""
    return lambda kind, number: faults.get(number)


def seeded_faults(seed: int, chances: Mapping[BlobFault, float], kinds: frozenset[str] | None = None) -> BlobPlan:
    """Faults by chance, the same ones for the same seed; `kinds` (read, write, delete, list, …) spares the others."""
    chance = random.Random(seed)

    def plan(kind: str, number: int) -> BlobFault | None:
        if kinds is not None and kind not in kinds:
            return None
        return drawn(chance.random(), chances)

    return plan


def crash_points(calls: int) -> Iterator[BlobPlan]:
    """Plans that end the client before and after each of its requests."""
    for number in range(1, calls + 1):
        for crash in CRASHES:
            yield scripted_faults({number: crash})


class FaultyBlobs:
    """Any driver, with a plan of what goes wrong. `calls` counts requests, `faults` what befell them."""

    refusal_is_final = False  # there is a network now

    def __init__(self, driver: Driver, plan: BlobPlan = no_faults, *, delay: float = 0.002) -> None:
        self.driver = driver
        self.plan = plan
        self.delay = delay
        self.calls = 0
        self.faults: Counter[BlobFault] = Counter()
        self.crashed: Crashed | None = None

    @property
    def url(self) -> str:
        return self.driver.url

    @property
    def durability(self) -> str:
        return self.driver.durability

    @property
    def keeps_versions(self) -> bool:
        return self.driver.keeps_versions

    @property
    def requests(self) -> Counter[str]:
        return self.driver.requests

    async def connect(self) -> None:
        await self.driver.connect()

    async def close(self) -> None:
        await self.driver.close()

    async def read(self, wants: Sequence[Want]) -> Sequence[Read]:
        faults, crash = self._drawn("read", len(wants))
        sent = [place for place, fault in enumerate(faults) if fault not in _READ_FAILS]
        replies = await self._paced(faults, lambda: self.driver.read([wants[place] for place in sent]))
        if crash is not None:
            raise crash
        found: list[Read] = [Unavailable(str(fault)) for fault in faults]
        for place, read in zip(sent, replies, strict=True):
            found[place] = (
                Unavailable("no tag") if faults[place] is BlobFault.NO_TAG and isinstance(read, Blob) else read
            )
        return found

    async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
        faults, crash = self._drawn("write", len(writes))
        sent = [place for place, fault in enumerate(faults) if fault is None or fault in _CARRIED_OUT]
        if crash is not None and faults[-1] is BlobFault.CRASH_AFTER:
            sent.append(len(faults) - 1)
        asked = [_as_sent(writes[place], faults[place]) for place in sent]
        replies = await self._paced(faults, lambda: self.driver.write(asked)) if asked else ()
        if crash is not None:
            raise crash
        if BlobFault.TWICE in faults:
            again = [write for place, write in zip(sent, asked, strict=True) if faults[place] is BlobFault.TWICE]
            second = iter(await self.driver.write(again))
            replies = [
                next(second) if faults[place] is BlobFault.TWICE else reply
                for place, reply in zip(sent, replies, strict=True)
            ]
        answers: list[Answer] = [
            Conflict() if fault is BlobFault.CONFLICT else Unavailable(str(fault)) for fault in faults
        ]
        for place, answer in zip(sent, replies, strict=True):
            answers[place] = _as_received(answer, faults[place])
        return answers

    async def delete(self, keys: Sequence[str]) -> None:
        await self._single("delete", lambda: self.driver.delete(keys))

    async def remove(self, key: str, tag: str) -> bool:
        driver = self.driver
        return isinstance(driver, Removing) and await self._single("delete", lambda: driver.remove(key, tag))

    async def list(self, prefix: str, after: str | None, limit: int) -> Listing:
        return await self._single("list", lambda: self.driver.list(prefix, after, limit))

    async def versions(self, key: str, after: str | None, limit: int) -> VersionPage:
        return await self._single("versions", lambda: self.driver.versions(key, after, limit))

    async def read_version(self, key: str, version: str) -> Blob | None:
        return await self._single("read", lambda: self.driver.read_version(key, version))

    async def now(self) -> int:
        self._alive()
        return await self.driver.now()

    def mark(self, prefix: str) -> int:
        return self.driver.mark(prefix)

    async def wait_for_change(self, prefix: str, timeout: float, since: int | None = None) -> bool:
        self._alive()
        return await self.driver.wait_for_change(prefix, timeout, since)

    def _alive(self) -> None:
        if self.crashed is not None:
            raise self.crashed

    def _drawn(self, kind: str, count: int) -> tuple[Sequence[BlobFault | None], Crashed | None]:
        """A fault or none per request; a crash ends the batch at its request."""
        self._alive()
        faults: list[BlobFault | None] = []
        for _ in range(count):
            self.calls += 1
            fault = self.plan(kind, self.calls)
            faults.append(fault)
            if fault is not None:
                self.faults[fault] += 1
            if fault in CRASHES:
                self.crashed = Crashed(self.calls)
                break
        return faults, self.crashed

    async def _paced(self, faults: Sequence[BlobFault | None], act: Callable[[], Awaitable[T]]) -> T:
        if BlobFault.SLOW in faults:
            await asyncio.sleep(self.delay)
        return await act()

    async def _single(self, kind: str, act: Callable[[], Awaitable[T]]) -> T:
        faults, crash = self._drawn(kind, 1)
        [fault] = faults
        if fault in (BlobFault.LOST_REQUEST, BlobFault.SERVER_ERROR, BlobFault.CONFLICT):
            raise NoAnswer(str(fault))
        if crash is not None and fault is BlobFault.CRASH_BEFORE:
            raise crash
        answer = await self._paced(faults, act)
        if crash is not None:
            raise crash
        if fault is BlobFault.LOST_REPLY:
            raise NoAnswer(str(fault))
        return answer


_READ_FAILS = frozenset(
    {BlobFault.LOST_REPLY, BlobFault.LOST_REQUEST, BlobFault.SERVER_ERROR, BlobFault.CONFLICT, *CRASHES}
)


def _as_sent(write: Write, fault: BlobFault | None) -> Write:
    if fault is BlobFault.UNCONDITIONAL:
        return msgspec.structs.replace(write, expect=Expect.ANYTHING)
    return write


def _as_received(answer: Answer, fault: BlobFault | None) -> Answer:
    if fault is BlobFault.LOST_REPLY:
        return Unavailable(str(fault))
    if fault is BlobFault.NO_TAG and isinstance(answer, WriteReply):
        return WriteReply(None, answer.versioned)
    return answer
