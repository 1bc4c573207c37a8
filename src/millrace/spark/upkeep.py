"""Upkeep of an object store on Spark: one task for each share of a sweep, each chunk of jobs, each queue, each merge.

The driver hands out pieces (`upkeep_work.py`) and takes in what came of them; what must happen once, and in order, it
does itself. It works with the session it is given, also through Spark Connect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millrace.domain.errors import InvalidInput, QueueError
from millrace.runtime.duration import Duration, milliseconds
from millrace.spark import archive, require_spark
from millrace.spark.archive import ArchiveOutcome, Figure
from millrace.spark.bulk import store_options
from millrace.spark.drain import reason
from millrace.spark.open import opened, url_from
from millrace.spark.upkeep_work import Done, Each, SweepShareOf, Work, done, objects_of
from millrace.store.archived import ArchiveFile
from millrace.store.object.archive import GRACE
from millrace.store.object.dry import DryLook
from millrace.store.object.store import ObjectStore
from millrace.store.swept import SweepShare, Swept

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

T = TypeVar("T")
Tell = Callable[[str], None]
SHARES = 16
_ROWS = "number int not null, answer binary not null"


class UpkeepFailed(QueueError):
    """Spark could not do it. What was done is done, and asking again goes on from there."""


class SweepOutcome(msgspec.Struct, frozen=True):
    """What each share was found to need, and what is in no share."""

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
    tell: Tell = lambda _: None,
) -> SweepOutcome:
    """Look at everything in an object store, and put right what crashes have left; with `dry_run`, only look."""

    async def work(store: ObjectStore, each: Each) -> SweepOutcome:
        return await swept_in_shares(store, each, shares, dry_run, tell)

    return _on(spark, store_options(url, url_env, url_file), work)


async def swept_in_shares(
    store: ObjectStore, each: Each, shares: int, dry_run: bool = False, tell: Tell = lambda _: None
) -> SweepOutcome:
    began = await store.now()
    parts = store.shares(shares)
    tell(f"sweeping in {len(parts)} tasks")
    found = await each([SweepShareOf(share, dry_run) for share in parts])
    tell("settings, manifests, counters")
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
    """How many archived jobs of which kind there are to compact. Needs no Spark, and changes nothing."""

    _check(limit)

    async def look(store: ObjectStore) -> list[Figure]:
        before = await store.now() - milliseconds("older_than", older_than)
        return archive.figures(await store.compaction.candidates(before, limit))

    with opened(url_from(store_options(url, url_env, url_file))) as found:
        return found.run(look(objects_of(found.store)))


def expirable(
    url: str | None = None,
    older_than: Duration = "365d",
    *,
    url_env: str | None = None,
    url_file: str | None = None,
) -> list[ArchiveFile]:
    """Files all of whose jobs finished so long ago. Needs no Spark, and changes nothing."""

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
    tell: Tell = lambda _: None,
) -> ArchiveOutcome:
    """Put archived jobs that finished so long ago into Parquet files of the store's own, and out of the store."""

    _check(limit)

    async def work(store: ObjectStore, each: Each) -> ArchiveOutcome:
        before = await store.now() - milliseconds("older_than", older_than)
        return await archive.compact(store, each, before=before, limit=limit, tell=tell)

    return _on(spark, store_options(url, url_env, url_file), work)


def expire(
    spark: SparkSession,
    url: str | None = None,
    older_than: Duration = "365d",
    grace: Duration = GRACE / 1000,
    *,
    url_env: str | None = None,
    url_file: str | None = None,
    tell: Tell = lambda _: None,
) -> ArchiveOutcome:
    """Give up files of compacted jobs that all finished so long ago, and merge small ones."""

    async def work(store: ObjectStore, each: Each) -> ArchiveOutcome:
        before = await store.now() - milliseconds("older_than", older_than)
        return await archive.expire(store, each, before=before, grace=milliseconds("grace", grace), tell=tell)

    return _on(spark, store_options(url, url_env, url_file), work)


def _check(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise InvalidInput(f"limit={limit}: at least 1 job, or None for all")


def _on(spark: SparkSession, options: Mapping[str, Any], work: Callable[[ObjectStore, Each], Awaitable[T]]) -> T:
    require_spark()

    async def each(works: Sequence[Work]) -> list[Done]:
        return await asyncio.to_thread(_on_executors, spark, options, works)

    async def carry_out(store: ObjectStore) -> T:
        return await work(store, each)

    with opened(url_from(options)) as found:
        return found.run(carry_out(objects_of(found.store)))


def _on_executors(spark: SparkSession, options: Mapping[str, Any], works: Sequence[Work]) -> list[Done]:
    """A task for each piece; Spark tries a piece that fails again."""
    import pyarrow as pa

    pieces = pa.table({"number": pa.array(range(len(works)), pa.int32()), "work": [*map(msgspec.json.encode, works)]})
    try:
        frame: Any = spark.createDataFrame(pieces)
        rows = frame.coalesce(1).repartition(len(works)).mapInArrow(DoPieces(options), _ROWS).collect()
    except Exception as error:  # Spark's own, or what the bridge to its JVM makes of them
        raise UpkeepFailed(
            f"Spark gave up: {reason(str(error))}. What was done so far is kept; the same again goes on from there"
        ) from error
    answers = {row.number: msgspec.json.decode(bytes(row.answer), type=Done) for row in rows}
    return [answers[number] for number in range(len(works))]


class DoPieces:
    """What Spark calls with the pieces of one task. It travels to executors, so it holds nothing but options."""

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
