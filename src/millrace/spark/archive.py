"""Compaction of archived jobs into Parquet, merging and expiry of the files, as one run on the archive each.

    candidates → files (executors) → manifest → removal (executors, by queue) → manifest → small files merged

The order of these steps, and who may take them, is the business of `store/object/archive.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby

import msgspec

from millrace.domain.errors import QueueError
from millrace.spark.upkeep_work import Done, Each, MergeFiles, RemoveJobs, Work, WriteFiles
from millrace.store.archived import ArchiveFile, ArchiveValue
from millrace.store.object.archive import GRACE
from millrace.store.object.keys import Entry, unspelled
from millrace.store.object.store import ObjectStore

Tell = Callable[[str], None]
CHUNK = 10_000  # jobs of one task, and mostly of one file
SMALL = 8 << 20  # bytes; files below are merged
TARGET = 32 << 20
FEW = 4  # small files of a month are left as they are below that
BEAT = 30.0  # seconds


class Figure(msgspec.Struct, frozen=True):
    """So many jobs of a kind could be compacted; they finished between `first` and `last`."""

    queue: str
    state: str
    jobs: int
    first: int
    last: int


class ArchiveOutcome(msgspec.Struct, frozen=True):
    """What a run has done.

    `found` by their index keys; `not_yet` of them cannot be compacted now: somebody may still fetch their result, they
    are to be brought back by themselves, or a crash left only their key. `lived_on`: their jobs changed meanwhile, and
    stay in the store. `finished` are jobs of an earlier run that had not come to its end.
    """

    found: int = 0
    compacted: int = 0
    not_yet: int = 0
    lived_on: int = 0
    finished: int = 0
    files_written: int = 0
    files_merged: int = 0
    files_expired: int = 0
    jobs_expired: int = 0
    files_deleted: int = 0
    files: int = 0  # that count, in the end
    jobs: int = 0
    size: int = 0  # in bytes


def figures(entries: Iterable[Entry]) -> list[Figure]:
    jobs: Counter[tuple[str, str]] = Counter()
    times: dict[tuple[str, str], list[int]] = {}
    for entry in entries:
        kind = (unspelled(entry.queue) or entry.queue, entry.state.value)
        jobs[kind] += 1
        times.setdefault(kind, []).append(entry.at)
    return [Figure(*kind, count, min(times[kind]), max(times[kind])) for kind, count in jobs.most_common()]


async def compact(
    store: ObjectStore,
    each: Each,
    *,
    before: int,
    limit: int | None = None,
    tell: Tell = lambda _: None,
) -> ArchiveOutcome:
    """Put archived jobs that finished by then, at most so many, oldest first, into files and out of the store."""
    async with _run(store) as run:
        finished, _ = await _close(store, each, run)
        tell("looking for archived jobs")
        found = await store.compaction.candidates(before, limit)
        chunks = _chunks(found)
        tell(f"writing {len(found):,} jobs, {len(chunks)} tasks")
        works = [WriteFiles(f"{run}-{at:05d}", names, before) for at, names in enumerate(chunks)]
        files = [file for one in await _all(each, works) for file in one.files]
        await store.compacted.add(run, files)
        tell("removing them from the store")
        compacted, lived_on = await _close(store, each, run)
        merged = await _merge(store, each, run, tell)
        deleted = await store.compacted.tidy(run)
        return await _outcome(
            store,
            found=len(found),
            compacted=compacted,
            not_yet=len(found) - compacted - lived_on,
            lived_on=lived_on,
            finished=finished,
            files_written=len(files),
            files_merged=merged,
            files_deleted=deleted,
        )


async def expire(
    store: ObjectStore, each: Each, *, before: int, grace: int = GRACE, tell: Tell = lambda _: None
) -> ArchiveOutcome:
    """Give up whole files whose last job finished before that. The files themselves go after the grace."""
    async with _run(store) as run:
        finished, _ = await _close(store, each, run)
        over = expiring(await store.compacted.value(), before)
        await store.compacted.replace(run, [file.key for file in over], ())
        merged = await _merge(store, each, run, tell)
        deleted = await store.compacted.tidy(run, grace)
        jobs = sum(file.rows - len(file.void) for file in over)
        return await _outcome(
            store,
            finished=finished,
            files_expired=len(over),
            jobs_expired=jobs,
            files_merged=merged,
            files_deleted=deleted,
        )


def expiring(value: ArchiveValue, before: int) -> list[ArchiveFile]:
    return [file for file in value.closed if file.last < before]


@contextlib.asynccontextmanager
async def _run(store: ObjectStore) -> AsyncIterator[str]:
    """Nobody else changes the archive meanwhile; whoever is silent for too long loses that right."""
    archive = store.compacted
    run = await archive.begin()

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT)
            with contextlib.suppress(QueueError):  # whether it is still ours, the next change says
                await archive.beat(run)

    beating = asyncio.ensure_future(beat())
    try:
        yield run
    finally:
        beating.cancel()
        with contextlib.suppress(QueueError):
            await archive.end(run)


async def _all(each: Each, works: Sequence[Work]) -> list[Done]:
    return await each(works) if works else []


async def _close(store: ObjectStore, each: Each, run: str) -> tuple[int, int]:
    """Remove the jobs of open files, of this run or of one before; how many were, and how many lived on."""
    files = (await store.compacted.value()).open
    queues = sorted({queue for file in files for queue in file.queues})
    works = [RemoveJobs(queue, tuple(file for file in files if queue in file.queues)) for queue in queues]
    void: dict[str, list[int]] = {file.key: [] for file in files}
    removed = 0
    for one in await _all(each, works):
        removed += one.removed
        for key, seqs in one.void.items():
            void[key] += seqs
    await store.compacted.close(run, void)
    return removed, sum(map(len, void.values()))


async def _merge(store: ObjectStore, each: Each, run: str, tell: Tell) -> int:
    """How many files were replaced by fewer."""
    groups = small_files((await store.compacted.value()).closed)
    if groups:
        tell(f"merging {sum(map(len, groups))} small files")
    works = [MergeFiles(f"{run}-m{at:04d}", group) for at, group in enumerate(groups)]
    made = [file for one in await _all(each, works) for file in one.files]
    await store.compacted.replace(run, [file.key for group in groups for file in group], made)
    return sum(map(len, groups))


def small_files(files: Sequence[ArchiveFile]) -> list[tuple[ArchiveFile, ...]]:
    """Groups worth merging: small files of one month, so that a file can be expired when its month is over."""
    groups: list[tuple[ArchiveFile, ...]] = []
    small = sorted((file for file in files if file.size < SMALL), key=lambda file: (file.last, file.key))
    for _, of_month in groupby(small, key=lambda file: _month(file.last)):
        group: list[ArchiveFile] = []
        for file in of_month:
            if group and sum(one.size for one in group) + file.size > TARGET:
                groups.append(tuple(group))
                group = []
            group.append(file)
        groups.append(tuple(group))
    return [group for group in groups if len(group) >= FEW]


def _chunks(entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """Names, in the order of their ends; each chunk of one month, so that its file can be expired with it."""
    chunks: list[tuple[str, ...]] = []
    for _, of_month in groupby(entries, key=lambda entry: _month(entry.at)):
        names = [entry.name for entry in of_month]
        chunks += [tuple(names[start : start + CHUNK]) for start in range(0, len(names), CHUNK)]
    return chunks


def _month(at: int) -> tuple[int, int]:
    day = datetime.fromtimestamp(at / 1000, UTC)
    return day.year, day.month


async def _outcome(store: ObjectStore, **done: int) -> ArchiveOutcome:
    files = (await store.compacted.value()).files
    jobs = sum(file.rows - len(file.void) for file in files)
    return ArchiveOutcome(**done, files=len(files), jobs=jobs, size=sum(file.size for file in files))
