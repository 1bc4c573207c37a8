"""Finding claimable jobs among the job objects themselves, where the index is not enough (O-07).

The objects are read a page at a time, round and round, so that every job has its turn however many there are. In the
mode `log-scan` claims know nothing else. In `hybrid`, a claim that finds nothing looks at one page for jobs that the
index should name and does not: what nobody has changed since the last time round is passed over, and a look is paid for
with a pause, so an idle worker costs little.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from millrace.domain.job import State
from millrace.store.object.blobs import Blobs
from millrace.store.object.driver import Entry as Listed
from millrace.store.object.driver import Expect, Write
from millrace.store.object.keys import Entry, Layout
from millrace.store.object.objects import Objects
from millrace.store.object.values import JobValue, decode

MOST_PAGES = 20  # of one look in the mode log-scan; the next look goes on from there
THOROUGH = 300.0  # seconds after which a round of `hybrid` reads what has not changed too
SLACK = 60_000  # what was written so shortly before a round is read once more


class Pages:
    """All job objects of some shards, a page at a time, from the beginning again after the last."""

    def __init__(self, blobs: Blobs, shards: Sequence[str] | None, size: int) -> None:
        self._blobs = blobs
        self._prefixes = ["tasks/"] if shards is None else [f"tasks/{shard}/" for shard in shards]
        self._size = size
        self._place = 0
        self._after: str | None = None

    async def next(self) -> tuple[Sequence[Listed], bool]:
        """(a page, whether it was the last of a round)"""
        page = await self._blobs.list(self._prefixes[self._place], self._after, self._size)
        if page.truncated and page.entries:
            self._after = page.entries[-1].key
            return page.entries, False
        self._after = None
        self._place = (self._place + 1) % len(self._prefixes)
        return page.entries, self._place == 0


class LogScan:
    """The ready index, done without: entries as the index would have them."""

    def __init__(self, objects: Objects, pages: Pages) -> None:
        self._objects = objects
        self._pages = pages

    async def entries(self, queues: frozenset[str], tasks: frozenset[str] | None, now: int, limit: int) -> list[Entry]:
        found: dict[str, Entry] = {}
        due = 0
        for _ in range(MOST_PAGES):
            page, is_last = await self._pages.next()
            for entry in await claimable(self._objects, [item.key for item in page]):
                if entry.queue in queues and (tasks is None or entry.task in tasks):
                    due += entry.key not in found and entry.at <= now
                    found[entry.key] = entry
            if is_last or due >= limit:
                break
        return [*found.values()]


class MissingKeys:
    """Puts back ready keys that are missing; `pace` is how many seconds to wait for each request that was made."""

    def __init__(self, objects: Objects, pages: Pages, pace: float) -> None:
        self._objects = objects
        self._blobs: Blobs = objects.blobs
        self._pages = pages
        self._pace = pace
        self._next_look = 0.0
        self._read_since: int | None = None  # what was written before has been looked at; None: look at everything
        self._round_began: int | None = None
        self._thorough_at = time.monotonic() + THOROUGH

    async def restore(self) -> list[str]:
        """Look at one page; the keys that were put back."""
        if time.monotonic() < self._next_look:
            return []
        if self._round_began is None:
            self._round_began = await self._blobs.now()
        page, is_last = await self._pages.next()
        since = self._read_since
        keys = [item.key for item in page if since is None or item.modified > since]
        entries = await claimable(self._objects, keys)
        there = await self._blobs.get_many([entry.key for entry in entries])
        missing = [entry.key for entry, blob in zip(entries, there, strict=True) if blob is None]
        await self._blobs.write_many([Write(key, b"", Expect.ANYTHING, durable=False) for key in missing])
        if is_last:
            self._end_round()
        self._next_look = time.monotonic() + self._pace * (1 + len(keys) + len(entries))
        return missing

    def _end_round(self) -> None:
        began, self._round_began = self._round_began, None
        self._read_since = None if began is None else began - SLACK
        if time.monotonic() >= self._thorough_at:
            self._read_since = None
            self._thorough_at = time.monotonic() + THOROUGH


async def claimable(objects: Objects, keys: Sequence[str]) -> list[Entry]:
    """Those of these job objects that wait and are open, as the ready index tells of them."""
    values = [decode(seen.value, JobValue) for seen in await objects.read(keys) if seen.value is not None]
    filed = [value.filed for value in values if value.job is not None and value.job.state is State.WAITING]
    parsed = [Layout.parse(key) for key in filed if key.startswith("ready/")]
    return [entry for entry in parsed if entry is not None]
