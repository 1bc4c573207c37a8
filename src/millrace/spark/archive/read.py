"""Reads compacted jobs together with the jobs of the store, as one table.

The plan of a read lists the files that are closed at that time. Their jobs are no longer in the store, so separate
tasks read these files. Jobs that are compacted later are found by the tasks that read the store. Such a task reads its
jobs from the store, then the manifest, then the files that are not in the plan. It skips the jobs that it has already
read from the store. A job is removed from the store only after the manifest lists its file, so no job is missed.

A part is a set of jobs that were first written into the same file. A merge replaces files, but does not change their
parts. So a plan names parts, and readers look up in the manifest which file holds a part now.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from millrace.domain.errors import StoreError
from millrace.domain.job import Job
from millrace.spark.archive.rows import columns_of, events_in
from millrace.spark.filters import Condition, passing
from millrace.spark.open import OpenedStore
from millrace.spark.schema import DEAD, EVENTS
from millrace.spark.table import Table
from millrace.store.archived import ArchiveFile

if TYPE_CHECKING:
    from millrace.store.object.archive.files import Archive

Compacted = Literal["also", "only", "without"]
WORTH_A_TASK = 50_000  # jobs
TRIES = 5


def archive_of(found: OpenedStore) -> Archive | None:
    """Return the store's archive; None if the store has none."""
    return getattr(found.store, "compacted", None)


class Pinned:
    """The parts whose jobs exist only in archive files. `parts` lists all parts; `shares` divides them among Spark
    tasks.
    """

    def __init__(self, files: Sequence[ArchiveFile], tasks: int) -> None:
        self.parts = tuple(part for file in files for part in file.parts)
        least = max(WORTH_A_TASK, -(-sum(file.rows for file in files) // max(1, tasks)))
        self.shares: list[tuple[str, ...]] = []
        rows = least
        for file in files:
            if rows >= least:
                self.shares.append(())
                rows = 0
            self.shares[-1] += file.parts
            rows += file.rows


def pinned(found: OpenedStore, tasks: int) -> Pinned | None:
    archive = archive_of(found)
    return None if archive is None else Pinned(found.run(archive.value()).closed, tasks)


class SeenJobs:
    """The seqs of the jobs that a task has read from the store. Each takes eight bytes."""

    def __init__(self) -> None:
        self._seqs = array("q")

    def add(self, jobs: Sequence[Job]) -> None:
        self._seqs.extend(job.seq for job in jobs)

    def arrow(self) -> pa.Array:
        return pa.array(self._seqs, pa.int64())


class CompactedRows:
    """Reads rows of `table` from archive files, and filters them by `conditions`. `table` may have only some of its
    columns.
    """

    def __init__(self, table: Table, conditions: Sequence[Condition], rows: int) -> None:
        self._table = table
        self._schema = table.arrow()
        self._conditions = tuple(conditions)
        self._rows = rows

    def of(self, found: OpenedStore, parts: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these parts, as Arrow batches. Files that expired after planning are left out."""
        for body, mine, file in _files(found, lambda file: set(parts) & set(file.parts)):
            yield from self._batches(body, mine, file, None, None)

    def since(
        self, found: OpenedStore, known: Sequence[str], seen: SeenJobs, is_mine: Callable[[str], bool]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of jobs that were compacted after the read was planned. These are the parts that are not in
        `known`. Rows of jobs in `seen`, or with an id for which `is_mine` is false, are left out.
        """
        for body, mine, file in _files(found, lambda file: set(file.parts) - set(known)):
            yield from self._batches(body, mine, file, seen.arrow(), is_mine)

    def _batches(
        self,
        body: bytes,
        parts: set[str],
        file: ArchiveFile,
        seen: pa.Array | None,
        is_mine: Callable[[str], bool] | None,
    ) -> Iterator[pa.RecordBatch]:
        asked = ["history"] if self._table.name == EVENTS.name else list(self._table.names)
        needed = list(dict.fromkeys([*asked, "seq", "part", "id", "state"]))
        for batch in columns_of(body, needed, self._rows):
            kept = pc.and_(
                pc.is_in(batch.column("part"), pa.array(parts, pa.string())),
                pc.invert(pc.is_in(batch.column("seq"), pa.array(file.void, pa.int64()))),
            )
            if seen is not None:
                kept = pc.and_(kept, pc.invert(pc.is_in(batch.column("seq"), seen)))
            if is_mine is not None:
                kept = pc.and_(kept, pa.array([is_mine(job) for job in batch.column("id").to_pylist()], pa.bool_()))
            if self._table.name == DEAD.name:
                kept = pc.and_(kept, pc.equal(batch.column("state"), "dead"))
            made = self._passing(batch.filter(kept))
            if made.num_rows:
                yield made

    def _passing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows: Any = events_in(batch.column("history")) if self._table.name == EVENTS.name else batch
        if self._conditions and rows.num_rows:
            rows = rows.filter(passing(self._conditions, {name: rows.column(name) for name in self._table.names}))
        arrays = [rows.column(field.name).cast(field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _files(
    found: OpenedStore, wanted: Callable[[ArchiveFile], set[str]]
) -> Iterator[tuple[bytes, set[str], ArchiveFile]]:
    """Yield the content of each file that has wanted parts, the set of these parts, and the file's entry in the
    manifest. `wanted` selects the parts of a file. Each part is yielded once.

    A file that a merge has replaced is read under its new name. Raises StoreError if a listed file stays missing.
    """
    archive = archive_of(found)
    if archive is None:
        return
    done: set[str] = set()
    missing: ArchiveFile | None = None
    for _ in range(TRIES):
        missing = None
        for file in found.run(archive.value()).files:
            mine = wanted(file) - done
            if not mine:
                continue
            body = found.run(archive.get(file.key))
            if body is None:
                missing = file
                continue
            done |= mine
            yield body, mine, file
        if missing is None:
            return
    raise StoreError(
        f"{found.store.url}: {missing.key if missing else ''} is missing, and the archive's manifest names it. Restore "
        "it from a version or a copy"
    )
