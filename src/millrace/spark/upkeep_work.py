"""The pieces of maintenance that run on executors. Each process opens the store itself.

If Spark repeats a task, a piece runs twice. That is safe: readers ignore files until the driver lists them in the
manifest, and repairs and removals are idempotent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.domain.errors import InvalidInput, StoreError
from millrace.spark.archive.rows import ARCHIVE, LARGEST, FileWriter, columns_of
from millrace.store.archived import ArchiveFile, ArchiveRow, Compactable
from millrace.store.object.dry import DryLook
from millrace.store.object.store import ObjectStore
from millrace.store.protocol import Store
from millrace.store.sweep_report import SweepShare, Swept

AT_ONCE = 100  # jobs read at a time
ROW_GROUP = 5_000


class SweepShareOf(msgspec.Struct, frozen=True, tag="sweep"):
    share: SweepShare
    dry: bool = False


class WriteFiles(msgspec.Struct, frozen=True, tag="write"):
    """Compact the jobs whose index entries have these `names` into files. The names of the parts in the files begin
    with `part`.
    """

    part: str
    names: tuple[str, ...]
    before: int


class RemoveJobs(msgspec.Struct, frozen=True, tag="remove"):
    """Remove from the store the jobs of one queue that are in these files. Each queue is one piece of work: every
    removal writes the object of the queue, so two tasks with the same queue would wait for each other.
    """

    queue: str
    files: tuple[ArchiveFile, ...]


class MergeFiles(msgspec.Struct, frozen=True, tag="merge"):
    part: str
    files: tuple[ArchiveFile, ...]


Work = SweepShareOf | WriteFiles | RemoveJobs | MergeFiles


class UpkeepDone(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a piece of work. After a removal, `void` maps each file to the seqs of its invalid rows: these jobs
    changed and stay in the store.
    """

    swept: Swept | None = None
    files: tuple[ArchiveFile, ...] = ()
    void: dict[str, tuple[int, ...]] = {}
    removed: int = 0
    until: int = 0  # for written files: when the last of the skipped jobs can be compacted


Each = Callable[[Sequence[Work]], Awaitable[list[UpkeepDone]]]


def objects_of(store: Store) -> ObjectStore:
    if not isinstance(store, ObjectStore):
        raise InvalidInput(
            f"{store.url.partition('://')[0]}:// needs no such maintenance: it has no index to sweep and no object per "
            "job. Retention (keep_completed, keep_dead) and the upkeep of any worker do what there is to do"
        )
    return store


async def done(store: Store, work: Work) -> UpkeepDone:
    objects = objects_of(store)
    match work:
        case SweepShareOf(share, dry):
            sweep = DryLook(objects).sweep_share if dry else objects.sweep_share
            return UpkeepDone(swept=await sweep(share))
        case WriteFiles():
            return await _write(objects, work)
        case RemoveJobs():
            return await _remove(objects, work)
        case MergeFiles():
            return UpkeepDone(files=await _merge(objects, work))


async def _write(store: ObjectStore, work: WriteFiles) -> UpkeepDone:
    files: list[ArchiveFile] = []
    until = 0
    writer: FileWriter | None = None

    async def finish(writer: FileWriter) -> None:
        body = writer.close()
        files.append(writer.described(await store.compacted.put(writer.part, body), len(body)))

    group: list[Compactable] = []
    for start in range(0, len(work.names), AT_ONCE):
        ready, not_yet = await store.compaction.read(work.names[start : start + AT_ONCE], work.before)
        group += ready
        until = max(until, *(one.until for one in not_yet), 0)
        is_last = start + AT_ONCE >= len(work.names)
        if not group or not (is_last or len(group) >= ROW_GROUP or _bytes(group) >= LARGEST):
            continue
        writer = writer or FileWriter(f"{work.part}.{len(files)}")
        writer.add(group)
        group = []
        if writer.size >= LARGEST:
            await finish(writer)
            writer = None
    if writer is not None:
        await finish(writer)
    return UpkeepDone(files=tuple(files), until=until)


def _bytes(jobs: Sequence[Compactable]) -> int:
    return sum(len(one.job.payload) + len(one.job.result or b"") for one in jobs)


async def _remove(store: ObjectStore, work: RemoveJobs) -> UpkeepDone:
    void: dict[str, tuple[int, ...]] = {}
    removed = 0
    for file in work.files:
        rows: list[ArchiveRow] = []
        for batch in columns_of(await body_of(store, file), ["id", "seq", "events", "queue"]):
            mine = batch.filter(pc.equal(batch.column("queue"), work.queue)).to_pydict()
            rows += map(ArchiveRow, mine["id"], mine["seq"], mine["events"])
        void[file.key] = tuple(await store.compaction.remove(rows))
        removed += len(rows) - len(void[file.key])
    return UpkeepDone(void=void, removed=removed)


async def _merge(store: ObjectStore, work: MergeFiles) -> tuple[ArchiveFile, ...]:
    batches: list[pa.RecordBatch] = []
    for file in work.files:
        void = pa.array(file.void, pa.int64())
        for batch in columns_of(await body_of(store, file), ARCHIVE.names):  # older files may lack some
            counts: Any = batch.filter(pc.invert(pc.is_in(batch.column("seq"), void)))
            batches.append(pa.RecordBatch.from_arrays(counts.columns, schema=ARCHIVE.arrow()))
    merged = pa.Table.from_batches(batches, ARCHIVE.arrow())
    if not merged.num_rows:
        return ()
    sink = pa.BufferOutputStream()
    pq.write_table(merged, sink, compression="zstd", row_group_size=ROW_GROUP)
    body = bytes(sink.getvalue())
    parts = tuple(part for file in work.files for part in file.parts)
    first, last = min(file.first for file in work.files), max(file.last for file in work.files)
    queues = tuple(sorted({queue for file in work.files for queue in file.queues}))
    key = await store.compacted.put(work.part, body)
    return (ArchiveFile(key, parts, merged.num_rows, len(body), first, last, queues),)


async def body_of(store: ObjectStore, file: ArchiveFile) -> bytes:
    body = await store.compacted.get(file.key)
    if body is None:
        raise StoreError(
            f"{store.url}: {file.key} is missing, and the archive's manifest names it. Restore it from a version or a "
            "copy; nothing was changed"
        )
    return body
