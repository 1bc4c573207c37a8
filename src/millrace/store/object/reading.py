"""Searches and counts jobs.

Index keys contain the queue, task, state, time and seq of every job. So records are read only for jobs that may match.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.domain.job import ALIASES, FINISHED, Job, State
from millrace.domain.ledger import without_expired_result
from millrace.domain.request import JobSelection, Page, Partition, Query, QueueCounts, matches
from millrace.domain.rules.operate import SEARCH_BUDGET, STATE_WORDS
from millrace.domain.tables import QueueRow
from millrace.store.object.blobs import MAX_PAGE
from millrace.store.object.engine.engine import Engine
from millrace.store.object.engine.tables import count_jobs, newest
from millrace.store.object.engine.values import JobValue, QueueValue, value_of
from millrace.store.object.keys import STATE_LETTERS, IndexEntry, Layout, word

MOST_DIGITS = 19
_SHARDS, _RANGE = "shards:", "range:"
MOST_CUTS = 256  # ranges of a shard; ids that are UUIDs are spread evenly over them
WAITING_WORDS = frozenset({"waiting", "ready", "scheduled", "retrying", "blocked"})


class JobReader:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._layout = engine.layout

    # counting

    async def count(self, now: int) -> list[QueueCounts]:
        control, entries = await asyncio.gather(
            self._engine.blobs.all_keys("control/queues/"), self._listed(("ready/", "held/", "leases/", "done/"))
        )
        entries = await self._without_contradictions(entries)
        seen = await self._engine.objects.read(control)
        values = [value for one in seen if (value := value_of(one, QueueValue)) is not None]
        of_queue: defaultdict[str, list[IndexEntry]] = defaultdict(list)
        for entry in entries:
            of_queue[entry.queue].append(entry)
        return [_counts(value, of_queue[word(value.name)], now) for value in sorted(values, key=lambda v: v.name)]

    # finding

    async def find(self, query: Query, now: int, shard: str | None = None) -> Page:
        if shard is not None and shard not in self._layout.shards:
            known = self._layout.shards
            raise InvalidInput(f"there is no shard {shard!r}; this store has {known[0]} to {known[-1]}")
        if query.state is not None and query.state not in STATE_WORDS:
            raise InvalidInput(f"{query.state!r} is not a state. Known are: {', '.join(sorted(STATE_WORDS))}.")
        start = None if query.cursor is None else _seq(query.cursor)
        entries = [entry for entry in await self._entries(self._prefixes(query, shard)) if _may_match(entry, query)]
        if shard is not None:
            entries = [entry for entry in entries if self._layout.shard_of(entry.name) == shard]
        entries.sort(key=lambda entry: entry.seq, reverse=query.newest_first)
        if start is not None:
            entries = [entry for entry in entries if (entry.seq < start if query.newest_first else entry.seq > start)]
        found: list[Job] = []
        scanned = last = 0
        size = max(16, min(query.limit, 200))
        for first in range(0, len(entries), size):
            if len(found) >= query.limit or scanned >= SEARCH_BUDGET:
                return Page(tuple(found), str(last), scanned)
            some = entries[first : first + size]
            jobs = await self._engine.jobs([self._layout.job_by_name(entry.name) for entry in some])
            for entry, job in zip(some, jobs, strict=True):
                if len(found) >= query.limit or scanned >= SEARCH_BUDGET:
                    return Page(tuple(found), str(last), scanned)
                scanned += 1
                last = entry.seq
                if job is not None and job.seq == entry.seq and matches(job, query, now):
                    found.append(without_expired_result(job, now))
        return Page(tuple(found), None, scanned)

    def _prefixes(self, query: Query, shard: str | None = None) -> list[str]:
        """Return the index prefixes that can contain matching jobs."""
        state = None if query.state is None else ALIASES.get(query.state, query.state)
        ended = query.only_finished and state is None
        queue = None if query.queue is None else word(query.queue)
        shards = self._layout.shards if shard is None else (shard,)
        ready = ["ready/"] if queue is None else [f"ready/{one}/{queue}/" for one in shards]
        held = ["held/"] if queue is None else [f"held/{queue}/"]
        done = ["done/"] if queue is None else [f"done/{queue}/"]
        if queue is not None and state in FINISHED:
            done = [f"done/{queue}/{STATE_LETTERS[State(state)]}/"]
        if state in WAITING_WORDS:
            return ready + held
        if state == State.RUNNING:
            return ["leases/"]
        if ended or state in FINISHED:
            return done
        return [*ready, *held, "leases/", *done]

    async def _entries(self, prefixes: Sequence[str]) -> list[IndexEntry]:
        return newest(await self._listed(prefixes))

    async def _listed(self, prefixes: Sequence[str]) -> list[IndexEntry]:
        listed = await asyncio.gather(*(self._engine.blobs.all_keys(prefix) for prefix in prefixes))
        return Layout.entries(key for keys in listed for key in keys)

    async def _without_contradictions(self, entries: list[IndexEntry]) -> list[IndexEntry]:
        """Return the entries without stale ones.

        A job may have several entries, because a claim crashed. The record of the job decides which entry is valid.
        """
        times = Counter(entry.name for entry in entries)
        doubtful = [entry for entry in entries if times[entry.name] > 1]
        keys = [*dict.fromkeys(self._layout.job_by_name(entry.name) for entry in doubtful)]
        seen = await self._engine.objects.read(keys)
        valid = {(value_of(one, JobValue) or JobValue()).index_key for one in seen}
        return [entry for entry in entries if times[entry.name] == 1 or entry.key in valid]

    async def all_jobs(self) -> list[tuple[int, str]]:
        """Return the seq and the key of every job, in order of seq."""
        entries = await self._entries(("ready/", "held/", "leases/", "done/"))
        return sorted((entry.seq, self._layout.job_by_name(entry.name)) for entry in entries)

    # everything, in partitions

    def partitions(self, n: int) -> list[Partition]:
        shards = self._layout.shards
        if n < 2 * len(shards):
            size = -(-len(shards) // max(1, n))
            return [
                Partition(_SHARDS + ",".join(shards[start : start + size])) for start in range(0, len(shards), size)
            ]
        cuts = min(MOST_CUTS, n // len(shards))
        return [
            Partition(f"{_RANGE}{shard}:{start}:{end}")
            for shard in shards
            for start, end in pairwise(["", *(f"{256 * cut // cuts:02x}" for cut in range(1, cuts)), ""])
        ]

    def parse(self, partition: Partition) -> JobRange:
        kind, separator, rest = partition.token.partition(":")
        found: JobRange | None = None
        if kind + separator == _SHARDS:
            found = JobRange(tuple(rest.split(",")))
        elif kind + separator == _RANGE and rest.count(":") == 2:
            shard, start, end = rest.split(":")
            first = f"tasks/{shard}/{shard if self._layout.width else ''}"
            found = JobRange((shard,), first + start if start else "", first + end if end else None)
        if found is None or not set(found.shards) <= set(self._layout.shards):
            raise InvalidInput(
                f"{partition.token!r} is not a partition of this store. Pass one that the store returned."
            )
        return found

    async def scan(
        self, partition: Partition, batch: int, clock: int, selection: JobSelection
    ) -> AsyncIterator[list[Job]]:
        wanted, query = self.parse(partition), selection.query
        parts = frozenset(["input"] * selection.payloads + ["output"] * selection.results)
        keys = self._keys(wanted, batch) if query is None or not _is_indexed(query) else self._indexed(wanted, query)
        ready: list[Job] = []
        async for some in keys:
            while some:
                now, some = some[: batch - len(ready)], some[batch - len(ready) :]
                jobs = await self._engine.jobs(now, parts)
                ready += [
                    without_expired_result(job, clock)
                    for job in jobs
                    if job is not None and (query is None or matches(job, query, clock))
                ]
                if len(ready) >= batch:
                    yield ready
                    ready = []
        if ready:
            yield ready

    async def _keys(self, wanted: JobRange, size: int) -> AsyncIterator[list[str]]:
        for shard in wanted.shards:
            async for page in self._engine.blobs.pages(f"tasks/{shard}/", wanted.after or None, min(MAX_PAGE, size)):
                keys = [entry.key for entry in page.entries if wanted.has(entry.key)]
                yield keys
                if len(keys) < len(page.entries):
                    break

    async def _indexed(self, wanted: JobRange, query: Query) -> AsyncIterator[list[str]]:
        """Yield the keys of jobs that may match the query, according to the index."""
        state = None if query.state is None else ALIASES.get(query.state, query.state)
        entries = [
            entry
            for entry in await self._listed(self._prefixes(query))
            if _may_match(entry, query) and (state not in FINISHED or entry.state == state)
        ]
        keys = dict.fromkeys(self._layout.job_by_name(entry.name) for entry in entries)
        yield [key for key in keys if wanted.has(key)]


class JobRange(msgspec.Struct, frozen=True):
    """The jobs of a partition: all jobs of some shards, or those of one shard with keys between two keys."""

    shards: tuple[str, ...]
    after: str = ""
    until: str | None = None

    def has(self, key: str) -> bool:
        """Return whether the job with this key is in the partition."""
        return key.split("/")[1] in self.shards and key > self.after and (self.until is None or key < self.until)


def _is_indexed(query: Query) -> bool:
    """Return whether the index can exclude jobs that do not match the query."""
    return query.only_finished or any(part is not None for part in (query.queue, query.task, query.state))


def _may_match(entry: IndexEntry, query: Query) -> bool:
    if query.queue is not None and entry.queue != word(query.queue):
        return False
    return query.task is None or entry.task == word(query.task)


def _seq(cursor: str) -> int:
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > MOST_DIGITS:
        raise InvalidInput(f"{cursor[:40]!r} is not a cursor of this store. Pass one that the store returned, or None.")
    return int(cursor)


def _counts(value: QueueValue, entries: Sequence[IndexEntry], now: int) -> QueueCounts:
    row = QueueRow(value.name, value.settings, processed=value.completed_before, died=value.died_before)
    count_jobs(row, entries)
    waiting = [entry for entry in entries if entry.state is State.WAITING and "b" not in entry.flags]
    later = [entry for entry in waiting if entry.at > now]
    retrying = sum("f" in entry.flags for entry in later)
    oldest = min((entry.at for entry in waiting if entry.at <= now and "r" in entry.flags), default=None)
    return QueueCounts(
        value.name,
        row.waiting,
        row.running,
        row.completed,
        row.dead,
        row.cancelled,
        row.blocked,
        len(later) - retrying,
        retrying,
        row.waiting - row.blocked - len(later),
        row.archived,
        None if oldest is None else max(0, now - oldest),
        value.settings.paused,
        row.processed,
        row.died,
    )
