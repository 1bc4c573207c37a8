"""The cached list of claimable jobs: one listing serves many claims.

A listing is reused for a short time, while it has enough entries. Changes by this process are applied to it. After that
time, claims still use the listing while the next one is fetched in the background. A claim waits for a new listing only
if it finds too few entries or the listing is much too old.

When several workers claim from the head of the list, they try to take the same jobs. So after a lost race, claims skip
a random number of entries, and more after each further one. They return to strict order when no race is lost.
"""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Container, Iterable

from millrace.domain.errors import StoreError
from millrace.store.object.blobs import MAX_PAGE, Blobs
from millrace.store.object.claims.log_scan import LogScan
from millrace.store.object.keys import IndexEntry, Layout
from millrace.store.object.options import ObjectOptions

FEW = 800  # entries below which one listing of everything is tried again
MOST_PAGES = 1_000
AT_ONCE = 64  # concurrent listings
IN_A_ROW = 16  # listings fetched one after the other, so that claims have priority
WIDEST = 1_024
LISTING_SHARE = 0.2  # share of the time spent on listings: slow listings are reused for longer …
LONGEST = 1.0  # … but at most for this many seconds
LONGEST_PAUSE = 0.05  # seconds between two background listings …
PAUSES = 0.5  # … as long as all of them took less than this
STALE = 2  # a listing older than this multiple of its reuse time serves no claim


class _QueueEntries:
    """The entries of one queue in the order of claims. Removed entries stay in the list and are skipped."""

    def __init__(self, entries: Iterable[IndexEntry]) -> None:
        self.order = sorted(entries, key=_order)
        self.gone: set[str] = set()
        self._keys = {entry.key for entry in self.order}
        self.ranges = len({(entry.task, entry.priority) for entry in self.order})

    def add(self, entry: IndexEntry) -> None:
        self.gone.discard(entry.key)
        if entry.key in self._keys:  # a key is written before it is added here, so a listing may already have it
            return
        self._keys.add(entry.key)
        insort(self.order, entry, key=_order)
        self.ranges += 1  # at most


class _Fetch:
    """A listing in progress. It records the changes made meanwhile, because the listing may or may not include them."""

    def __init__(self, started: float) -> None:
        self.started = started
        self.paused = 0.0  # seconds
        self.come: list[str] = []
        self.gone: list[str] = []
        self._ends = started + PAUSES

    async def pause(self, began: float, lines: int) -> None:
        """Pause after a listing request. During the pause, a server that handles one request at a time can answer
        claims.
        """
        now = time.monotonic()
        if now < self._ends:
            pause = min(LONGEST_PAUSE, (now - began) * (1 / LISTING_SHARE - 1))
            self.paused += pause / lines
            await asyncio.sleep(pause)


class ReadyIndex:
    """The cached index of claimable jobs. In the mode `log-scan`, the entries come from `scan`, not from listings."""

    def __init__(self, blobs: Blobs, layout: Layout, options: ObjectOptions, scan: LogScan | None = None) -> None:
        self._blobs = blobs
        self._layout = layout
        self._scan = scan
        self._reuse = self._fresh = options.listing_reuse / 1000
        self._page_size = options.ready_page_size
        self._shards = options.shards or layout.shards
        self._only = None if options.shards is None else frozenset(options.shards)
        self._queues: dict[str, _QueueEntries] = {}
        self._asked: tuple[frozenset[str], frozenset[str] | None] | None = None
        self._listed = -1e9
        self._next: asyncio.Task[None] | None = None  # the next listing, fetched in the background
        self._fetches: list[_Fetch] = []
        self._many = False  # whether there are more entries than one listing can hold
        self.spread = 0

    async def look(
        self, queues: frozenset[str], tasks: frozenset[str] | None, now: int, limit: int, busy: Container[str]
    ) -> list[IndexEntry]:
        """Return the entries for one claim: enough due jobs to choose from, and for each queue the job that is due
        next.
        """
        asked = queues, tasks
        age = time.monotonic() - self._listed
        serves = self._fresh if self._next is None else max(self._fresh, LONGEST)
        if self._asked == asked and age < STALE * serves:
            found, enough = self._candidates(queues, tasks, now, limit, busy)
            if enough:
                if age >= self._fresh and self._next is None:
                    self._next = asyncio.create_task(self._fetch_beside(queues, tasks, now, limit))
                return found
        await self._fetch(queues, tasks, now, limit)
        return self._candidates(queues, tasks, now, limit, busy)[0]

    async def _fetch_beside(self, queues: frozenset[str], tasks: frozenset[str] | None, now: int, limit: int) -> None:
        try:
            await self._fetch(queues, tasks, now, limit, at_once=1)  # claims have priority
        except StoreError:
            pass  # a claim that finds the listing too old fetches its own, and sees the error
        finally:
            self._next = None

    async def _fetch(
        self, queues: frozenset[str], tasks: frozenset[str] | None, now: int, limit: int, at_once: int = AT_ONCE
    ) -> None:
        began = time.monotonic()
        fetch = _Fetch(began)
        self._fetches.append(fetch)
        try:
            entries = await self._list(queues, tasks, now, limit, at_once, fetch)
        finally:
            self._fetches.remove(fetch)
        listed: defaultdict[str, list[IndexEntry]] = defaultdict(list)
        for entry in entries:
            listed[entry.queue].append(entry)
        if self._asked == (queues, tasks) and self._listed > fetch.started:
            return  # a claim has fetched a newer listing meanwhile
        self._queues = {queue: _QueueEntries(listed[queue]) for queue in queues}
        self._asked, self._listed = (queues, tasks), fetch.started
        if self._reuse:
            took = time.monotonic() - began - fetch.paused
            self._fresh = max(self._reuse, min(LONGEST, took / LISTING_SHARE))
        self.added(fetch.come)
        self.removed(fetch.gone)

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])

    def _candidates(
        self, queues: Iterable[str], tasks: frozenset[str] | None, now: int, limit: int, busy: Container[str]
    ) -> tuple[list[IndexEntry], bool]:
        """Return entries of the current listing for a claim, and whether they include enough due jobs."""
        found: list[IndexEntry] = []
        due = 0
        for queue in queues:
            first, later = self._first(self._queues[queue], tasks, now, limit, busy)
            due += len(first)
            found += first + later
        return found, due >= limit + self.spread

    def _first(
        self, entries_of_queue: _QueueEntries, tasks: frozenset[str] | None, now: int, limit: int, busy: Container[str]
    ) -> tuple[list[IndexEntry], list[IndexEntry]]:
        """Return the due entries of a queue to choose from, and the entry that becomes due next, if there is one.

        For each (task, priority), up to `limit` due entries are returned, and more after lost races. Entries of all
        tasks are needed, because a limit may exclude the jobs of some.
        """
        due: list[IndexEntry] = []
        taken: Counter[tuple[str, int]] = Counter()
        full = 0
        soonest: IndexEntry | None = None
        for entry in entries_of_queue.order:
            if (
                entry.key in entries_of_queue.gone
                or entry.name in busy
                or (tasks is not None and entry.task not in tasks)
            ):
                continue
            if entry.at <= now:
                of_range = (entry.task, entry.priority)
                taken[of_range] += 1
                if taken[of_range] <= limit + self.spread:
                    due.append(entry)
                    full += taken[of_range] == limit + self.spread
                if full >= entries_of_queue.ranges:
                    break
            elif soonest is None or entry.at < soonest.at:
                soonest = entry
        return due, [] if soonest is None else [soonest]

    def is_empty(self, queues: frozenset[str], tasks: frozenset[str] | None) -> bool:
        """Return whether these queues and tasks have no entry, due or not, in a fresh listing. False if the listing is
        old.
        """
        fresh = self._asked == (queues, tasks) and time.monotonic() - self._listed < self._fresh
        return (
            fresh and not self._many and not any(entries_of_queue.order for entries_of_queue in self._queues.values())
        )

    def added(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        for fetch in self._fetches:
            fetch.come += keys
        for key in keys:
            entry = Layout.parse(key)
            entries_of_queue = None if entry is None else self._queues.get(entry.queue)
            if entry is not None and entries_of_queue is not None and self._is_ours(entry):
                entries_of_queue.add(entry)

    def removed(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        for fetch in self._fetches:
            fetch.gone += keys
        for key in keys:
            if key.startswith("ready/"):
                entries_of_queue = self._queues.get(key.split("/", 3)[2])
                if entries_of_queue is not None:
                    entries_of_queue.gone.add(key)

    def forget(self) -> None:
        self._listed = -1e9
        for fetch in self._fetches:
            fetch.started = -1e9

    def race_was_lost(self, limit: int) -> None:
        self.spread = min(WIDEST, max(2 * self.spread, 16 * limit))

    def no_race_was_lost(self) -> None:
        self.spread = self.spread * 7 // 8

    def _is_ours(self, entry: IndexEntry) -> bool:
        return self._only is None or self._layout.shard_of(entry.name) in self._only

    async def _list(
        self,
        queues: frozenset[str],
        tasks: frozenset[str] | None,
        now: int,
        limit: int,
        at_once: int,
        fetch: _Fetch,
    ) -> list[IndexEntry]:
        if self._scan is not None:
            return await self._scan.entries(queues, tasks, now, limit + self.spread)
        if not self._many:
            page = await self._blobs.list("ready/")
            self._many = page.truncated
            if not page.truncated:
                found = Layout.entries(item.key for item in page.entries)
                return [entry for entry in found if entry.queue in queues and self._is_ours(entry)]
        enough = limit + self.spread
        lines = min(AT_ONCE, max(at_once, -(-len(self._shards) * len(queues) // IN_A_ROW)))
        turn = asyncio.Semaphore(lines)

        async def best_of(shard: str, queue: str) -> list[IndexEntry]:
            async with turn:
                began = time.monotonic()
                best = await self._best_of(shard, queue, tasks, now, enough)
                if at_once == 1:
                    await fetch.pause(began, lines)
                return best

        parts = await asyncio.gather(*(best_of(shard, queue) for shard in self._shards for queue in queues))
        found = [entry for part in parts for entry in part]
        self._many = len(found) >= FEW
        return found

    async def _best_of(
        self, shard: str, queue: str, tasks: frozenset[str] | None, now: int, limit: int
    ) -> list[IndexEntry]:
        """List one queue in one shard. Return the first due entries, and for each priority the first entry that is due
        later.
        """
        prefix = f"ready/{shard}/{queue}/"
        found: list[IndexEntry] = []
        due = 0
        after: str | None = None
        for _ in range(MOST_PAGES):
            page = await self._blobs.list(prefix, after, min(MAX_PAGE, max(self._page_size, 2 * limit)))
            jump: str | None = None
            for item in page.entries:
                entry = Layout.parse(item.key)
                if entry is None or (tasks is not None and entry.task not in tasks):
                    continue
                found.append(entry)
                if entry.at > now:
                    jump = f"{prefix}{15 - entry.priority:x}/~"
                    break
                due += 1
            if due >= limit or (jump is None and not page.truncated):
                break
            after = jump or page.entries[-1].key
        return found


def _order(entry: IndexEntry) -> tuple[int, int, int]:
    return (-entry.priority, entry.at, entry.seq)
