"""Compacted jobs beside those of the store, as one table.

The plan pins the files that are closed: what they hold is nowhere else, whatever happens meanwhile, so tasks of their
own read them. What is compacted after that is the business of whoever reads the jobs that the store has: first those,
then the manifest, then the rows of files that the plan did not know, but for the jobs just seen. A job is removed from
the store after the manifest names its file, so it is met in one place or in both, never in none.

Files come and go; parts stay. So a plan names parts, and whoever reads them asks the manifest which file has them now.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from millrace.domain.errors import StoreError
from millrace.domain.job import Job
from millrace.spark.archive_rows import columns_of, events_in
from millrace.spark.filters import Condition, passing
from millrace.spark.open import Opened
from millrace.spark.schema import DEAD, EVENTS
from millrace.spark.table import Table
from millrace.store.archived import ArchiveFile

if TYPE_CHECKING:
    from millrace.store.object.archive import Archive

Compacted = Literal["also", "only", "without"]
WORTH_A_TASK = 50_000  # jobs
TRIES = 5


def archive_of(found: Opened) -> Archive | None:
    """None on stores that have none."""
    return getattr(found.store, "compacted", None)


class Pinned:
    """What is in files alone: shares of it, each a list of parts, and all of its parts."""

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


def pinned(found: Opened, tasks: int) -> Pinned | None:
    archive = archive_of(found)
    return None if archive is None else Pinned(found.run(archive.value()).closed, tasks)


class Seen:
    """Jobs that were met in the store, by seq: eight bytes each."""

    def __init__(self) -> None:
        self._seqs = array("q")

    def add(self, jobs: Sequence[Job]) -> None:
        self._seqs.extend(job.seq for job in jobs)

    def arrow(self) -> pa.Array:
        return pa.array(self._seqs, pa.int64())


class CompactedRows:
    """Rows of a table out of files; the table may have been pruned."""

    def __init__(self, table: Table, conditions: Sequence[Condition], rows: int) -> None:
        self._table = table
        self._schema = table.arrow()
        self._conditions = tuple(conditions)
        self._rows = rows

    def of(self, found: Opened, parts: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """What has expired since it was planned is left out."""
        for body, mine, file in _files(found, lambda file: set(parts) & set(file.parts)):
            yield from self._batches(body, mine, file, None, None)

    def since(
        self, found: Opened, known: Sequence[str], seen: Seen, is_mine: Callable[[str], bool]
    ) -> Iterator[pa.RecordBatch]:
        """What was compacted after those parts were pinned, or is about to be: of ids that are ours, the unseen."""
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


def _files(found: Opened, wanted: Callable[[ArchiveFile], set[str]]) -> Iterator[tuple[bytes, set[str], ArchiveFile]]:
    """Bodies of the files that have wanted parts, each part once; where one was replaced meanwhile, by what it was."""
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
