"""Compacts archived jobs into Parquet files, and merges and expires these files.

    candidates → files (executors) → manifest → removal (executors, by queue) → manifest → merge of small files

Only one operation at a time changes the archive. Each operation has an id, the argument `run` of the functions below.
`store/object/archive/files.py` defines the order of the writes, and which process may make them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import msgspec

from millrace.domain.errors import QueueError
from millrace.spark.upkeep_work import AT_ONCE, Each, MergeFiles, RemoveJobs, UpkeepDone, Work, WriteFiles
from millrace.store.archived import ArchiveFile, ArchiveValue
from millrace.store.object.archive.files import GRACE
from millrace.store.object.keys import IndexEntry
from millrace.store.object.store import ObjectStore

OnProgress = Callable[[str], None]
CHUNK = 10_000  # jobs per task, and usually per file
SMALL = 8 << 20  # bytes; files below are merged
TARGET = 32 << 20
FEW = 4  # fewer small files per month are not merged
BEAT = 30.0  # seconds


class Figure(msgspec.Struct, frozen=True):
    """The result of `preview` for one queue and state. `jobs` jobs can be compacted; they finished between `first` and
    `last`.

    `not_yet` more jobs cannot be compacted yet, because their result is kept or a retry is due. All of these can be
    compacted from the instant `until` on.
    """

    queue: str
    state: str
    jobs: int
    first: int | None = None
    last: int | None = None
    not_yet: int = 0
    until: int | None = None


class ArchiveOutcome(msgspec.Struct, frozen=True):
    """The result of an operation on the archive.

    `found` counts the candidates. `not_yet` counts the candidates that could not be compacted, because their result is
    kept, a retry is due, or a crash left only an index key of the job. `until` is the instant from which the jobs with
    a kept result or a due retry can be compacted. `lived_on` counts jobs that changed during the operation and stay in
    the store. `finished` counts jobs that an earlier, interrupted operation had compacted, and this one removed from
    the store.
    """

    found: int = 0
    compacted: int = 0
    not_yet: int = 0
    until: int | None = None
    lived_on: int = 0
    finished: int = 0
    files_written: int = 0
    files_merged: int = 0
    files_expired: int = 0
    jobs_expired: int = 0
    files_deleted: int = 0
    files: int = 0  # listed files at the end
    jobs: int = 0
    size: int = 0  # in bytes


async def preview(store: ObjectStore, before: int, limit: int | None) -> list[Figure]:
    """Return how many jobs a compaction would move now, by queue and state. This reads every candidate, because only
    the record of a job shows whether it can be compacted.
    """
    names = [entry.name for entry in await store.compaction.candidates(before, limit)]
    finished: dict[tuple[str, str], list[int]] = {}
    kept: dict[tuple[str, str], list[int]] = {}
    for start in range(0, len(names), AT_ONCE):
        ready, not_yet = await store.compaction.read(names[start : start + AT_ONCE], before)
        for one in ready:
            finished.setdefault((one.job.spec.queue, one.job.state.value), []).append(one.job.finished_at or 0)
        for other in not_yet:
            kept.setdefault((other.queue, other.state), []).append(other.until)
    found = []
    for kind in {**finished, **kept}:
        times, later = finished.get(kind, []), kept.get(kind, [])
        bounds = min(times, default=None), max(times, default=None)
        found.append(Figure(*kind, len(times), *bounds, len(later), max(later, default=None)))
    return sorted(found, key=lambda one: (-one.jobs, -one.not_yet, one.queue, one.state))


async def compact(
    store: ObjectStore,
    each: Each,
    *,
    before: int,
    limit: int | None = None,
    on_progress: OnProgress = lambda _: None,
) -> ArchiveOutcome:
    """Move archived jobs that finished before `before` into files, oldest first, at most `limit` jobs. Return the
    result.
    """
    async with _run(store) as run:
        finished, _ = await _close(store, each, run)
        on_progress("looking for archived jobs")
        found = await store.compaction.candidates(before, limit)
        chunks = _chunks(found)
        on_progress(f"writing {len(found):,} jobs, {len(chunks)} tasks")
        works = [WriteFiles(f"{run}-{at:05d}", names, before) for at, names in enumerate(chunks)]
        written = await _all(each, works)
        files = [file for one in written for file in one.files]
        await store.compacted.add(run, files)
        on_progress("removing them from the store")
        compacted, lived_on = await _close(store, each, run)
        merged = await _merge(store, each, run, on_progress)
        deleted = await store.compacted.tidy(run)
        return await _outcome(
            store,
            found=len(found),
            compacted=compacted,
            not_yet=len(found) - compacted - lived_on,
            until=max((one.until for one in written), default=0) or None,
            lived_on=lived_on,
            finished=finished,
            files_written=len(files),
            files_merged=merged,
            files_deleted=deleted,
        )


async def expire(
    store: ObjectStore, each: Each, *, before: int, grace: int = GRACE, on_progress: OnProgress = lambda _: None
) -> ArchiveOutcome:
    """Remove files from the archive if their last job finished before `before`. The files are deleted after the grace
    period.
    """
    async with _run(store) as run:
        finished, _ = await _close(store, each, run)
        over = expiring(await store.compacted.value(), before)
        await store.compacted.replace(run, [file.key for file in over], ())
        merged = await _merge(store, each, run, on_progress)
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
    """Reserve the archive for one operation, and yield the id of the operation. A heartbeat renews the reservation. If
    the heartbeats stop for too long, another operation can take the archive over.
    """
    archive = store.compacted
    run = await archive.begin()

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT)
            with contextlib.suppress(QueueError):  # the next change fails if the archive was taken over
                await archive.beat(run)

    beating = asyncio.ensure_future(beat())
    try:
        yield run
    finally:
        beating.cancel()
        with contextlib.suppress(QueueError):
            await archive.end(run)


async def _all(each: Each, works: Sequence[Work]) -> list[UpkeepDone]:
    return await each(works) if works else []


async def _close(store: ObjectStore, each: Each, run: str) -> tuple[int, int]:
    """Remove the jobs of open files from the store, and close the files. Open files are listed in the manifest, but
    their jobs may still be in the store; an interrupted operation can leave some. Return the number of removed jobs,
    and the number of jobs that changed and therefore stay in the store.
    """
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


async def _merge(store: ObjectStore, each: Each, run: str, on_progress: OnProgress) -> int:
    """Merge small files. Return how many files were replaced."""
    groups = small_files((await store.compacted.value()).closed)
    if groups:
        on_progress(f"merging {sum(map(len, groups))} small files")
    works = [MergeFiles(f"{run}-m{at:04d}", group) for at, group in enumerate(groups)]
    made = [file for one in await _all(each, works) for file in one.files]
    await store.compacted.replace(run, [file.key for group in groups for file in group], made)
    return sum(map(len, groups))


def small_files(files: Sequence[ArchiveFile]) -> list[tuple[ArchiveFile, ...]]:
    """Return groups of small files, each to be merged into one file. All files of a group are of the same month, so
    that an old month can expire without waiting for newer jobs.
    """
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


def _chunks(entries: Sequence[IndexEntry]) -> list[tuple[str, ...]]:
    """Return the names of the entries in chunks, in the order in which their jobs finished. All jobs of a chunk
    finished in the same month, so that an old month can expire without waiting for newer jobs.
    """
    chunks: list[tuple[str, ...]] = []
    for _, of_month in groupby(entries, key=lambda entry: _month(entry.at)):
        names = [entry.name for entry in of_month]
        chunks += [tuple(names[start : start + CHUNK]) for start in range(0, len(names), CHUNK)]
    return chunks


def _month(at: int) -> tuple[int, int]:
    day = datetime.fromtimestamp(at / 1000, UTC)
    return day.year, day.month


async def _outcome(store: ObjectStore, **done: Any) -> ArchiveOutcome:
    files = (await store.compacted.value()).files
    jobs = sum(file.rows - len(file.void) for file in files)
    return ArchiveOutcome(**done, files=len(files), jobs=jobs, size=sum(file.size for file in files))
