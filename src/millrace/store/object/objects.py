"""Objects and transactions over them: several compare-and-swaps that happen together or not at all.

One object is one swap. For several, all but one are first written as `pending`, side by side; then the swap of the
last, the primary, decides. A reader that meets a pending value asks the primary and never waits. A writer that meets
one which is not decided waits a moment for its owner, then makes the primary refuse it (any write of the primary
changes its tag, which is what the commit expects) and takes the object back. So nobody who crashes stops anybody.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec

from millrace.domain.errors import StoreError
from millrace.store.object.blobs import Blobs, Lost, Won
from millrace.store.object.driver import Blob, Expect, Write
from millrace.store.object.envelope import Envelope, Pending, opened, plain, raw, sealed

MANY_CREATES = 4  # above it, a manifest of its own is the primary, and created objects need no second write
KNOWN = 10_000
LONGEST_STEP = 3_600.0  # seconds; what made a sleeper's commit fail may be gone a day later (sweep/shared.py)


class Seen(msgspec.Struct, frozen=True):
    """An object as a transaction sees it. `value` is the decided one, whatever is pending."""

    key: str
    tag: str | None
    value: bytes | None
    envelope: Envelope | None = None
    lock: Pending | None = None  # of somebody whose transaction is not decided


class Change(msgspec.Struct, frozen=True):
    seen: Seen
    value: bytes | None

    @property
    def key(self) -> str:
        return self.seen.key


class Committed(msgspec.Struct, frozen=True):
    """`lost` names what was not as it had been seen; then nothing was written. `tags` are those of what was."""

    lost: tuple[str, ...] = ()
    unsure: bool = False  # an answer was lost on the way: it may have been there for a moment
    tags: dict[str, str] = {}


@dataclass
class Objects:
    """`patience` is how long, in seconds, a lock may stand in the way before it is taken for abandoned."""

    blobs: Blobs
    patience: float = 2.0
    manifest_key: Callable[[str], str] = "batches/{}.json".format
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _committed: dict[str, None] = field(default_factory=dict[str, None])
    _through: dict[str, None] = field(default_factory=dict[str, None])
    _locks: dict[str, float] = field(default_factory=dict[str, float])  # undecided transaction -> when it was met

    # reading

    async def read(self, keys: Sequence[str]) -> list[Seen]:
        """The decided values; what is pending is looked up, never waited for."""
        blobs = await self.blobs.get_many(keys)
        found = [self._plain(key, blob) for key, blob in zip(keys, blobs, strict=True)]
        locked = [place for place, seen in enumerate(found) if seen.lock is not None]
        if locked:
            await self._decide(found, locked)
        return found

    def _plain(self, key: str, blob: Blob | None) -> Seen:
        if blob is None:
            return Seen(key, None, None)
        envelope = opened(blob.body)
        pending = envelope.pending
        if pending is None:
            return Seen(key, blob.tag, plain(envelope.value), envelope)
        if pending.tx in self._committed:
            return Seen(key, blob.tag, plain(pending.next), envelope)
        return Seen(key, blob.tag, plain(envelope.value), envelope, pending)

    async def _decide(self, found: list[Seen], places: Sequence[int]) -> None:
        """Ask the primaries. An object is read again where its transaction may have been cleared away meanwhile."""
        locks = {place: lock for place in places if (lock := found[place].lock) is not None}
        primaries = [*dict.fromkeys(lock.primary for lock in locks.values())]
        bodies = dict(zip(primaries, await self.blobs.get_many(primaries), strict=True))
        for lock in locks.values():
            body = bodies[lock.primary]
            if _lists(body, lock.tx):
                self._note(self._committed, lock.tx)
        open_places = [place for place, lock in locks.items() if lock.tx not in self._committed]
        again = await self.blobs.get_many([found[place].key for place in open_places])
        for place, lock in locks.items():
            if place not in open_places:
                found[place] = msgspec.structs.replace(found[place], value=plain(lock.next), lock=None)
        moved: list[int] = []
        for place, blob in zip(open_places, again, strict=True):
            if (None if blob is None else blob.tag) != found[place].tag:
                found[place] = self._plain(found[place].key, blob)
                if found[place].lock is not None:
                    moved.append(place)
        if moved:
            await self._decide(found, moved)

    # writing

    async def commit_all(
        self, groups: Sequence[tuple[Sequence[Change], str | None]], *, durable: bool = True
    ) -> list[Committed | BaseException]:
        """Each group for itself, side by side, those of one object in one go; errors stand in their group's place."""
        await self._clear([change.seen for changes, _ in groups for change in changes])
        single = [place for place, (changes, _) in enumerate(groups) if len(changes) == 1]
        several = [place for place, (changes, _) in enumerate(groups) if len(changes) > 1]
        written = await asyncio.gather(
            self._swap_each([groups[place][0][0] for place in single], durable),
            *(self.commit(*groups[place], durable=durable) for place in several),
            return_exceptions=True,
        )
        first, rest = written[0], written[1:]
        answers: dict[int, Committed | BaseException] = {}
        for number, place in enumerate(single):
            answers[place] = first if isinstance(first, BaseException) else cast(list[Committed], first)[number]
        answers |= {place: cast(Committed | BaseException, one) for place, one in zip(several, rest, strict=True)}
        return [answers[place] for place in range(len(groups))]

    async def _swap_each(self, changes: Sequence[Change], durable: bool) -> list[Committed]:
        writes = [_swap(change, sealed(change.value), durable) for change in changes]
        answers = zip(changes, await self.blobs.write_many(writes) if writes else (), strict=True)
        return [
            Committed(tags={change.key: written.tag})
            if isinstance(written, Won)
            else Committed((change.key,), written.unsure)
            for change, written in answers
        ]

    async def commit(self, changes: Sequence[Change], primary: str | None = None, *, durable: bool = True) -> Committed:
        """All of it, or nothing. Several are always durable: a power loss must not keep some and lose the rest."""
        await self._clear([change.seen for change in changes])
        if len(changes) == 1:
            [committed] = await self._swap_each(changes, durable)
            return committed
        tx = os.urandom(9).hex()
        creates = sum(change.seen.tag is None for change in changes)
        if creates > MANY_CREATES and primary is None:
            first = Change(Seen(self.manifest_key(tx), None, None), None)
            rest = list(changes)
        else:
            first = next((change for change in changes if change.key == primary), changes[0])
            rest = [change for change in changes if change is not first]
        return await self._commit(tx, first, rest)

    async def _commit(self, tx: str, first: Change, rest: Sequence[Change]) -> Committed:
        writes = [
            _swap(
                change,
                sealed(
                    change.seen.value,
                    pending=Pending(tx, first.key, raw(change.value)),
                ),
            )
            for change in rest
        ]
        begun = time.time()
        answers = await self.blobs.write_many(writes)
        tags = {change.key: won.tag for change, won in zip(rest, answers, strict=True) if isinstance(won, Won)}
        lost = [change.key for change in rest if change.key not in tags]
        unsure = False
        if not lost and time.time() - begun > LONGEST_STEP:
            lost = [first.key]
        if not lost:
            commits = {tx: tuple(change.key for change in rest)}
            [written] = await self.blobs.write_many([_swap(first, sealed(first.value, commits=commits))])
            if isinstance(written, Lost) and not _lists(written.current, tx):
                lost, unsure = [first.key], written.unsure
        if lost:
            back = [
                Write(change.key, sealed(change.seen.value), tags[change.key]) for change in rest if change.key in tags
            ]
            await self._tidy(back)
            return Committed(tuple(lost), unsure)
        self._note(self._committed, tx)
        forward = [change for change in rest if change.seen.tag is not None or first.value is not None]
        through = await self._tidy([Write(change.key, sealed(change.value), tags[change.key]) for change in forward])
        if len(through) == len(rest):  # who was in between may have left it pending, under another tag
            self._note(self._through, tx)
        return Committed(tags=through)

    async def _tidy(self, writes: Sequence[Write]) -> dict[str, str]:
        """After the decision: the tags of what could be written. The rest is seen as it is meant all the same."""
        try:
            answers = await self.blobs.write_many(writes)
        except StoreError:
            return {}
        return {write.key: won.tag for write, won in zip(writes, answers, strict=True) if isinstance(won, Won)}

    # what others have left

    async def _clear(self, seen: Iterable[Seen]) -> None:
        """Carry through what earlier transactions, whose primaries these are, have left pending elsewhere."""
        left: dict[str, list[str]] = {}
        for one in seen:
            for tx, keys in ((one.envelope.commits if one.envelope else None) or {}).items():
                if tx not in self._through:
                    left[tx] = [*keys]
        for tx, others in left.items():
            await self.carry_through(tx, others)

    async def carry_through(self, tx: str, keys: Sequence[str]) -> int:
        """Give the objects of a committed transaction their values; how many had still been pending."""
        carried = 0
        while keys:
            writes: list[Write] = []
            for blob in await self.blobs.get_many(keys):
                pending = None if blob is None else opened(blob.body).pending
                if blob is not None and pending is not None and pending.tx == tx:
                    writes.append(Write(blob.key, sealed(plain(pending.next)), blob.tag))
            answers = zip(writes, await self.blobs.write_many(writes), strict=True)
            keys = [write.key for write, answer in answers if not isinstance(answer, Won)]
            carried += len(writes) - len(keys)
        self._note(self._through, tx)
        return carried

    async def unlock(self, seen: Seen) -> None:
        """Somebody's undecided transaction is in the way: give it a moment, then make it fail."""
        if seen.lock is None or seen.tag is None:
            return
        met = self._locks.setdefault(seen.lock.tx, time.monotonic())
        if len(self._locks) > KNOWN:
            del self._locks[next(iter(self._locks))]
        if time.monotonic() - met < self.patience:
            await self.sleep(min(self.patience, 0.01 + 0.03 * random.random()))
            return
        await self.abandon(seen)
        self._locks.pop(seen.lock.tx, None)

    async def abandon(self, seen: Seen) -> bool:
        """Make an undecided transaction fail, by a write of its primary, and take this object back from it."""
        lock = seen.lock
        if lock is None or seen.tag is None:
            return False
        primary = await self.blobs.get(lock.primary)
        if primary is None:
            written = await self.blobs.create(lock.primary, sealed(None))
        else:
            envelope = opened(primary.body)
            if lock.tx in (envelope.commits or {}):
                self._note(self._committed, lock.tx)
                return False
            body = sealed(plain(envelope.value), pending=envelope.pending, commits=envelope.commits)
            written = await self.blobs.swap(lock.primary, body, primary.tag)
        if not isinstance(written, Won):
            return False  # the primary has just changed: whoever did that may have decided it
        back = await self.blobs.swap(seen.key, sealed(seen.value), seen.tag)
        return isinstance(back, Won)

    @staticmethod
    def _note(known: dict[str, None], tx: str) -> None:
        known[tx] = None
        if len(known) > KNOWN:
            del known[next(iter(known))]


def _lists(primary: Blob | None, tx: str) -> bool:
    """Does it say that this transaction is done? Also where our own write of it was lost sight of: whoever gave up
    another transaction may have written the primary anew since, with what it says."""
    return primary is not None and tx in (opened(primary.body).commits or {})


def _swap(change: Change, body: bytes, durable: bool = True) -> Write:
    return Write(change.key, body, Expect.ABSENT if change.seen.tag is None else change.seen.tag, durable)
