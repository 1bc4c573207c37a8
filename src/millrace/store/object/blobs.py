"""Blobs: named bodies with compare-and-swap, every write with a certain outcome.

A conditional write over a network can end in four ways: won, lost, in conflict with another, or nobody knows because
the answer was lost. The last two, and a refusal that may be about our own write sent twice, are settled here by reading
back. That works because every body is unique (the engine puts a nonce in each): if the stored body is ours, so is the
write (BO-05). The same uniqueness lets tags be hashes of the content without an old state ever looking like a new one.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import msgspec

from millrace.domain.errors import InvalidInput, StoreError
from millrace.store.object.driver import (
    UNCHANGED,
    Answer,
    Blob,
    Conflict,
    Done,
    Driver,
    Expect,
    Listing,
    NoAnswer,
    Refused,
    Removing,
    Trouble,
    Unchanged,
    VersionPage,
    Want,
    Write,
)
from millrace.store.object.names import check_key, check_prefix

T = TypeVar("T")
MAX_PAGE = 1_000


class Won(msgspec.Struct, frozen=True):
    """The object is as this write made it; `tag` names it in the next swap."""

    tag: str


class Lost(msgspec.Struct, frozen=True):
    """Somebody else's is there.

    `current` is what was seen there, if it was `looked` at (None then means nothing is there). `unsure`: an answer of
    ours went missing on the way, so our write may have been there for a moment and been overwritten since.
    """

    current: Blob | None = None
    looked: bool = False
    unsure: bool = False


Written: TypeAlias = Won | Lost


class Patience(msgspec.Struct, frozen=True):
    """How often to ask again, and how long to wait between: doubling up to `longest`, with full jitter, in seconds."""

    attempts: int = 6
    first: float = 0.05
    longest: float = 2.0

    def delay(self, attempt: int, chance: float) -> float:
        return min(self.longest, self.first * 2.0**attempt) * (0.25 + 0.75 * chance)


class _Case(msgspec.Struct):
    """One write on its way to an outcome."""

    write: Write
    doubtful: bool = False  # an attempt may have been carried out without our knowing
    reason: str = ""
    outcome: Written | None = None


@dataclass
class Blobs:
    """A driver, made certain. `tally` counts outcomes: won, lost, conflict, unclear, proved (ours after all), again."""

    driver: Driver
    patience: Patience = field(default_factory=Patience)
    chance: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    tally: Counter[str] = field(default_factory=Counter[str])

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
        """Requests sent so far, by kind: what a bucket's owner pays for."""
        return self.driver.requests

    async def connect(self) -> None:
        await self.driver.connect()

    async def close(self) -> None:
        await self.driver.close()

    # reading

    async def get(self, key: str) -> Blob | None:
        [blob] = await self.get_many([key])
        return blob

    async def get_if_changed(self, key: str, tag: str) -> Blob | Unchanged | None:
        [read] = await self._read([Want(check_key(key), unless=tag)])
        return read

    async def get_many(self, keys: Sequence[str]) -> Sequence[Blob | None]:
        """In the order of the keys; the driver bounds how many are on the way at once."""
        found = await self._read([Want(check_key(key)) for key in keys])
        return [None if isinstance(read, Unchanged) else read for read in found]

    async def list(self, prefix: str, after: str | None = None, limit: int = MAX_PAGE) -> Listing:
        """One page of keys under `prefix` that sort after `after`."""
        check_prefix(prefix)
        if after is not None:
            check_key(after)
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidInput(f"a page holds 1 to {MAX_PAGE} entries, not {limit}")
        return await self._asked(f"listing {prefix!r}", lambda: self.driver.list(prefix, after, limit))

    async def versions(self, key: str, after: str | None = None, limit: int = MAX_PAGE) -> VersionPage:
        """Past and present versions, newest first, where the store keeps them (`keeps_versions`)."""
        check_key(key)
        return await self._asked(f"the versions of {key!r}", lambda: self.driver.versions(key, after, limit))

    async def get_version(self, key: str, version: str) -> Blob | None:
        check_key(key)
        return await self._asked(f"a version of {key!r}", lambda: self.driver.read_version(key, version))

    async def now(self) -> int:
        """The store's clock, in milliseconds since the epoch."""
        return await self._asked("the clock", self.driver.now)

    def mark(self, prefix: str) -> int:
        """Where `wait_for_change` shall start from: take it before looking, so that nothing falls between (BR-03)."""
        return self.driver.mark(check_prefix(prefix))

    async def wait_for_change(self, prefix: str, timeout: float, since: int | None = None) -> bool:
        """A hint that something under `prefix` may have been written; False when the time is up. Look either way."""
        return await self.driver.wait_for_change(check_prefix(prefix), timeout, since)

    # writing

    async def create(self, key: str, body: bytes, *, durable: bool = True) -> Written:
        """Write it if nothing is there."""
        [written] = await self.write_many([Write(key, body, Expect.ABSENT, durable)])
        return written

    async def swap(self, key: str, body: bytes, tag: str, *, durable: bool = True) -> Written:
        """Write it if what is there still has this tag."""
        [written] = await self.write_many([Write(key, body, tag, durable)])
        return written

    async def put(self, key: str, body: bytes, *, durable: bool = True) -> None:
        """Write it whatever is there: for objects that are never changed and whose name nobody else uses."""
        await self.write_many([Write(key, body, Expect.ANYTHING, durable)])

    async def put_many(self, bodies: Mapping[str, bytes], *, durable: bool = True) -> None:
        await self.write_many([Write(key, body, Expect.ANYTHING, durable) for key, body in bodies.items()])

    async def delete(self, keys: Iterable[str]) -> None:
        """Gone afterwards, whether they were there or not."""
        unique = [*dict.fromkeys(check_key(key) for key in keys)]
        for start in range(0, len(unique), MAX_PAGE):
            batch = unique[start : start + MAX_PAGE]
            await self._asked("deleting", lambda batch=batch: self.driver.delete(batch))  # type: ignore[misc]

    async def remove(self, key: str, tag: str) -> bool:
        """Remove what has this tag and nothing else; False where it has changed, or where nothing can do that."""
        driver = self.driver
        if not isinstance(driver, Removing):
            return False
        check_key(key)
        return await self._asked(f"removing {key!r}", lambda: driver.remove(key, tag))

    async def write_many(self, writes: Sequence[Write]) -> Sequence[Written]:
        """Each write for itself, all on the way at once; outcomes in their order."""
        if len({check_key(write.key) for write in writes}) != len(writes):
            raise InvalidInput("one call writes each key once; the order of two writes would be left to chance")
        cases = [_Case(write) for write in writes]
        open_cases = cases
        for attempt in range(self.patience.attempts):
            if not open_cases:
                break
            if attempt:
                self.tally["again"] += len(open_cases)
                await self.sleep(self.patience.delay(attempt - 1, self.chance()))
            answers = await self.driver.write([case.write for case in open_cases])
            doubtful = [
                case for case, answer in zip(open_cases, answers, strict=True) if self._leaves_doubt(case, answer)
            ]
            if doubtful:
                found = await self._read([Want(case.write.key) for case in doubtful])
                for case, read in zip(doubtful, found, strict=True):
                    self._look(case, None if isinstance(read, Unchanged) else read)
            open_cases = [case for case in open_cases if case.outcome is None]
        if open_cases:
            raise self._gave_up(open_cases)
        return [self._counted(case) for case in cases]

    def _leaves_doubt(self, case: _Case, answer: Answer) -> bool:
        """Note one answer; True if only the object itself can tell what became of the write."""
        anything = case.write.expect is Expect.ANYTHING
        match answer:
            case Done(tag) if tag is not None or anything:
                case.outcome = Won(tag or "")
                return False
            case Done():
                case.doubtful = True
                case.reason = "the answer named no tag"
                return True
            case Refused():
                if self.driver.refusal_is_final and not case.doubtful:
                    case.outcome = Lost()
                case.reason = "refused although what is there is what was expected"
                return case.outcome is None
            case Conflict():
                self.tally["conflict"] += 1
                case.reason = "another write was always under way"
                return False
            case Trouble(reason):
                self.tally["unclear"] += 1
                case.doubtful, case.reason = True, reason
                return not anything  # the same body may as well be put again

    def _look(self, case: _Case, current: Blob | None) -> None:
        """What is there decides; if it is what the write expected, the write has not landed and is tried again."""
        write = case.write
        if current is not None and current.body == write.body:
            self.tally["proved"] += 1
            case.outcome = Won(current.tag)
        elif (current.tag if current else Expect.ABSENT) != write.expect:
            case.outcome = Lost(current, looked=True, unsure=case.doubtful)

    def _counted(self, case: _Case) -> Written:
        assert case.outcome is not None
        self.tally["won" if isinstance(case.outcome, Won) else "lost"] += 1
        return case.outcome

    def _gave_up(self, cases: Sequence[_Case]) -> StoreError:
        case = cases[0]
        more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
        state = "may or may not have been written" if case.doubtful else "was not written"
        return StoreError(
            f"{self.url}: {case.write.key!r}{more} {state}, after {self.patience.attempts} attempts: {case.reason}. "
            "Check that the store can be reached, then ask again."
        )

    # asking again

    async def _read(self, wants: Sequence[Want]) -> Sequence[Blob | Unchanged | None]:
        found = [*await self.driver.read(wants)]
        for attempt in range(self.patience.attempts):
            missing = [place for place, read in enumerate(found) if isinstance(read, Trouble)]
            if not missing:
                break
            if attempt == self.patience.attempts - 1:
                trouble = found[missing[0]]
                assert isinstance(trouble, Trouble)
                raise self._unreachable(f"reading {wants[missing[0]].key!r}", trouble.reason)
            self.tally["again"] += len(missing)
            await self.sleep(self.patience.delay(attempt, self.chance()))
            for place, read in zip(missing, await self.driver.read([wants[place] for place in missing]), strict=True):
                found[place] = read
        return [read for read in found if not isinstance(read, Trouble)]

    async def _asked(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(self.patience.attempts):
            try:
                return await ask()
            except NoAnswer as error:
                if attempt == self.patience.attempts - 1:
                    raise self._unreachable(what, str(error)) from None
            self.tally["again"] += 1
            await self.sleep(self.patience.delay(attempt, self.chance()))
        raise AssertionError("unreachable")

    def _unreachable(self, what: str, reason: str) -> StoreError:
        return StoreError(
            f"{self.url}: {what} failed {self.patience.attempts} times: {reason}. Check that the store can be reached."
        )


__all__ = ["UNCHANGED", "Blobs", "Lost", "Patience", "Won", "Write", "Written"]
