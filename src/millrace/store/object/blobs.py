"""Blobs: named objects with compare-and-swap, where every write has a known outcome.

A conditional write over a network can succeed, be refused, conflict with another write, or get no answer. After a
conflict, the write is sent again. If there is no answer, the object is read back. It is also read back after a refusal
that our own write, sent twice, may have caused.

Reading back works because every body is unique (the engine adds a nonce to each): if the stored body is ours, our write
succeeded. For the same reason, a tag can be a hash of the content: two states of an object never have the same tag.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import msgspec

from millrace.domain.errors import InvalidInput, ReadOnlyStore, StoreError
from millrace.store.object.driver import (
    UNCHANGED,
    Answer,
    Blob,
    Conflict,
    Driver,
    Expect,
    Listing,
    NoAnswer,
    Refused,
    Removing,
    Signalling,
    Unavailable,
    Unchanged,
    VersionPage,
    Want,
    Write,
    WriteReply,
    WritesToOpen,
)
from millrace.store.object.names import check_key, check_prefix
from millrace.store.trace import TRACE

log = logging.getLogger("millrace.store.object")
T = TypeVar("T")
MAX_PAGE = 1_000


class Won(msgspec.Struct, frozen=True):
    """The write succeeded. `tag` is the new tag of the object, which the next swap expects."""

    tag: str


class LostReply(msgspec.Struct, frozen=True):
    """The write failed because the object was not as expected.

    If `looked` is set, the object was read: `current` is the object, or None if it does not exist. `unsure` means that
    an answer was lost. After a lost answer, our write may have been visible for a moment, before another write replaced
    it.
    """

    current: Blob | None = None
    looked: bool = False
    unsure: bool = False


Written: TypeAlias = Won | LostReply


class RetryBudget(msgspec.Struct, frozen=True):
    """How often a request is tried, and the delay between attempts in seconds.

    The delay doubles from `first` up to `longest`, with jitter.
    """

    attempts: int = 6
    first: float = 0.05
    longest: float = 2.0

    def delay(self, attempt: int, chance: float) -> float:
        return min(self.longest, self.first * 2.0**attempt) * (0.25 + 0.75 * chance)


class _Case(msgspec.Struct):
    """A write in progress, with what is known about its outcome so far."""

    write: Write
    doubtful: bool = False  # an earlier attempt may have succeeded unnoticed
    reason: str = ""
    outcome: Written | None = None


@dataclass
class Blobs:
    """A driver with retries, so that every write has a known outcome.

    `tally` counts the results of writes: won, lost, conflict, unclear (no answer), proved (read back and found to be
    ours) and again (retried).
    """

    driver: Driver
    patience: RetryBudget = field(default_factory=RetryBudget)
    chance: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    tally: Counter[str] = field(default_factory=Counter[str])
    _reads_only: bool = False

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
    def reads_only(self) -> bool:
        return self._reads_only

    @property
    def requests(self) -> Counter[str]:
        """The number of requests sent so far, by kind. The owner of a bucket pays for requests."""
        return self.driver.requests

    async def connect(self) -> None:
        await self.driver.connect()

    async def connect_for_reading(self) -> None:
        """Connect without writing anything. From now on, every write is refused."""
        self._reads_only = True
        if isinstance(self.driver, WritesToOpen):
            await self.driver.connect_for_reading()
        else:
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
        """Return the blobs in the order of the keys; None for a missing object. The driver limits how many requests run
        at once.
        """
        found = await self._read([Want(check_key(key)) for key in keys])
        return [None if isinstance(read, Unchanged) else read for read in found]

    async def list(self, prefix: str, after: str | None = None, limit: int = MAX_PAGE) -> Listing:
        """Return one page of keys under `prefix` that sort after `after`."""
        check_prefix(prefix)
        if after is not None:
            check_key(after)
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidInput(f"a page holds 1 to {MAX_PAGE} entries, not {limit}")
        return await self._retried(f"listing {prefix!r}", lambda: self.driver.list(prefix, after, limit))

    async def pages(self, prefix: str, after: str | None = None, limit: int = MAX_PAGE) -> AsyncIterator[Listing]:
        """Yield all pages of keys under `prefix` that sort after `after`."""
        while True:
            page = await self.list(prefix, after, limit)
            yield page
            if not page.truncated or not page.entries:
                return
            after = page.entries[-1].key

    async def all_keys(self, prefix: str, most: int | None = None) -> Sequence[str]:
        """Return all keys under `prefix` in order, or only the first `most` of them."""
        keys: list[str] = []
        async for page in self.pages(prefix, None, MAX_PAGE if most is None else min(MAX_PAGE, most)):
            keys += [item.key for item in page.entries]
            if most is not None and len(keys) >= most:
                break
        return keys[:most]

    async def versions(self, key: str, after: str | None = None, limit: int = MAX_PAGE) -> VersionPage:
        """Return a page of versions, newest first. There are past versions only if `keeps_versions` is True."""
        check_key(key)
        return await self._retried(f"the versions of {key!r}", lambda: self.driver.versions(key, after, limit))

    async def get_version(self, key: str, version: str) -> Blob | None:
        check_key(key)
        return await self._retried(f"a version of {key!r}", lambda: self.driver.read_version(key, version))

    async def now(self) -> int:
        """Return the time of the store's clock, in milliseconds since the epoch."""
        return await self._retried("the clock", self.driver.now)

    def mark(self, prefix: str) -> int:
        """Return a starting point for `wait_for_change`. Call this before reading, so that no change is missed."""
        return self.driver.mark(check_prefix(prefix))

    async def wait_for_change(self, prefix: str, timeout: float, since: int | None = None) -> bool:
        """Wait until an object under `prefix` may have changed, and return True. Return False after `timeout` seconds.

        This is only a hint: read the objects in both cases.
        """
        return await self.driver.wait_for_change(check_prefix(prefix), timeout, since)

    def signal(self, prefix: str) -> None:
        """Wake callers that wait for a change under `prefix`, without writing an object.

        Do nothing if the driver does not support this.
        """
        if isinstance(self.driver, Signalling):
            self.driver.signal(check_prefix(prefix))

    # writing

    async def create(self, key: str, body: bytes, *, durable: bool = True) -> Written:
        """Write the object only if it does not exist. Return the outcome."""
        [written] = await self.write_many([Write(key, body, Expect.ABSENT, durable)])
        return written

    async def swap(self, key: str, body: bytes, tag: str, *, durable: bool = True) -> Written:
        """Write the object only if it still has this tag. Return the outcome."""
        [written] = await self.write_many([Write(key, body, tag, durable)])
        return written

    async def put(self, key: str, body: bytes, *, durable: bool = True) -> None:
        """Write the object unconditionally. Use this only for objects that never change and have unique names."""
        await self.write_many([Write(key, body, Expect.ANYTHING, durable)])

    async def put_many(self, bodies: Mapping[str, bytes], *, durable: bool = True) -> None:
        await self.write_many([Write(key, body, Expect.ANYTHING, durable) for key, body in bodies.items()])

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects. Missing objects are ignored."""
        self._check_writable("delete")
        unique = [*dict.fromkeys(check_key(key) for key in keys)]
        for start in range(0, len(unique), MAX_PAGE):
            batch = unique[start : start + MAX_PAGE]
            await self._retried("deleting", lambda batch=batch: self.driver.delete(batch))  # type: ignore[misc]

    async def remove(self, key: str, tag: str) -> bool:
        """Delete the object only if it has this tag. Return False if it has changed, or if the driver does not support
        this.
        """
        self._check_writable("remove")
        driver = self.driver
        if not isinstance(driver, Removing):
            return False
        check_key(key)
        return await self._retried(f"removing {key!r}", lambda: driver.remove(key, tag))

    async def write_many(self, writes: Sequence[Write]) -> Sequence[Written]:
        """Run the writes concurrently, and return their outcomes in order."""
        self._check_writable("write")
        if len({check_key(write.key) for write in writes}) != len(writes):
            raise InvalidInput("one call writes each key once; the order of two writes would be undefined")
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
        outcomes = [self._counted(case) for case in cases]
        if log.isEnabledFor(TRACE):
            for case, outcome in zip(cases, outcomes, strict=True):
                log.log(TRACE, "%s: write %s: %s", self.url, case.write.key, type(outcome).__name__.lower())
        return outcomes

    def _leaves_doubt(self, case: _Case, answer: Answer) -> bool:
        """Record the driver's answer to a write. Return True if the outcome can only be found by reading the object."""
        anything = case.write.expect is Expect.ANYTHING
        match answer:
            case WriteReply(tag) if tag is not None or anything:
                case.outcome = Won(tag or "")
                return False
            case WriteReply():
                case.doubtful = True
                case.reason = "the answer named no tag"
                return True
            case Refused():
                if self.driver.refusal_is_final and not case.doubtful:
                    case.outcome = LostReply()
                case.reason = "refused although the object is as expected"
                return case.outcome is None
            case Conflict():
                self.tally["conflict"] += 1
                case.reason = "another write was always in progress"
                return False
            case Unavailable(reason):
                self.tally["unclear"] += 1
                case.doubtful, case.reason = True, reason
                return not anything  # the same body can be written again

    def _look(self, case: _Case, current: Blob | None) -> None:
        """Set the outcome of a write, given the current object.

        If the object is still as the write expected, set no outcome. A write without an outcome is retried.
        """
        write = case.write
        if current is not None and current.body == write.body:
            self.tally["proved"] += 1
            case.outcome = Won(current.tag)
        elif (current.tag if current else Expect.ABSENT) != write.expect:
            case.outcome = LostReply(current, looked=True, unsure=case.doubtful)

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
            "Check that the store can be reached, then try again."
        )

    def _check_writable(self, operation: str) -> None:
        if self._reads_only:
            raise ReadOnlyStore(self.url, operation)

    # asking again

    async def _read(self, wants: Sequence[Want]) -> Sequence[Blob | Unchanged | None]:
        found = [*await self.driver.read(wants)]
        if log.isEnabledFor(TRACE):
            log.log(TRACE, "%s: read %s", self.url, " ".join(want.key for want in wants))
        for attempt in range(self.patience.attempts):
            missing = [place for place, read in enumerate(found) if isinstance(read, Unavailable)]
            if not missing:
                break
            if attempt == self.patience.attempts - 1:
                failed = found[missing[0]]
                assert isinstance(failed, Unavailable)
                raise self._unreachable(f"reading {wants[missing[0]].key!r}", failed.reason)
            self.tally["again"] += len(missing)
            await self.sleep(self.patience.delay(attempt, self.chance()))
            for place, read in zip(missing, await self.driver.read([wants[place] for place in missing]), strict=True):
                found[place] = read
        return [read for read in found if not isinstance(read, Unavailable)]

    async def _retried(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        if log.isEnabledFor(TRACE):
            log.log(TRACE, "%s: %s", self.url, what)
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


__all__ = ["UNCHANGED", "Blobs", "LostReply", "RetryBudget", "Won", "Write", "Written"]
