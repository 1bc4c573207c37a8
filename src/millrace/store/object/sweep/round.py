"""One round of the sweep: which objects are read, what was found and repaired, and the shares of a round.

Objects that have not changed since the last round were correct then, and are not read again. A listing shows when an
object was written. A small share of the unchanged objects is read anyway, and a different share each round. So losses
without a trace (a key deleted by hand, a lifecycle rule that is too broad) are found within a day.

Several sweepers can share a round. A job, its index keys and its data belong to the same sweeper, so that no other
sweeper has to read the job. Some keys are not sorted by shard. Each sweeper lists all of them and skips those of other
sweepers: listing a thousand keys costs less than reading their jobs twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from zlib import crc32

from millrace.store.object.blobs import Blobs, Won
from millrace.store.object.driver import Listed, Write
from millrace.store.object.engine.objects import Committed, Objects, SeenObject, Swap, sealed
from millrace.store.object.keys import Layout
from millrace.store.sweep_report import SweepShare

PARTS = 288  # rounds in a day, at one every five minutes
PART_LENGTH = 300_000
KNOWN_AT_MOST = 100_000
TRIES = 3
_BY_SHARD = ("tasks/", "ready/", "leases/", "data/")
_OF_JOBS = ("held/", "done/", "gone/", "deps/")


class Part:
    """The part of the store that one sweeper checks, if several sweepers share a round."""

    def __init__(self, layout: Layout, share: SweepShare) -> None:
        self._layout = layout
        self._share = share

    def prefixes(self, family: str) -> list[str]:
        return [f"{family}{shard}/" for shard in self._share.shards] if family in _BY_SHARD else [family]

    def holds(self, key: str) -> bool:
        if key.startswith(_BY_SHARD):
            return True
        if key.startswith(_OF_JOBS):
            name = name_in_key(key)
            return name is not None and self._layout.shard_of(name) in self._share.shards
        return crc32(key.encode()) % self._share.of == self._share.number


class Round:
    """The state of a round.

    Objects written up to the time `since` count as correct; if it is None, all objects are read. Objects younger than
    `young` milliseconds are skipped, because a write may be in progress.
    """

    def __init__(self, objects: Objects, now: int, since: int | None, young: int, part: Part | None = None) -> None:
        self.objects = objects
        self.blobs: Blobs = objects.blobs
        self.now = now
        self.since = since
        self.young = young
        self.done: Counter[str] = Counter()
        self.index_keys: dict[str, str] = {}  # names of checked jobs -> their index key
        self._knows_all_changed = True
        self._part = part

    def is_old(self, entry: Listed) -> bool:
        return entry.modified <= self.now - self.young

    def is_changed(self, entry: Listed) -> bool:
        return self.since is None or entry.modified > self.since

    def is_wanted(self, entry: Listed) -> bool:
        return self.is_old(entry) and (self.is_changed(entry) or self.is_next(entry.key))

    def is_next(self, key: str) -> bool:
        """Return whether this object is in the share of unchanged objects that this round reads."""
        return crc32(key.encode()) % PARTS == self.now // PART_LENGTH % PARTS

    def is_job_changed(self, name: str) -> bool:
        """Return whether the job with this name may have changed, so that it may have left a stale key."""
        return name in self.index_keys or not self._knows_all_changed

    def note(self, name: str, index_key: str) -> None:
        if len(self.index_keys) < KNOWN_AT_MOST:
            self.index_keys[name] = index_key
        else:
            self._knows_all_changed = False

    async def pages(self, family: str) -> AsyncIterator[Sequence[Listed]]:
        for prefix in [family] if self._part is None else self._part.prefixes(family):
            async for page in self.blobs.pages(prefix):
                yield page.entries if self._part is None else [one for one in page.entries if self._part.holds(one.key)]

    async def read(self, keys: Sequence[str]) -> list[SeenObject]:
        """Read these objects, and resolve their pending transactions. Objects that are still being written are left
        out.

        A transaction that is undecided counts as abandoned, and is made to fail.
        """
        self.done["looked_at"] += len(keys)
        found = {seen.key: seen for seen in await self.objects.read(keys)}
        for _ in range(TRIES):
            locked = [seen for seen in found.values() if seen.lock is not None]
            for seen in locked:
                self.done["abandoned"] += await self.objects.abandon(seen)
            pending = [seen for seen in found.values() if seen.lock is None and _is_pending(seen)]
            if not locked and not pending:
                break
            writes = [Write(seen.key, sealed(seen.value), seen.tag or "") for seen in pending]
            written = await self.blobs.write_many(writes)
            self.done["carried_through"] += sum(isinstance(one, Won) for one in written)
            again = await self.objects.read([seen.key for seen in (*locked, *pending)])
            found.update({seen.key: seen for seen in again})
        return [seen for seen in found.values() if seen.lock is None and not _is_pending(seen)]

    async def rewrite(self, changes: Sequence[Swap]) -> list[bool]:
        """Swap in new values concurrently. Return for each change whether it was written.

        A change is not written if another process has changed the object.
        """
        written = await self.objects.commit_all([([change], None) for change in changes])
        for outcome in written:
            if isinstance(outcome, BaseException):
                raise outcome
        return [isinstance(outcome, Committed) and not outcome.lost for outcome in written]


def _is_pending(seen: SeenObject) -> bool:
    return seen.envelope is not None and seen.envelope.pending is not None


def name_in_key(key: str) -> str | None:
    """Return the name of the job that an index key belongs to; None for other keys. A dependency key belongs to the
    parent.
    """
    if key.startswith("deps/"):
        return key.split("/")[1]
    if key.startswith("gone/"):
        return key.rsplit(".", 1)[1]
    entry = Layout.parse(key)
    return None if entry is None else entry.name


def shares(layout: Layout, n: int) -> list[SweepShare]:
    """Split a round into at most `n` shares. Together they cover all stages that can be shared."""
    size = -(-len(layout.shards) // max(1, n))
    parts = [layout.shards[start : start + size] for start in range(0, len(layout.shards), size)]
    return [SweepShare(shards, number, len(parts)) for number, shards in enumerate(parts)]
