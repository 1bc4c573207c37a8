"""What is claimable, as it was last listed: one listing serves many claims (BO-15).

A listing may be used again for a moment, as long as it has enough to give; what this process itself puts in or takes
out is kept up with meanwhile. After that moment a claim still takes from it, while the next listing is fetched beside;
only a claim that finds too little, or comes after a pause, waits for one. Where others claim from the same head, claims
step back from it at random, further each time somebody else was faster, and return to strict order when nobody is.
"""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Container, Iterable

import msgspec

from millrace.domain.errors import StoreError
from millrace.store.object.blobs import MAX_PAGE, Blobs
from millrace.store.object.keys import Entry, Layout
from millrace.store.object.log_scan import LogScan

FEW = 800  # below it, one listing of everything is tried again
MOST_PAGES = 1_000
AT_ONCE = 64  # listings
IN_A_ROW = 16  # listings that are fetched one after the other, so that claims go first
WIDEST = 1_024
LISTING_SHARE = 0.2  # of the time; where listings take long, each serves for longer …
LONGEST = 1.0  # … but not for longer than this, in seconds
LONGEST_PAUSE = 0.05  # seconds between two listings that nobody waits for …
PAUSES = 0.5  # … as long as all of them have taken less than this
STALE = 2  # a listing this many times as old as it may be serves no claim; a younger one does while the next is fetched


class _Shelf:
    """The entries of one queue in the order of claims; what was taken out is skipped until the next listing."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.order = sorted(entries, key=_order)
        self.gone: set[str] = set()
        self._keys = {entry.key for entry in self.order}
        self.ranges = len({(entry.task, entry.priority) for entry in self.order})

    def add(self, entry: Entry) -> None:
        self.gone.discard(entry.key)
        if entry.key in self._keys:  # keys are put before they are told, so a listing may have had it already
            return
        self._keys.add(entry.key)
        insort(self.order, entry, key=_order)
        self.ranges += 1  # at most


class _Fetch:
    """A listing under way. What comes and goes meanwhile may be in it, or not."""

    def __init__(self, started: float) -> None:
        self.started = started
        self.paused = 0.0  # seconds
        self.come: list[str] = []
        self.gone: list[str] = []
        self._ends = started + PAUSES

    async def pause(self, began: float, lines: int) -> None:
        """After a listing that began then: a server that does one thing at a time shall have time for claims."""
        now = time.monotonic()
        if now < self._ends:
            pause = min(LONGEST_PAUSE, (now - began) * (1 / LISTING_SHARE - 1))
            self.paused += pause / lines
            await asyncio.sleep(pause)


class ReadyOptions(msgspec.Struct, frozen=True):
    reuse: float = 0.0  # seconds for which a listing may serve
    page_size: int = 100
    shards: tuple[str, ...] | None = None  # whose jobs are claimed; None: of all


class ReadyIndex:
    def __init__(self, blobs: Blobs, layout: Layout, options: ReadyOptions) -> None:
        self._blobs = blobs
        self._layout = layout
        self._reuse = self._fresh = options.reuse
        self._page_size = options.page_size
        self._shards = options.shards or layout.shards
        self._only = None if options.shards is None else frozenset(options.shards)
        self._shelves: dict[str, _Shelf] = {}
        self._asked: tuple[frozenset[str], frozenset[str] | None] | None = None
        self._listed = -1e9
        self._next: asyncio.Task[None] | None = None  # the next listing, fetched beside claims from this one
        self._fetches: list[_Fetch] = []
        self._many = False  # more than one listing can hold
        self.instead: LogScan | None = None  # finds entries without the index
        self.spread = 0

    async def look(
        self, queues: frozenset[str], tasks: frozenset[str] | None, now: int, limit: int, busy: Container[str]
    ) -> list[Entry]:
        """Entries of claimable jobs, enough for a claim: the first in order, the oldest, and the next that come due."""
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
            await self._fetch(queues, tasks, now, limit, at_once=1)  # claims go first
        except StoreError:
            pass  # a claim that comes when the listing is too old asks for itself, and is told
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
        listed: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            listed[entry.queue].append(entry)
        if self._asked == (queues, tasks) and self._listed > fetch.started:
            return  # a claim could not wait for this one, and what it has listed itself is newer
        self._shelves = {queue: _Shelf(listed[queue]) for queue in queues}
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
    ) -> tuple[list[Entry], bool]:
        """(entries, whether they are as many as were asked for)"""
        found: list[Entry] = []
        due = 0
        for queue in queues:
            first, later = self._first(self._shelves[queue], tasks, now, limit, busy)
            due += len(first)
            found += first + later
        return found, due >= limit + self.spread

    def _first(
        self, shelf: _Shelf, tasks: frozenset[str] | None, now: int, limit: int, busy: Container[str]
    ) -> tuple[list[Entry], list[Entry]]:
        """Of each (task, priority), as many as a claim could take: a limit may stop any of them."""
        due: list[Entry] = []
        taken: Counter[tuple[str, int]] = Counter()
        full = 0
        soonest: Entry | None = None
        for entry in shelf.order:
            if entry.key in shelf.gone or entry.name in busy or (tasks is not None and entry.task not in tasks):
                continue
            if entry.at <= now:
                of_range = (entry.task, entry.priority)
                taken[of_range] += 1
                if taken[of_range] <= limit + self.spread:
                    due.append(entry)
                    full += taken[of_range] == limit + self.spread
                if full >= shelf.ranges:
                    break
            elif soonest is None or entry.at < soonest.at:
                soonest = entry
        return due, [] if soonest is None else [soonest]

    def is_empty(self, queues: frozenset[str], tasks: frozenset[str] | None) -> bool:
        """Whether the listing that is still fresh has nothing at all for these, now or later."""
        fresh = self._asked == (queues, tasks) and time.monotonic() - self._listed < self._fresh
        return fresh and not self._many and not any(shelf.order for shelf in self._shelves.values())

    def added(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        for fetch in self._fetches:
            fetch.come += keys
        for key in keys:
            entry = Layout.parse(key)
            shelf = None if entry is None else self._shelves.get(entry.queue)
            if entry is not None and shelf is not None and self._is_ours(entry):
                shelf.add(entry)

    def removed(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        for fetch in self._fetches:
            fetch.gone += keys
        for key in keys:
            if key.startswith("ready/"):
                shelf = self._shelves.get(key.split("/", 3)[2])
                if shelf is not None:
                    shelf.gone.add(key)

    def forget(self) -> None:
        self._listed = -1e9
        for fetch in self._fetches:
            fetch.started = -1e9

    def others_were_faster(self, limit: int) -> None:
        self.spread = min(WIDEST, max(2 * self.spread, 16 * limit))

    def nobody_was_faster(self) -> None:
        self.spread = self.spread * 7 // 8

    def _is_ours(self, entry: Entry) -> bool:
        return self._only is None or self._layout.shard_of(entry.name) in self._only

    async def _list(
        self,
        queues: frozenset[str],
        tasks: frozenset[str] | None,
        now: int,
        limit: int,
        at_once: int,
        fetch: _Fetch,
    ) -> list[Entry]:
        if self.instead is not None:
            return await self.instead.entries(queues, tasks, now, limit + self.spread)
        if not self._many:
            page = await self._blobs.list("ready/")
            self._many = page.truncated
            if not page.truncated:
                parsed = (Layout.parse(item.key) for item in page.entries)
                found = [entry for entry in parsed if entry is not None and entry.queue in queues]
                return [entry for entry in found if self._is_ours(entry)]
        enough = limit + self.spread
        lines = min(AT_ONCE, max(at_once, -(-len(self._shards) * len(queues) // IN_A_ROW)))
        turn = asyncio.Semaphore(lines)

        async def best_of(shard: str, queue: str) -> list[Entry]:
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

    async def _best_of(self, shard: str, queue: str, tasks: frozenset[str] | None, now: int, limit: int) -> list[Entry]:
        """The first due entries of each priority; what is due later is jumped over, but for the first of it."""
        prefix = f"ready/{shard}/{queue}/"
        found: list[Entry] = []
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


def _order(entry: Entry) -> tuple[int, int, int]:
    return (-entry.priority, entry.at, entry.seq)
