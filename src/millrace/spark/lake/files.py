"""The files of a lake's tables. Spark writes them; the driver counts their rows and makes them durable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from millrace.spark.lake.errors import LakeBroken
from millrace.spark.lake.manifest import File
from millrace.spark.lake.place import sync

COMPRESSION = "zstd"
DAY = "day"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default has no statistics to skip by
    "spark.sql.maxConcurrentOutputFileWriters": "32",  # rows of several days are written without a sort
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",  # a task per file costs too much
    "spark.sql.adaptive.enabled": "true",
}


@contextmanager
def settings(spark: SparkSession, **more: str) -> Iterator[None]:
    """Set the session settings that the lake's queries need, and restore the previous ones at the end of the block."""
    wanted = {**_SETTINGS, **{name.replace("_", "."): value for name, value in more.items()}}
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def write(rows: DataFrame, to: Path, table: str, *, by: Sequence[str] = ()) -> int:
    """Write the rows as Parquet into the directory `to`/`table`, with a subdirectory for each value of the columns in
    `by`. Return the number of rows that Spark counted.
    """
    seen = Observation()
    writer = rows.observe(seen, F.count(F.lit(1)).alias("rows")).write.mode("error").option("compression", COMPRESSION)
    (writer.partitionBy(*by) if by else writer).parquet(str(to / table))
    return int(seen.get.get("rows") or 0)


def written(root: Path, directory: Path, run: int) -> list[File]:
    """Flush the files below a directory to disk, and return them. Empty files are left out."""
    import pyarrow.parquet as pq

    found: list[File] = []
    for path in sorted(directory.rglob("*.parquet")):
        rows = pq.read_metadata(path).num_rows
        if not rows:
            continue
        sync(path)
        sync(path.parent)
        found.append(File(str(path.relative_to(root)), rows, path.stat().st_size, run, _value(path, DAY)))
    return found


def require_all(files: Sequence[File], rows: int, directory: Path) -> None:
    """Raise LakeBroken unless the files have `rows` rows in total. Rows are missing if executors on other machines
    wrote to their own disks.
    """
    found = sum(file.rows for file in files)
    if found != rows:
        raise LakeBroken(
            f"Spark wrote {rows:,} rows to {directory}, and {found:,} are there. Is it one directory for all machines? "
            "Executors must see the lake's under the same path, e.g. on a network file system. Nothing was changed"
        )


def _value(path: Path, column: str) -> str | None:
    for part in path.parts:
        if part.startswith(f"{column}="):
            return part.partition("=")[2]
    return None


def read(spark: SparkSession, root: Path, files: Sequence[File], ddl: str) -> DataFrame:
    """Return the rows of these files. Columns that were added after a file was written are null."""
    if not files:
        return spark.createDataFrame([], ddl)
    paths = [str(root / file.path) for file in files]
    with settings(spark):
        return spark.read.schema(ddl).parquet(*paths)


def check(root: Path, tables: Mapping[str, Sequence[File]]) -> list[str]:
    """Return a message for each file of the lake that is missing or has another length."""
    wrong: list[str] = []
    for table, files in tables.items():
        for file in files:
            path = root / file.path
            if not path.is_file():
                wrong.append(f"{file.path} of table {table} is gone, and {file.rows:,} rows with it")
            elif path.stat().st_size != file.bytes:
                wrong.append(f"{file.path} of table {table} has {path.stat().st_size:,} bytes, not {file.bytes:,}")
    return wrong


def require_same(before: Sequence[File], after: Sequence[File], what: str) -> None:
    """Raise LakeBroken if a rewrite changed the number of rows. The files of such a rewrite are not published."""
    one, other = sum(file.rows for file in before), sum(file.rows for file in after)
    if one != other:
        raise LakeBroken(f"rewriting {what} would have turned {one:,} rows into {other:,}. Nothing was changed")
