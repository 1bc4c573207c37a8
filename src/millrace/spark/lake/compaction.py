"""Compaction: many small files become few, and parts of several runs become one. What the tables say stays the same.

A run leaves a file or two per table and day. By itself the pipeline folds files of about the same size once there are
several, so each row is rewritten a few times in its life, and never more than a bounded amount at a time; the command
folds whatever is small.
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
from millrace.spark.lake.manifest import File, Manifest
from millrace.spark.lake.place import Place
from millrace.spark.lake.tables import TABLES, Table

FULL = 128 << 20  # bytes: a file of this size is left alone
MANY = 8  # runs that left files of about one size
AT_ONCE = 256 << 20  # bytes that are rewritten by the way
ROWS_PER_TASK = 2_000_000
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Compacted:
    manifest: Manifest
    before: int = 0  # files
    after: int = 0


def crowded(manifest: Manifest, many: int = MANY, most: int = AT_ONCE) -> dict[str, list[File]]:
    """Files worth folding by the way: of several runs, of about one size, of one table and day; a bounded amount."""
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


def small(manifest: Manifest) -> dict[str, list[File]]:
    """All that is small, where there is more than one of it."""
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
    place: Place,
    spark: SparkSession,
    choose: Callable[[Manifest], dict[str, list[File]]] = small,
    tell: Tell = print,
) -> Compacted | None:
    """Fold the files that `choose` names, and publish that by one step. None: there is no lake yet."""
    with place.writing() as newest:
        if newest is None:
            return None
        chosen = choose(newest)
        return fold(place, spark, newest, chosen, tell) if chosen else Compacted(newest)


def fold(place: Place, spark: SparkSession, newest: Manifest, chosen: dict[str, list[File]], tell: Tell) -> Compacted:
    """Of the writer who holds the lake: rewrite these files, and publish the outcome."""
    run = newest.run + 1
    directory = place.directory_for(run)
    new: dict[str, list[File]] = {}
    try:
        with settings(spark):
            for name, files in chosen.items():
                began = time.monotonic()
                new[name] = _folded(place, spark, newest, TABLES[name], files, directory, run)
                seconds = time.monotonic() - began
                tell(f"run {run}: {len(files):,} files of {name} became {len(new[name]):,} in {seconds:.1f} s")
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
    place: Place, spark: SparkSession, newest: Manifest, table: Table, files: list[File], directory: Path, run: int
) -> list[File]:
    rows = read(spark, place.path, files, table.ddl)
    if table.name == "pending" and len(files) < len(newest.of("pending")):
        rows = newest_of_each(rows)  # what is closed here may be open in a file that is not folded with it
    elif table.fold is not None:
        rows = table.fold(rows)
    sent = write(_arranged(rows, table, files), directory, table.name, by=() if table.day_by is None else (DAY,))
    after = written(place.path, directory / table.name, run)
    require_all(after, sent, directory / table.name)
    if table.fold is None:
        require_same(files, after, table.name)
    return after


def _arranged(rows: DataFrame, table: Table, files: list[File]) -> DataFrame:
    """Few files, each with the rows of one day, or of neighbouring jobs."""
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
    """Into how many files the greatest day is to be divided."""
    sizes: dict[str | None, int] = defaultdict(int)
    for file in files:
        sizes[file.day] += file.bytes
    return max(1, -(-max(sizes.values()) // FULL))
