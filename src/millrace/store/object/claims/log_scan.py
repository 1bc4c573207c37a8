"""Finds claimable jobs by reading the job objects, without the index.

The objects are read page by page, in rounds, so that every job is reached. In the mode `log-scan`, claims use only this
scan. In the mode `hybrid`, a claim that finds nothing reads one page, to find jobs that are missing from the index. In
this mode, the scan skips objects that have not changed since the last round, and pauses after each read. So an idle
worker costs little.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from millrace.domain.job import State
from millrace.store.object.blobs import Blobs
from millrace.store.object.driver import Listed
from millrace.store.object.engine.objects import Objects
from millrace.store.object.engine.values import JobValue, value_of
from millrace.store.object.keys import IndexEntry, Layout
from millrace.store.object.options import ObjectOptions

MOST_PAGES = 20  # pages per claim in the mode log-scan; the next claim continues from there
THOROUGH = 300.0  # seconds after which a round of `hybrid` also reads unchanged objects
SLACK = 60_000  # milliseconds: objects written this shortly before a round are read again


class _ScanPages:
    """Pages of all job objects of some shards, without end: the last page is followed by the first."""

    def __init__(self, blobs: Blobs, options: ObjectOptions) -> None:
        self._blobs = blobs
        self._prefixes = ["tasks/"] if options.shards is None else [f"tasks/{shard}/" for shard in options.shards]
        self._size = options.log_scan_page_size
        self._place = 0
        self._after: str | None = None

    async def next(self) -> tuple[Sequence[Listed], bool]:
        """Return the next page, and whether it is the last page of a round."""
        page = await self._blobs.list(self._prefixes[self._place], self._after, self._size)
        if page.truncated and page.entries:
            self._after = page.entries[-1].key
            return page.entries, False
        self._after = None
        self._place = (self._place + 1) % len(self._prefixes)
        return page.entries, self._place == 0


class LogScan:
    """Finds claimable jobs without the index: returns the entries that a complete index would have."""

    def __init__(self, objects: Objects, options: ObjectOptions) -> None:
        self._objects = objects
        self._pages = _ScanPages(objects.blobs, options)

    async def entries(
        self, queues: frozenset[str], tasks: frozenset[str] | None, now: int, limit: int
    ) -> list[IndexEntry]:
        found: dict[str, IndexEntry] = {}
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
    """Restores missing index keys of claimable jobs, page by page with pauses."""

    def __init__(self, objects: Objects, options: ObjectOptions) -> None:
        self._objects = objects
        self._blobs: Blobs = objects.blobs
        self._pages = _ScanPages(objects.blobs, options)
        self._pace = options.log_scan_pace / 1000
        self._next_look = 0.0
        self._read_since: int | None = None  # objects written before this are checked; None: check everything
        self._round_began: int | None = None
        self._thorough_at = time.monotonic() + THOROUGH

    async def restore(self) -> list[str]:
        """Check one page of jobs, and write the index keys that are missing. Return these keys. During a pause, do
        nothing.
        """
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
        await self._blobs.put_many(dict.fromkeys(missing, b""), durable=False)
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


async def claimable(objects: Objects, keys: Sequence[str]) -> list[IndexEntry]:
    """Return the index entries of the jobs with these keys that are waiting and open. They are claimable once they are
    due.
    """
    values = [value_of(seen, JobValue) or JobValue() for seen in await objects.read(keys)]
    waiting = [value.index_key for value in values if value.job is not None and value.job.state is State.WAITING]
    return Layout.entries(key for key in waiting if key.startswith("ready/"))
