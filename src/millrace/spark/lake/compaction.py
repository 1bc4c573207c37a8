"""Compaction merges small files of a lake into larger ones, and partial rows into complete ones. The tables' contents
do not change.

Each pipeline run adds one or two files per day to a table. When there are several files of similar size, the pipeline
merges them, so each row is rewritten only a few times. The amount of data that one pipeline run merges is limited. The
command `millrace pipeline compact` merges all small files.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.spark.lake.attempts import newest_of_each
from millrace.spark.lake.files import DAY, read, require_all, require_same, settings, write, written
from millrace.spark.lake.manifest import File, LakeManifest
from millrace.spark.lake.place import LakePlace
from millrace.spark.lake.tables import TABLES, LakeTable

FULL = 128 << 20  # bytes; larger files are not merged
MANY = 8  # runs with files of similar size before they are merged
AT_ONCE = 256 << 20  # bytes that a pipeline run rewrites at most
ROWS_PER_TASK = 2_000_000
OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class Compacted:
    manifest: LakeManifest
    before: int = 0  # files
    after: int = 0


def crowded(manifest: LakeManifest, many: int = MANY, most: int = AT_ONCE) -> dict[str, list[File]]:
    """Return the files that a pipeline run should merge, by table. Files are merged if they are of the same day and of
    similar size, and come from at least `many` pipeline runs. The total is at most `most` bytes.
    """
    found: dict[str, list[File]] = defaultdict(list)
    room = most
    for name in TABLES:
        classes: dict[tuple[str | None, int], list[File]] = defaultdict(list)
        for file in manifest.of(name):
            if file.bytes < FULL:
                classes[file.day, int(math.log(file.bytes + 1, 8))].append(file)
        for files in classes.values():
            size = sum(file.bytes for file in files)
            if len({file.run for file in files}) >= many and size <= room:
                room -= size
                found[name] += files
    return dict(found)


def small(manifest: LakeManifest) -> dict[str, list[File]]:
    """Return all small files by table. A small file is left out if its day has no other."""
    found: dict[str, list[File]] = {}
    for name in TABLES:
        days: dict[str | None, list[File]] = defaultdict(list)
        for file in manifest.of(name):
            if file.bytes < FULL:
                days[file.day].append(file)
        several = [file for files in days.values() if len(files) > 1 for file in files]
        if several:
            found[name] = several
    return found


def compact(
    place: LakePlace,
    spark: SparkSession,
    choose: Callable[[LakeManifest], dict[str, list[File]]] = small,
    on_progress: OnProgress = print,
) -> Compacted | None:
    """Merge the files that `choose` selects, and publish them atomically. Return None if there is no lake yet."""
    with place.writing() as newest:
        if newest is None:
            return None
        chosen = choose(newest)
        return fold(place, spark, newest, chosen, on_progress) if chosen else Compacted(newest)


def fold(
    place: LakePlace, spark: SparkSession, newest: LakeManifest, chosen: dict[str, list[File]], on_progress: OnProgress
) -> Compacted:
    """Merge these files and publish the result. The caller must hold the lake's lock."""
    run = newest.run + 1
    directory = place.directory_for(run)
    new: dict[str, list[File]] = {}
    try:
        with settings(spark):
            for name, files in chosen.items():
                began = time.monotonic()
                new[name] = _folded(place, spark, newest, TABLES[name], files, directory, run)
                seconds = time.monotonic() - began
                on_progress(f"run {run}: {len(files):,} files of {name} became {len(new[name]):,} in {seconds:.1f} s")
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    files_of = {
        name: (
            *(file for file in newest.files.get(name, ()) if file not in set(chosen.get(name, ()))),
            *new.get(name, ()),
        )
        for name in TABLES
    }
    manifest = newest.following("compact", files_of)
    place.publish(manifest)
    return Compacted(manifest, sum(map(len, chosen.values())), sum(map(len, new.values())))


def _folded(
    place: LakePlace,
    spark: SparkSession,
    newest: LakeManifest,
    table: LakeTable,
    files: list[File],
    directory: Path,
    run: int,
) -> list[File]:
    rows = read(spark, place.path, files, table.ddl)
    if table.name == "pending" and len(files) < len(newest.of("pending")):
        rows = newest_of_each(rows)  # keep closed rows: they may be open in a file that is not merged
    elif table.fold is not None:
        rows = table.fold(rows)
    sent = write(_arranged(rows, table, files), directory, table.name, by=() if table.day_by is None else (DAY,))
    after = written(place.path, directory / table.name, run)
    require_all(after, sent, directory / table.name)
    if table.fold is None:
        require_same(files, after, table.name)
    return after


def _arranged(rows: DataFrame, table: LakeTable, files: list[File]) -> DataFrame:
    """Return the rows, partitioned so that Spark writes few files. In a table divided by days, the rows of a day are
    together.
    """
    tasks = max(1, -(-sum(file.rows for file in files) // ROWS_PER_TASK), -(-sum(file.bytes for file in files) // FULL))
    if table.day_by is None:
        return rows.coalesce(tasks) if table.fold is None else rows.repartition(tasks, "seq")
    days = {file.day for file in files}
    with_day = rows.withColumn(DAY, table.day())
    if len(days) == 1 or tasks == 1:
        return with_day.repartition(tasks) if len(days) == 1 else with_day.repartition(1, DAY)
    return with_day.repartition(
        max(tasks, min(len(days), 8)), DAY, F.pmod(F.xxhash64(table.day_by), F.lit(_pieces(files)))
    )


def _pieces(files: list[File]) -> int:
    """Return into how many files the day with the most data is divided."""
    sizes: dict[str | None, int] = defaultdict(int)
    for file in files:
        sizes[file.day] += file.bytes
    return max(1, -(-max(sizes.values()) // FULL))
