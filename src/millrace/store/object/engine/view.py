"""The objects that one operation has read so far, and how it requests more.

The ledger's rules are synchronous functions and cannot wait for a bucket. They are evaluated over the objects that are
loaded. If an object is missing, they raise `Need`. The object is fetched, and the rules are evaluated again from the
start. That is safe because an evaluation writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from millrace.domain.errors import StoreError
from millrace.store.object.claims.ready import ReadyIndex
from millrace.store.object.engine.objects import Objects, SeenObject
from millrace.store.object.engine.values import LARGE_PARTS, FeedEvent, JobValue, Trigger, decode, events_in
from millrace.store.object.keys import IndexEntry, Layout

TRIES = 5

ListingRange: TypeAlias = tuple[str, int | None]  # a prefix, and how many of its first keys are listed; None: all


class Need(Exception):
    """Raised when an evaluation cannot continue until something has been read: the objects with these `keys`, these
    `listings`, and whatever the functions in `reads` read. With nothing to read, the rules are only evaluated again.
    """

    def __init__(
        self,
        keys: Iterable[str] = (),
        listings: Iterable[ListingRange] = (),
        reads: Iterable[Callable[[], Awaitable[object]]] = (),
    ) -> None:
        super().__init__("more has to be read")
        self.keys = tuple(keys)
        self.listings = tuple(listings)
        self.reads = tuple(reads)

    @classmethod
    def of_all(cls, needs: Sequence[Need]) -> Need:
        """Return what all of these need, so that it is read in one go."""
        return cls(
            dict.fromkeys(key for need in needs for key in need.keys),
            dict.fromkeys(listing for need in needs for listing in need.listings),
            [read for need in needs for read in need.reads],
        )


class View:
    """The objects and listings that an operation has read.

    `guessed` has the keys of objects that were taken from this process's cache. That saves a read; the swap detects an
    outdated object.
    """

    def __init__(self, objects: Objects, layout: Layout, index: ReadyIndex, busy: set[str]) -> None:
        self.objects = objects
        self.layout = layout
        self.index = index
        self.busy = busy  # names of jobs that this process is about to write
        self.seen: dict[str, SeenObject] = {}
        self.guessed: set[str] = set()
        self.large: dict[str, bytes] = {}
        self.drawn: list[int] = []  # numbers for new jobs
        self._listed: dict[tuple[str, int | None], tuple[str, ...]] = {}
        self._parts: dict[str, tuple[FeedEvent, ...]] = {}
        self._ready: list[IndexEntry] | None = None
        self._triggers: dict[str, list[tuple[str, Trigger]]] = {}

    def guess(self, seen: SeenObject) -> None:
        self.seen[seen.key] = seen
        self.guessed.add(seen.key)

    async def begin(self, expected: Iterable[str], guessed: Iterable[SeenObject]) -> None:
        """Read the expected objects in one request, and take the guessed objects as they are."""
        for seen in guessed:
            self.guess(seen)
        ahead = [key for key in dict.fromkeys(expected) if key not in self.seen]
        if ahead:
            await self.load(ahead)

    def forget(self) -> None:
        """Drop everything that was read, because something has changed."""
        self.seen.clear()
        self.guessed.clear()
        self.drawn = []
        self._listed.clear()
        self._ready = None
        self._triggers.clear()

    async def fetch(self, need: Need) -> None:
        """Read what an evaluation needs."""
        if need.keys:
            await self.load(need.keys)
        for read in need.reads:
            await read()
        await asyncio.gather(*(self._list(prefix, most) for prefix, most in need.listings))

    # objects

    def object(self, key: str) -> SeenObject:
        seen = self.seen.get(key)
        if seen is None:
            raise Need([key])
        return seen

    def want(self, keys: Iterable[str]) -> None:
        missing = [key for key in dict.fromkeys(keys) if key not in self.seen]
        if missing:
            raise Need(missing)

    async def load(self, keys: Sequence[str], parts: frozenset[str] = LARGE_PARTS) -> None:
        for seen in await self.objects.read(keys):
            self.seen[seen.key] = seen
            self.guessed.discard(seen.key)
        for _ in range(TRIES):
            gone = await self._load_large([self.seen[key] for key in keys], parts)
            if not gone:
                return
            for seen in await self.objects.read(gone):  # it was replaced or pruned meanwhile
                self.seen[seen.key] = seen
        raise StoreError(
            f"{self.objects.blobs.url}: payload or result of {gone[0]!r} are missing: the object under data/ is gone. "
            "Restore it from a version or a copy, or obliterate the job."
        )

    async def _load_large(self, found: Sequence[SeenObject], parts: frozenset[str]) -> list[str]:
        """Read payloads and results that have their own objects. Return the keys of jobs whose payload or result is
        missing.
        """
        wanted: dict[str, list[str]] = {}
        for seen in found:
            if seen.value is not None and b'"data":{' in seen.value and seen.key.startswith("tasks/"):
                data = decode(seen.value, JobValue).data or {}
                wanted[seen.key] = [key for part, key in data.items() if part in parts]
        missing = [key for keys in wanted.values() for key in keys if key not in self.large]
        if missing:
            blobs = await self.objects.blobs.get_many([*dict.fromkeys(missing)])
            self.large.update({blob.key: blob.body for blob in blobs if blob is not None})
        return [job for job, keys in wanted.items() if not all(key in self.large for key in keys)]

    # listings

    def keys(self, prefix: str, most: int | None = None) -> tuple[str, ...]:
        """Return the keys under a prefix in order, or only the first `most` of them."""
        listed = self._listed.get((prefix, most))
        if listed is None:
            raise Need(listings=[(prefix, most)])
        return listed

    def has_listed(self, prefix: str, most: int | None = None) -> bool:
        return (prefix, most) in self._listed

    def parts(self, keys: Sequence[str]) -> dict[str, tuple[FeedEvent, ...]]:
        """Return the events of these feed parts, by key."""
        missing = [key for key in keys if key not in self._parts]
        if missing:
            raise Need(reads=[lambda: self._load_parts(missing)])
        return self._parts

    async def _load_parts(self, keys: Sequence[str]) -> None:
        for key, blob in zip(keys, await self.objects.blobs.get_many(keys), strict=True):
            self._parts[key] = events_in(blob)

    async def _list(self, prefix: str, most: int | None) -> None:
        self._listed[prefix, most] = tuple(await self.objects.blobs.all_keys(prefix, most))

    # what is claimable

    def ready(self, queues: frozenset[str], tasks: frozenset[str] | None, now: int, limit: int) -> list[IndexEntry]:
        if self._ready is None:
            raise Need(reads=[lambda: self._look(queues, tasks, now, limit)])
        return self._ready

    async def anything_ready(self, queues: frozenset[str], tasks: frozenset[str] | None, now: int, limit: int) -> bool:
        await self._look(queues, tasks, now, limit)
        return any(entry.at <= now for entry in self._ready or ())

    async def look_again(self) -> None:
        self._ready = None

    async def _look(self, queues: frozenset[str], tasks: frozenset[str] | None, now: int, limit: int) -> None:
        self._ready = await self.index.look(queues, tasks, now, limit, self.busy)

    # what has become due

    def triggers(self, family: str, now: int) -> list[tuple[str, Trigger]]:
        known = self._triggers.get(family)
        if known is None:
            raise Need(reads=[lambda: self.anything_due(family, now)])
        return known

    async def anything_due(self, family: str, now: int) -> tuple[bool, int | None]:
        """Return whether a trigger of this family is due, and the time of the next trigger after now; None if there is
        none.
        """
        later = await self._load_triggers(family, now)
        return bool(self._triggers[family]), later

    @property
    def looked_at(self) -> dict[str, list[tuple[str, Trigger]]]:
        return self._triggers

    async def _load_triggers(self, family: str, now: int) -> int | None:
        page = await self.objects.blobs.list(f"{family}/")
        times = {item.key: int(item.key.split("/")[2].split(".")[0]) for item in page.entries}
        due = [key for key, at in times.items() if at <= now]
        bodies = await self.objects.blobs.get_many(due)
        self._triggers[family] = [(blob.key, decode(blob.body, Trigger)) for blob in bodies if blob is not None]
        return min((at for at in times.values() if at > now), default=None)
