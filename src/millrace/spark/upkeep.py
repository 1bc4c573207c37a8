"""Maintenance of an object store on Spark: sweeps, and the compaction, merging and expiry of archived jobs.

The driver divides the work into pieces (`upkeep_work.py`), runs each piece in a Spark task, and collects the results.
Work that must be done once, and in order, is done by the driver itself. All functions use the session that the caller
passes, also through Spark Connect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millrace.app.duration import Duration, milliseconds
from millrace.domain.errors import InvalidInput, QueueError
from millrace.spark import require_spark
from millrace.spark.archive import operations as archive
from millrace.spark.archive.operations import ArchiveOutcome, Figure
from millrace.spark.bulk import store_options
from millrace.spark.drain.driver import reason
from millrace.spark.open import opened, url_from
from millrace.spark.upkeep_work import Each, SweepShareOf, UpkeepDone, Work, done, objects_of
from millrace.store.archived import ArchiveFile
from millrace.store.object.archive.files import GRACE
from millrace.store.object.dry import DryLook
from millrace.store.object.store import ObjectStore
from millrace.store.sweep_report import SweepShare, Swept

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

T = TypeVar("T")
OnProgress = Callable[[str], None]
SHARES = 16
_ROWS = "number int not null, answer binary not null"


class UpkeepFailed(QueueError):
    """Spark could not finish the maintenance. Completed work is kept, and the next call continues from there."""


class SweepOutcome(msgspec.Struct, frozen=True):
    """The repairs of a sweep. `shares` has the repairs in each share of the store; `rest` has those in objects of no
    share.
    """

    shares: tuple[tuple[SweepShare, Swept], ...]
    rest: Swept
    dry_run: bool = False

    @property
    def total(self) -> Swept:
        total = self.rest
        for _, swept in self.shares:
            total = swept.plus(total)
        return total


def sweep(
    spark: SparkSession,
    url: str | None = None,
    *,
    shares: int = SHARES,
    dry_run: bool = False,
    url_env: str | None = None,
    url_file: str | None = None,
    on_progress: OnProgress = lambda _: None,
) -> SweepOutcome:
    """Check a whole object store, repair what crashes left behind, and return the repairs. With `dry_run`, change
    nothing and return the repairs that are necessary.
    """

    async def work(store: ObjectStore, each: Each) -> SweepOutcome:
        return await swept_in_shares(store, each, shares, dry_run, on_progress)

    return _on(spark, store_options(url, url_env, url_file), work)


async def swept_in_shares(
    store: ObjectStore, each: Each, shares: int, dry_run: bool = False, on_progress: OnProgress = lambda _: None
) -> SweepOutcome:
    began = await store.now()
    parts = store.shares(shares)
    on_progress(f"sweeping in {len(parts)} tasks")
    found = await each([SweepShareOf(share, dry_run) for share in parts])
    on_progress("settings, manifests, counters")
    rest = await (DryLook(store).sweep_rest if dry_run else store.sweep_rest)(began)
    return SweepOutcome(
        tuple((share, one.swept or Swept()) for share, one in zip(parts, found, strict=True)), rest, dry_run
    )


def compactable(
    url: str | None = None,
    older_than: Duration = 0,
    limit: int | None = None,
    *,
    url_env: str | None = None,
    url_file: str | None = None,
) -> list[Figure]:
    """Return how many archived jobs a compaction would move now, and how many it cannot move yet, by queue and state.
    This reads the jobs, changes nothing, and needs no Spark.
    """

    _check(limit)

    async def look(store: ObjectStore) -> list[Figure]:
        before = await store.now() - milliseconds("older_than", older_than)
        return await archive.preview(store, before, limit)

    with opened(url_from(store_options(url, url_env, url_file))) as found:
        return found.run(look(objects_of(found.store)))


def expirable(
    url: str | None = None,
    older_than: Duration = "365d",
    *,
    url_env: str | None = None,
    url_file: str | None = None,
) -> list[ArchiveFile]:
    """Return the archive files in which every job finished more than `older_than` ago. This changes nothing, and needs
    no Spark.
    """

    async def look(store: ObjectStore) -> list[ArchiveFile]:
        before = await store.now() - milliseconds("older_than", older_than)
        return archive.expiring(await store.compacted.value(), before)

    with opened(url_from(store_options(url, url_env, url_file))) as found:
        return found.run(look(objects_of(found.store)))


def compact(
    spark: SparkSession,
    url: str | None = None,
    older_than: Duration = 0,
    limit: int | None = None,
    *,
    url_env: str | None = None,
    url_file: str | None = None,
    on_progress: OnProgress = lambda _: None,
) -> ArchiveOutcome:
    """Move archived jobs that finished more than `older_than` ago into Parquet files in the store. Move at most `limit`
    jobs, and return the result.
    """

    _check(limit)

    async def work(store: ObjectStore, each: Each) -> ArchiveOutcome:
        before = await store.now() - milliseconds("older_than", older_than)
        return await archive.compact(store, each, before=before, limit=limit, on_progress=on_progress)

    return _on(spark, store_options(url, url_env, url_file), work)


def expire(
    spark: SparkSession,
    url: str | None = None,
    older_than: Duration = "365d",
    grace: Duration = GRACE / 1000,
    *,
    url_env: str | None = None,
    url_file: str | None = None,
    on_progress: OnProgress = lambda _: None,
) -> ArchiveOutcome:
    """Remove a file from the archive if all its jobs finished more than `older_than` ago, and merge small files. The
    removed files are deleted after `grace`.
    """

    async def work(store: ObjectStore, each: Each) -> ArchiveOutcome:
        before = await store.now() - milliseconds("older_than", older_than)
        return await archive.expire(
            store, each, before=before, grace=milliseconds("grace", grace), on_progress=on_progress
        )

    return _on(spark, store_options(url, url_env, url_file), work)


def _check(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise InvalidInput(f"limit={limit}: at least 1 job, or None for all")


def _on(spark: SparkSession, options: Mapping[str, Any], work: Callable[[ObjectStore, Each], Awaitable[T]]) -> T:
    require_spark()

    async def each(works: Sequence[Work]) -> list[UpkeepDone]:
        return await asyncio.to_thread(_on_executors, spark, options, works)

    async def carry_out(store: ObjectStore) -> T:
        return await work(store, each)

    with opened(url_from(options)) as found:
        return found.run(carry_out(objects_of(found.store)))


def _on_executors(spark: SparkSession, options: Mapping[str, Any], works: Sequence[Work]) -> list[UpkeepDone]:
    """Run each piece of work in a Spark task, and return the results in the same order. Spark retries a failed task.
    Raises UpkeepFailed if Spark gives up.
    """
    import pyarrow as pa

    pieces = pa.table({"number": pa.array(range(len(works)), pa.int32()), "work": [*map(msgspec.json.encode, works)]})
    try:
        frame: Any = spark.createDataFrame(pieces)
        rows = frame.coalesce(1).repartition(len(works)).mapInArrow(DoPieces(options), _ROWS).collect()
    except Exception as error:  # errors of Spark, or of the bridge to its JVM
        raise UpkeepFailed(
            f"Spark gave up: {reason(str(error))}. Completed work is kept; run it again to continue"
        ) from error
    answers = {row.number: msgspec.json.decode(bytes(row.answer), type=UpkeepDone) for row in rows}
    return [answers[number] for number in range(len(works))]


class DoPieces:
    """The function that Spark calls in each task, with the pieces of work of this task. Spark sends this object to
    executors, so it holds only options.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number, piece in zip(*batch.to_pydict().values(), strict=True):
                work: Work = msgspec.json.decode(piece, type=Work)
                with opened(url_from(self._options)) as found:
                    answer = msgspec.json.encode(found.run(done(found.store, work)))
                yield pa.RecordBatch.from_pydict({"number": pa.array([number], pa.int32()), "answer": [answer]})
