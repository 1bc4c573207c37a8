"""Objects and transactions over them: several compare-and-swaps that succeed or fail together.

Every object that can change is an envelope: a value, and the transaction state around it. A change of one object is one
swap. To change several objects, all but one are first written as `pending`, concurrently. Then the swap of the last
object, the primary, commits the transaction. Its envelope names the transaction and the other objects in `commits`. So
after a crash, either all readers see the transaction as done, or none does.

A reader that finds a pending value reads the primary to learn the outcome, and never waits. A writer that finds an
undecided transaction waits briefly for its owner. After that, it makes the commit fail and restores the object. To make
the commit fail, it writes the primary: any write changes the tag that the commit expects. So a crashed process never
blocks others.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from millrace.domain.errors import StoreError
from millrace.store.object.blobs import Blobs, LostReply, Won
from millrace.store.object.driver import Blob, Expect, Write

MANY_CREATES = 4  # above this, a separate commit record is the primary, and created objects need no second write
KNOWN = 10_000
LONGEST_STEP = 3_600.0  # seconds; the write that makes a late commit fail may be removed a day later (sweep/shared.py)
Value: TypeAlias = msgspec.Raw | msgspec.UnsetType

# Our own generator: bodies must never repeat, and programs may seed the shared one.
_chance = random.Random(os.urandom(16))
os.register_at_fork(after_in_child=lambda: _chance.seed(os.urandom(16)))


class Pending(msgspec.Struct, frozen=True, omit_defaults=True):
    tx: str
    primary: str
    next: Value = msgspec.UNSET  # the value, once the transaction is committed


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value with transaction state.

    `nonce` makes every body unique. So no tag repeats, and a process can recognize its own write.
    """

    nonce: str
    value: Value = msgspec.UNSET  # unset: the object is empty
    pending: Pending | None = None
    commits: dict[str, tuple[str, ...]] | None = None  # transaction -> the other objects that it wrote


_decoder = msgspec.json.Decoder(Envelope)


def opened(body: bytes) -> Envelope:
    return _decoder.decode(body)


def sealed(
    value: bytes | None, *, pending: Pending | None = None, commits: dict[str, tuple[str, ...]] | None = None
) -> bytes:
    return msgspec.json.encode(Envelope(nonce(), raw_value(value), pending, commits))


def nonce() -> str:
    return f"{_chance.getrandbits(64):016x}"


def raw_value(value: bytes | None) -> Value:
    return msgspec.UNSET if value is None else msgspec.Raw(value)


def value_bytes(value: Value) -> bytes | None:
    return bytes(value) if isinstance(value, msgspec.Raw) else None


class SeenObject(msgspec.Struct, frozen=True):
    """An object as it was read. `value` is the committed value, never a pending one."""

    key: str
    tag: str | None
    value: bytes | None
    envelope: Envelope | None = None
    lock: Pending | None = None  # another transaction's pending write, not decided yet


class Swap(msgspec.Struct, frozen=True):
    seen: SeenObject
    value: bytes | None

    @property
    def key(self) -> str:
        return self.seen.key


class Committed(msgspec.Struct, frozen=True):
    """The outcome of a commit.

    `lost` has the keys of objects that had changed. If there are any, nothing was written. `tags` has the new tags of
    the written objects, by key.
    """

    lost: tuple[str, ...] = ()
    unsure: bool = False  # an answer was lost: the write may have been visible for a moment
    tags: dict[str, str] = {}


class _Transaction(msgspec.Struct):
    """A commit of several objects in progress: `first` is the primary."""

    tx: str
    first: Swap
    rest: list[Swap]
    tags: dict[str, str] = msgspec.field(default_factory=dict[str, str])  # of pending objects, by key
    lost: list[str] = msgspec.field(default_factory=list[str])
    unsure: bool = False

    def pending(self, change: Swap) -> bytes:
        return sealed(change.seen.value, pending=Pending(self.tx, self.first.key, raw_value(change.value)))

    def last_writes(self) -> list[Write]:
        """Return the writes after the decision: the new values, or the old ones if the transaction was lost.

        Objects that were created under a commit record stay pending.
        """
        if self.lost:
            back = [change for change in self.rest if change.key in self.tags]
            return [Write(change.key, sealed(change.seen.value), self.tags[change.key]) for change in back]
        forward = [change for change in self.rest if change.seen.tag is not None or self.first.value is not None]
        return [Write(change.key, sealed(change.value), self.tags[change.key]) for change in forward]


@dataclass
class Objects:
    """Reads objects and commits transactions. After `patience` seconds, a lock counts as abandoned."""

    blobs: Blobs
    patience: float = 2.0
    manifest_key: Callable[[str], str] = "batches/{}.json".format
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _committed: dict[str, None] = field(default_factory=dict[str, None])
    _through: dict[str, None] = field(default_factory=dict[str, None])
    # Undecided transactions, and when each was first seen.
    _locks: dict[str, float] = field(default_factory=dict[str, float])

    # reading

    async def read(self, keys: Sequence[str]) -> list[SeenObject]:
        """Return the committed values. If a value is pending, look up the outcome of its transaction; do not wait."""
        blobs = await self.blobs.get_many(keys)
        found = [self._seen(key, blob) for key, blob in zip(keys, blobs, strict=True)]
        locked = [place for place, seen in enumerate(found) if seen.lock is not None]
        if locked:
            await self._decide(found, locked)
        return found

    def _seen(self, key: str, blob: Blob | None) -> SeenObject:
        if blob is None:
            return SeenObject(key, None, None)
        envelope = opened(blob.body)
        pending = envelope.pending
        if pending is None:
            return SeenObject(key, blob.tag, value_bytes(envelope.value), envelope)
        if pending.tx in self._committed:
            return SeenObject(key, blob.tag, value_bytes(pending.next), envelope)
        return SeenObject(key, blob.tag, value_bytes(envelope.value), envelope, pending)

    async def _decide(self, found: list[SeenObject], places: Sequence[int]) -> None:
        """Read the primaries of pending objects to learn the outcomes of their transactions, and update `found`.

        If a transaction is still undecided, its object is read again, because it may have changed meanwhile.
        """
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
                found[place] = msgspec.structs.replace(found[place], value=value_bytes(lock.next), lock=None)
        moved: list[int] = []
        for place, blob in zip(open_places, again, strict=True):
            if (None if blob is None else blob.tag) != found[place].tag:
                found[place] = self._seen(found[place].key, blob)
                if found[place].lock is not None:
                    moved.append(place)
        if moved:
            await self._decide(found, moved)

    # writing

    async def commit_all(
        self, groups: Sequence[tuple[Sequence[Swap], str | None]], *, durable: bool = True
    ) -> list[Committed | BaseException]:
        """Commit the groups of objects concurrently. Groups with a single object are written in one call.

        Return one result per group, in order. If a group fails with an error, its result is the exception.
        """
        await self._clear([change.seen for changes, _ in groups for change in changes])
        single = [place for place, (changes, _) in enumerate(groups) if len(changes) == 1]
        several = [place for place, (changes, _) in enumerate(groups) if len(changes) > 1]
        swapped, committed = await asyncio.gather(
            self._swap_each([groups[place][0][0] for place in single], durable),
            self._commit([self._transaction(*groups[place]) for place in several]),
            return_exceptions=True,
        )
        answers: dict[int, Committed | BaseException] = {}
        for places, outcome in ((single, swapped), (several, committed)):
            for number, place in enumerate(places):
                answers[place] = outcome if isinstance(outcome, BaseException) else outcome[number]
        return [answers[place] for place in range(len(groups))]

    async def _swap_each(self, changes: Sequence[Swap], durable: bool) -> list[Committed]:
        writes = [_swap(change, sealed(change.value), durable) for change in changes]
        answers = zip(changes, await self.blobs.write_many(writes) if writes else (), strict=True)
        return [
            Committed(tags={change.key: written.tag})
            if isinstance(written, Won)
            else Committed((change.key,), written.unsure)
            for change, written in answers
        ]

    async def commit(self, changes: Sequence[Swap], primary: str | None = None, *, durable: bool = True) -> Committed:
        """Commit all changes or none.

        A commit of several objects is always durable, because a power loss must not undo only some of the writes.
        """
        [committed] = await self.commit_all([(changes, primary)], durable=durable)
        if isinstance(committed, BaseException):
            raise committed
        return committed

    def _transaction(self, changes: Sequence[Swap], primary: str | None) -> _Transaction:
        tx = os.urandom(9).hex()
        creates = sum(change.seen.tag is None for change in changes)
        if creates > MANY_CREATES and primary is None:
            return _Transaction(tx, Swap(SeenObject(self.manifest_key(tx), None, None), None), list(changes))
        first = next((change for change in changes if change.key == primary), changes[0])
        return _Transaction(tx, first, [change for change in changes if change is not first])

    async def _commit(self, transactions: Sequence[_Transaction]) -> list[Committed]:
        """Commit the transactions independently of each other, but each step of all of them in one call."""
        if not transactions:
            return []
        begun = time.time()
        await self._write_pending(transactions)
        if time.time() - begun > LONGEST_STEP:
            for one in transactions:
                one.lost = one.lost or [one.first.key]
        await self._write_primaries([one for one in transactions if not one.lost])
        through = await self._tidy([write for one in transactions for write in one.last_writes()])
        return [self._committed_as(one, through) for one in transactions]

    async def _write_pending(self, transactions: Sequence[_Transaction]) -> None:
        writes = {change.key: (one, _swap(change, one.pending(change))) for one in transactions for change in one.rest}
        answers = await self.blobs.write_many([write for _, write in writes.values()])
        for (key, (one, _)), answer in zip(writes.items(), answers, strict=True):
            if isinstance(answer, Won):
                one.tags[key] = answer.tag
            else:
                one.lost.append(key)

    async def _write_primaries(self, transactions: Sequence[_Transaction]) -> None:
        writes = [
            _swap(one.first, sealed(one.first.value, commits={one.tx: tuple(change.key for change in one.rest)}))
            for one in transactions
        ]
        for one, written in zip(transactions, await self.blobs.write_many(writes), strict=True):
            if isinstance(written, LostReply) and not _lists(written.current, one.tx):
                one.lost, one.unsure = [one.first.key], written.unsure

    def _committed_as(self, one: _Transaction, through: dict[str, str]) -> Committed:
        if one.lost:
            return Committed(tuple(one.lost), one.unsure)
        self._note(self._committed, one.tx)
        tags = {change.key: through[change.key] for change in one.rest if change.key in through}
        if len(tags) == len(one.rest):  # another writer may have left it pending, under another tag
            self._note(self._through, one.tx)
        return Committed(tags=tags)

    async def _tidy(self, writes: Sequence[Write]) -> dict[str, str]:
        """Write the final values after a commit. Return the tags of the writes that succeeded, by key.

        If a write fails, the next reader of the object finds the outcome at the primary.
        """
        try:
            answers = await self.blobs.write_many(writes)
        except StoreError:
            return {}
        return {write.key: won.tag for write, won in zip(writes, answers, strict=True) if isinstance(won, Won)}

    # leftovers of other transactions

    async def _clear(self, seen: Iterable[SeenObject]) -> None:
        """Complete earlier transactions that have one of these objects as primary and may have left other objects
        pending.
        """
        left: dict[str, list[str]] = {}
        for one in seen:
            for tx, keys in ((one.envelope.commits if one.envelope else None) or {}).items():
                if tx not in self._through:
                    left[tx] = [*keys]
        for tx, others in left.items():
            await self.carry_through(tx, others)

    async def carry_through(self, tx: str, keys: Sequence[str]) -> int:
        """Write the final values of a committed transaction to those of its objects that are still pending.

        Return the number of these objects.
        """
        carried = 0
        while keys:
            writes: list[Write] = []
            for blob in await self.blobs.get_many(keys):
                pending = None if blob is None else opened(blob.body).pending
                if blob is not None and pending is not None and pending.tx == tx:
                    writes.append(Write(blob.key, sealed(value_bytes(pending.next)), blob.tag))
            answers = zip(writes, await self.blobs.write_many(writes), strict=True)
            keys = [write.key for write, answer in answers if not isinstance(answer, Won)]
            carried += len(writes) - len(keys)
        self._note(self._through, tx)
        return carried

    async def unlock(self, seen: SeenObject) -> None:
        """Wait a moment for the undecided transaction that blocks this object. After `patience` seconds, abort it."""
        if seen.lock is None or seen.tag is None:
            return
        met = self._locks.setdefault(seen.lock.tx, time.monotonic())
        if len(self._locks) > KNOWN:
            del self._locks[next(iter(self._locks))]
        if time.monotonic() - met < self.patience:
            await self.sleep(min(self.patience, 0.01 + 0.03 * random.random()))
            return
        if not await self.abandon(seen):  # else its other objects need no patience
            self._locks.pop(seen.lock.tx, None)

    async def abandon(self, seen: SeenObject) -> bool:
        """Make an undecided transaction fail by a write of its primary, and restore this object.

        Return False if the primary or this object has changed meanwhile. After such a change, the transaction may be
        decided.
        """
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
            body = sealed(value_bytes(envelope.value), pending=envelope.pending, commits=envelope.commits)
            written = await self.blobs.swap(lock.primary, body, primary.tag)
        if not isinstance(written, Won):
            return False  # the primary has just changed, so it may be decided
        back = await self.blobs.swap(seen.key, sealed(seen.value), seen.tag)
        return isinstance(back, Won)

    @staticmethod
    def _note(known: dict[str, None], tx: str) -> None:
        known[tx] = None
        if len(known) > KNOWN:
            del known[next(iter(known))]


def _lists(primary: Blob | None, tx: str) -> bool:
    """Return whether the primary names this transaction as committed.

    The primary keeps this entry until no other object of the transaction is pending.
    """
    return primary is not None and tx in (opened(primary.body).commits or {})


def _swap(change: Swap, body: bytes, durable: bool = True) -> Write:
    return Write(change.key, body, Expect.ABSENT if change.seen.tag is None else change.seen.tag, durable)
