"""A round of the sweep: what it looks at, what it has seen, and what it has put right.

What nobody has changed since the last round was right then, and is not read again: a listing tells when an object was
written. A small part of the unchanged ones is read all the same, another part each time, so that what got lost without
a trace (a key deleted by hand, a lifecycle rule that was too broad) is found within a day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from zlib import crc32

from millrace.store.object.blobs import MAX_PAGE, Blobs, Won
from millrace.store.object.driver import Entry, Write
from millrace.store.object.envelope import sealed
from millrace.store.object.objects import Change, Committed, Objects, Seen
from millrace.store.object.sweep.share import Part

PARTS = 288  # rounds in a day, at one every five minutes
PART_LENGTH = 300_000
KNOWN_AT_MOST = 100_000
TRIES = 3


class Round:
    """`since`: what was written before is taken to be right; None: nothing is. Younger than `young` is left alone: it
    may be the work of somebody who has not finished yet."""

    def __init__(self, objects: Objects, now: int, since: int | None, young: int, part: Part | None = None) -> None:
        self.objects = objects
        self.blobs: Blobs = objects.blobs
        self.now = now
        self.since = since
        self.young = young
        self.done: Counter[str] = Counter()
        self.filed: dict[str, str] = {}  # names of jobs that were looked at -> where they stand
        self._knows_all_changed = True
        self._part = part

    def is_old(self, entry: Entry) -> bool:
        return entry.modified <= self.now - self.young

    def is_changed(self, entry: Entry) -> bool:
        return self.since is None or entry.modified > self.since

    def is_wanted(self, entry: Entry) -> bool:
        return self.is_old(entry) and (self.is_changed(entry) or self.is_next(entry.key))

    def is_next(self, key: str) -> bool:
        """Is it this one's turn, though nothing has changed?"""
        return crc32(key.encode()) % PARTS == self.now // PART_LENGTH % PARTS

    def is_job_changed(self, name: str) -> bool:
        """May the job of this name have moved, and left a key behind?"""
        return name in self.filed or not self._knows_all_changed

    def note(self, name: str, filed: str) -> None:
        if len(self.filed) < KNOWN_AT_MOST:
            self.filed[name] = filed
        else:
            self._knows_all_changed = False

    async def pages(self, family: str) -> AsyncIterator[Sequence[Entry]]:
        for prefix in [family] if self._part is None else self._part.prefixes(family):
            after: str | None = None
            while True:
                page = await self.blobs.list(prefix, after, MAX_PAGE)
                yield page.entries if self._part is None else [one for one in page.entries if self._part.holds(one.key)]
                if not page.truncated or not page.entries:
                    break
                after = page.entries[-1].key

    async def read(self, keys: Sequence[str]) -> list[Seen]:
        """These objects with nothing pending any more; those that somebody is just writing are left out.

        Whoever has a transaction open for longer than `young` is taken for dead: it will fail, should it wake up.
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

    async def rewrite(self, changes: Sequence[Change]) -> list[bool]:
        """Give each of these objects another value, side by side; False for those that somebody else has changed."""
        written = await self.objects.commit_all([([change], None) for change in changes])
        for outcome in written:
            if isinstance(outcome, BaseException):
                raise outcome
        return [isinstance(outcome, Committed) and not outcome.lost for outcome in written]


def _is_pending(seen: Seen) -> bool:
    return seen.envelope is not None and seen.envelope.pending is not None
