"""What one operation has read so far, and how it asks for more.

The ledger's rules are plain functions; they cannot wait for a bucket. So they run over what is there, and when a fact
is missing they stop with `Need`, which is fetched, and run again from the start. Nothing has been written meanwhile:
a run only says what it would write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from millrace.domain.errors import StoreError
from millrace.store.object.blobs import MAX_PAGE
from millrace.store.object.keys import Entry, Layout
from millrace.store.object.objects import Objects, Seen
from millrace.store.object.ready import ReadyIndex
from millrace.store.object.values import FeedPart, JobValue, Trigger, decode

TRIES = 5


class Need(Exception):
    """A run cannot go on before this has been fetched."""

    def __init__(self, fetch: Callable[[], Awaitable[object]]) -> None:
        super().__init__("more has to be read")
        self.fetch = fetch


async def nothing_more() -> None:
    """Only the run is to be repeated."""


class View:
    """`held` are objects of jobs that this process holds, as it last wrote them: a guess that saves a read, proved by
    the swap, or by reading after all."""

    def __init__(self, objects: Objects, layout: Layout, index: ReadyIndex, busy: set[str]) -> None:
        self.objects = objects
        self.layout = layout
        self.index = index
        self.busy = busy  # names that this process is about to write
        self.seen: dict[str, Seen] = {}
        self.guessed: set[str] = set()
        self.large: dict[str, bytes] = {}
        self.drawn: list[int] = []  # numbers for new jobs
        self._listed: dict[tuple[str, int | None], tuple[str, ...]] = {}
        self._parts: dict[str, FeedPart] = {}
        self._ready: list[Entry] | None = None
        self._triggers: dict[str, list[tuple[str, Trigger]]] = {}

    def guess(self, seen: Seen) -> None:
        self.seen[seen.key] = seen
        self.guessed.add(seen.key)

    async def begin(self, expected: Iterable[str], guessed: Iterable[Seen]) -> None:
        """Read at once what will be needed, but for what is guessed."""
        for seen in guessed:
            self.guess(seen)
        ahead = [key for key in dict.fromkeys(expected) if key not in self.seen]
        if ahead:
            await self.load(ahead)

    def forget(self) -> None:
        """Something has changed since: decide anew from what is there now, also what was only read."""
        self.seen.clear()
        self.guessed.clear()
        self.drawn = []
        self._listed.clear()
        self._ready = None
        self._triggers.clear()

    # objects

    def object(self, key: str) -> Seen:
        seen = self.seen.get(key)
        if seen is None:
            raise Need(lambda: self.load([key]))
        return seen

    def want(self, keys: Iterable[str]) -> None:
        missing = [key for key in dict.fromkeys(keys) if key not in self.seen]
        if missing:
            raise Need(lambda: self.load(missing))

    async def load(self, keys: Sequence[str]) -> None:
        for seen in await self.objects.read(keys):
            self.seen[seen.key] = seen
            self.guessed.discard(seen.key)
        for _ in range(TRIES):
            gone = await self._load_large([self.seen[key] for key in keys])
            if not gone:
                return
            for seen in await self.objects.read(gone):  # it has been replaced or pruned since
                self.seen[seen.key] = seen
        raise StoreError(
            f"{self.objects.blobs.url}: payload or result of {gone[0]!r} are missing: the object under data/ is gone. "
            "Restore it from a version or a copy, or obliterate the job."
        )

    async def _load_large(self, found: Sequence[Seen]) -> list[str]:
        """Read what lies in objects of its own; answers whose objects are not there."""
        wanted: dict[str, list[str]] = {}
        for seen in found:
            if seen.value is not None and b'"data":{' in seen.value and seen.key.startswith("tasks/"):
                wanted[seen.key] = list((decode(seen.value, JobValue).data or {}).values())
        missing = [key for keys in wanted.values() for key in keys if key not in self.large]
        if missing:
            blobs = await self.objects.blobs.get_many([*dict.fromkeys(missing)])
            self.large.update({blob.key: blob.body for blob in blobs if blob is not None})
        return [job for job, keys in wanted.items() if not all(key in self.large for key in keys)]

    # listings

    def keys(self, prefix: str, most: int | None = None) -> tuple[str, ...]:
        """The keys under a prefix, in order; the first `most` of them."""
        listed = self._listed.get((prefix, most))
        if listed is None:
            raise Need(lambda: self._list(prefix, most))
        return listed

    def has_listed(self, prefix: str) -> bool:
        return (prefix, None) in self._listed

    async def list_all(self, prefixes: Sequence[str]) -> None:
        await asyncio.gather(*(self._list(prefix, None) for prefix in prefixes))

    def parts(self, keys: Sequence[str]) -> dict[str, FeedPart]:
        """Parts of the feed; one that is gone by now is empty."""
        missing = [key for key in keys if key not in self._parts]
        if missing:
            raise Need(lambda: self._load_parts(missing))
        return self._parts

    async def _load_parts(self, keys: Sequence[str]) -> None:
        for key, blob in zip(keys, await self.objects.blobs.get_many(keys), strict=True):
            self._parts[key] = FeedPart(()) if blob is None else decode(blob.body, FeedPart)

    async def _list(self, prefix: str, most: int | None) -> None:
        self._listed[prefix, most] = tuple(await all_keys(self.objects, prefix, most))

    # what is claimable

    def ready(self, queues: frozenset[str], tasks: frozenset[str] | None, now: int, limit: int) -> list[Entry]:
        if self._ready is None:
            raise Need(lambda: self._look(queues, tasks, now, limit))
        return self._ready

    async def anything_ready(self, queues: frozenset[str], tasks: frozenset[str] | None, now: int, limit: int) -> bool:
        await self._look(queues, tasks, now, limit)
        return any(entry.at <= now for entry in self._ready or ())

    async def look_again(self) -> None:
        self._ready = None

    async def _look(self, queues: frozenset[str], tasks: frozenset[str] | None, now: int, limit: int) -> None:
        self._ready = await self.index.look(queues, tasks, now, limit, self.busy)

    # what time brings about

    def triggers(self, family: str, now: int) -> list[tuple[str, Trigger]]:
        known = self._triggers.get(family)
        if known is None:
            raise Need(lambda: self.anything_due(family, now))
        return known

    async def anything_due(self, family: str, now: int) -> tuple[bool, int | None]:
        """(whether there is, when the first of the others is)"""
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


async def all_keys(objects: Objects, prefix: str, most: int | None = None, after: str | None = None) -> list[str]:
    keys: list[str] = []
    while True:
        size = MAX_PAGE if most is None else min(MAX_PAGE, most - len(keys))
        page = await objects.blobs.list(prefix, after, size)
        keys += [item.key for item in page.entries]
        if not page.truncated or not page.entries or (most is not None and len(keys) >= most):
            return keys
        after = keys[-1]
