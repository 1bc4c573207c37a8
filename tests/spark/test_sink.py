"""DataFrames and streams into stores, through Spark, with tasks that die."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from millrace.cli.root import PLACES
from millrace.spark.sink.ids import job_id
from tests.spark.conftest import Place
from tests.spark.sinking import APP, jobs_in, numbers, payloads

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def wide() -> Column:
    """Spark passes rows on by 64 kB: short ones would all be held back until a task that dies in the middle is over."""
    return F.repeat(F.lit("x"), 1_000).alias("wide")


def write(frame: DataFrame, place: Place, mode: str = "append", **options: Any) -> None:
    given = {"url": place.url, "task": "send", **{name: str(value) for name, value in options.items()}}
    frame.write.format("millrace").mode(mode).options(**given).save()


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """So that a task has enqueued some of its rows while it still waits for others."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "100")
    yield
    spark.conf.set(name, str(before))


class Failing:
    """Rows pass through it until the middle; there the first attempt of a task ends, one way or the other.

    It ends when jobs are in the store already. What it saw of them is in `folder`, a file for each attempt.
    """

    def __init__(self, place: Place, folder: Path, rows: int) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._url, self._rows = place.url, rows

    def __call__(self, frame: DataFrame) -> DataFrame:
        url, folder, half = self._url, str(self.folder), self._rows // 2

        def passing(batches: Any) -> Any:
            import os
            import signal
            import time

            from pyspark import TaskContext

            from millrace.spark.open import opened

            def wait_for_jobs() -> int:
                with opened(url) as found:
                    for _ in range(600):
                        counts = found.run(found.store.count())
                        if there := sum(one.waiting for one in counts):
                            return there
                        time.sleep(0.05)
                return 0

            task = TaskContext.get()
            assert task is not None
            mark = f"{folder}/{task.partitionId()}-{task.attemptNumber()}"
            passed = 0
            for batch in batches:
                if task.attemptNumber() == 0 and passed >= half:
                    with open(mark, "w") as file:
                        file.write(str(wait_for_jobs()))
                    if task.partitionId() % 2:
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise RuntimeError("the first attempt ends here")
                passed += batch.num_rows
                yield batch
            with open(mark, "w") as file:
                file.write("whole")

        return frame.mapInArrow(passing, frame.schema)

    def attempts(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.folder.iterdir()}


# ── batches ───────────────────────────────────────────────────────────────────────────────────


def test_a_dataframe_becomes_jobs(spark: SparkSession, place: Place):
    frame = spark.range(6).select(
        F.col("id").alias("n"),
        F.when(F.col("id") % 2 == 0, "mail").alias("queue"),
        F.timestamp_seconds(F.lit(0)).alias("at"),
        F.create_map(F.lit("k"), F.col("id") / 2).alias("m"),
    )

    write(frame, place, queueColumn="queue", priority=3, idColumns="n")

    found = jobs_in(place)
    assert {job.id for job in found} == {job_id("send", n) for n in range(6)}
    assert {job.queue for job in found} == {"mail", "default"}
    assert {job.priority for job in found} == {3}
    assert sorted(payloads(job.spec for job in found), key=lambda one: one["n"]) == [
        {"n": n, "at": "1970-01-01T00:00:00Z", "m": {"k": n / 2}} for n in range(6)
    ]


def crash(spark: SparkSession, place: Place, folder: Path, rows: int, partitions: int = 2, **options: Any) -> None:
    """Write so many rows, all of whose tasks end in the middle when they are tried first."""
    failing = Failing(place, folder, rows // partitions)
    frame = spark.range(0, rows, 1, partitions).select(F.col("id").cast("int").alias("n"), wide())

    write(failing(frame), place, payloadColumns="n", **options)

    attempts = failing.attempts()
    assert sorted(attempts) == [f"{partition}-{attempt}" for partition in range(partitions) for attempt in (0, 1)]
    assert all(int(attempts[f"{partition}-0"]) > 0 for partition in range(partitions))  # they died with jobs in
    assert numbers(jobs_in(place)) == list(range(rows))


@pytest.mark.usefixtures("small_batches")
def test_tasks_that_die_and_run_again_enqueue_nothing_twice(spark: SparkSession, place: Place, tmp_path: Path):
    rows = 5_000 if place.name == "sqlite" else 500

    crash(spark, place, tmp_path / "marks", rows, batchSize=100)


@pytest.mark.usefixtures("small_batches")
def test_a_sink_killed_in_the_middle_of_its_work_enqueues_nothing_twice(spark: SparkSession, sqlite: Place):
    """Here the sink's own process dies: the serde of the task kills it at row 700 of its first attempt."""
    frame = spark.range(0, 1_000, 1, 1).select(F.col("id").alias("n"), (F.col("id") == 700).alias("kills"))

    write(frame, sqlite, task="die", app=APP, batchSize=100)

    assert numbers(jobs_in(sqlite)) == list(range(1_000))


@pytest.mark.usefixtures("small_batches")
def test_rejected_rows_are_in_the_table_once_when_tasks_die(spark: SparkSession, sqlite: Place, tmp_path: Path):
    failing = Failing(sqlite, tmp_path / "marks", 1_000)
    frame = spark.range(0, 2_000, 1, 2).select(
        "id", wide(), F.when(F.col("id") % 10 == 0, float("nan")).otherwise(0.5).alias("f")
    )

    write(
        failing(frame),
        sqlite,
        onInvalid="reject",
        rejectPath=tmp_path / "rejects",
        payloadColumns="id,f",
        batchSize=100,
    )

    assert len(failing.attempts()) == 4
    rejects = spark.read.parquet(str(tmp_path / "rejects"))
    assert sorted(row.id for row in rejects.collect()) == list(range(0, 2_000, 10))
    assert rejects.where("reject_reason like '%column ''f'' is nan%'").count() == 200
    assert len(jobs_in(sqlite)) == 1_800


def test_a_write_done_again_under_its_name_adds_nothing(spark: SparkSession, sqlite: Place):
    """What a scheduler does with a job that failed: run all of it again."""
    frame = spark.range(0, 40, 1, 2).select(F.col("id").alias("n"))

    for name in ("2026-11-15", "2026-11-15", "2026-11-16"):
        write(frame, sqlite, writeId=name)

    assert numbers(jobs_in(sqlite)) == sorted([*range(40), *range(40)])


# ── refusals ──────────────────────────────────────────────────────────────────────────────────


def refusal(frame: DataFrame, place: Place, **options: Any) -> str:
    with pytest.raises(PySparkException) as refused:
        write(frame, place, **options)
    return str(refused.value)


def test_what_cannot_work_is_said_before_any_task(spark: SparkSession, sqlite: Place):
    frame = spark.range(3)

    overwriting = refusal(frame, sqlite, mode="overwrite")
    advice = re.search(r"millrace (\w+) NAME", overwriting)
    assert "jobs can only be added: write with mode('append')" in overwriting
    assert advice is not None and advice[1] in PLACES  # there is such a command
    assert "Did you mean 'queueColumn'?" in refusal(frame, sqlite, queueColum="id")
    assert "memory:// lives inside one process" in refusal(frame, Place("memory", "memory://"))
    assert "option writeId must not be empty" in refusal(frame, sqlite, writeId=" ")
    assert "no task 'nothing'" in refusal(frame, sqlite, task="nothing", app=APP)
    assert jobs_in(sqlite) == []


def test_an_unfit_row_fails_the_write_and_is_named(spark: SparkSession, sqlite: Place):
    frame = spark.createDataFrame([(1, '{"n": 1}'), (2, "no json")], "n int, p string").coalesce(1)

    told = refusal(frame, sqlite, payloadColumn="p")

    assert "row 1 of partition 0 (n=2, p='no json') cannot become a job: column 'p' is not JSON" in told
    assert jobs_in(sqlite) == []


# ── streams ───────────────────────────────────────────────────────────────────────────────────


class Stream:
    """A stream of files, one for each micro-batch, into a store; each run goes on from the checkpoint."""

    def __init__(self, spark: SparkSession, place: Place, folder: Path, files: int, rows: int) -> None:
        self._spark, self._place, self.folder = spark, place, folder
        self.rows = files * rows
        (folder / "in").mkdir()
        for number in range(files):
            path = folder / "in" / f"{number:03}.json"
            numbers = range(number * rows, (number + 1) * rows)
            path.write_text("".join(f'{{"n": {n}, "file": {number}, "wide": "{"x" * 1_000}"}}\n' for n in numbers))
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    def start(self, fails_at: int | None = None, **options: Any) -> Any:
        """`fails_at`: the file in the middle of which every attempt of its task ends."""
        source = self._spark.readStream.schema("n int, file int, wide string").option("maxFilesPerTrigger", "1")
        frame = source.json(str(self.folder / "in"))
        if fails_at is not None:
            frame = failing_in(frame, fails_at, self._place.url, self.folder / f"died-in-{fails_at}")
        given = {"url": self._place.url, "task": "send", "batchSize": "50", "payloadColumns": "n"}
        given["checkpointLocation"] = f"{self.folder}/at"
        return frame.writeStream.format("millrace").options(**given, **options).trigger(availableNow=True).start()


def failing_in(frame: DataFrame, file: int, url: str, mark: Path) -> DataFrame:
    """`mark` is made when it fails while jobs of this very file are in the store."""
    made = str(mark)

    def passing(batches: Any) -> Any:
        import time

        from pyspark import TaskContext

        from millrace.spark.open import opened

        task = TaskContext.get()
        assert task is not None
        passed = 0
        for batch in batches:
            if passed >= 200 and batch.column("file")[0].as_py() == file:
                before = batch.column("n")[0].as_py() - passed
                if task.attemptNumber() == 0:
                    with opened(url) as found:
                        for _ in range(300):
                            if sum(one.waiting for one in found.run(found.store.count())) > before:
                                open(made, "w").close()
                                break
                            time.sleep(0.05)
                raise RuntimeError("the query ends here")
            passed += batch.num_rows
            yield batch

    return frame.mapInArrow(passing, frame.schema)


def run_and_die(stream: Stream, times: int) -> None:
    """The query dies in the middle of a micro-batch, another one each time, and then comes to its end."""
    for number in range(times):
        with pytest.raises(PySparkException):
            stream.start(fails_at=number).awaitTermination()
        assert (stream.folder / f"died-in-{number}").exists()
    stream.start().awaitTermination()


@pytest.mark.usefixtures("small_batches")
def test_a_stream_that_dies_and_is_started_again_enqueues_each_row_once(
    spark: SparkSession, place: Place, tmp_path: Path
):
    times = 2 if place.name == "sqlite" else 1
    stream = Stream(spark, place, tmp_path, times + 1, 400)

    run_and_die(stream, times)

    assert numbers(jobs_in(place)) == list(range(stream.rows))


def test_a_stream_can_only_add(spark: SparkSession, sqlite: Place, tmp_path: Path):
    stream = spark.readStream.format("rate").load().groupBy("value").count()
    sink = stream.writeStream.format("millrace").options(
        url=sqlite.url, task="t", checkpointLocation=str(tmp_path / "at")
    )

    with pytest.raises(PySparkException, match="jobs can only be added|overwrite|complete"):
        sink.outputMode("complete").trigger(availableNow=True).start().awaitTermination()
    assert jobs_in(sqlite) == []


# ── full size ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("small_batches")
def test_a_hundred_thousand_rows_with_tasks_that_die(spark: SparkSession, place: Place, tmp_path: Path):
    """5,000 on the object stores (done-when 2)."""
    rows = 100_000 if place.name == "sqlite" else 5_000

    crash(spark, place, tmp_path / "marks", rows, 4, batchSize=1_000 if place.name == "sqlite" else 200)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("small_batches")
def test_a_stream_that_dies_ten_times(spark: SparkSession, place: Place, tmp_path: Path):
    stream = Stream(spark, place, tmp_path, 11, 500)

    run_and_die(stream, 10)

    assert numbers(jobs_in(place)) == list(range(stream.rows))


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("small_batches")
def test_a_stream_that_is_stopped_ten_times(spark: SparkSession, place: Place, tmp_path: Path):
    """Wherever it is then: `stop` waits for nothing."""
    stream = Stream(spark, place, tmp_path, 12, 500)

    for stops in range(10):
        query = stream.start()
        seen = len(jobs_in(place))
        while query.isActive and len(jobs_in(place)) < seen + 100 * (stops % 3 + 1):
            pass
        query.stop()
    stream.start().awaitTermination()

    assert numbers(jobs_in(place)) == list(range(stream.rows))
