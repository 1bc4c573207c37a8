"""The feed as a stream: nothing twice, nothing left out, whatever stops it."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.domain.feed import parse
from millrace.domain.job import Spec
from millrace.domain.request import Claim
from millrace.spark.options import read_options
from millrace.spark.schema import EVENTS, JOBS
from millrace.spark.stream import EventsLost, EventsReplaced, FeedStreamReader, JobStreamReader, cursor_in, offset
from millrace.store.protocol import Store
from tests.narrowing import checked_cast
from tests.spark.conftest import Place
from tests.spark.filled import all_events


class Lake:
    """A stream into Parquet, with a checkpoint; each run goes on where the last one stopped."""

    def __init__(self, spark: Any, place: Place, folder: Path, **options: str) -> None:
        self._spark, self._place, self._folder = spark, place, folder
        self._options = {"url": place.url, "table": "events", **options}

    def run(self, **options: str) -> list[int]:
        """Read what there is now; the rows of each micro-batch."""
        frame = self._spark.readStream.format("millrace").options(**self._options, **options).load()
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .option("path", str(self._folder / "events"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def events(self) -> list[tuple[int, int]]:
        rows = self._spark.read.schema("seq bigint, n int").parquet(str(self._folder / "events")).collect()
        return sorted((row.seq, row.n) for row in rows)


async def work(store: Store, name: str, jobs: int) -> None:
    await store.enqueue([Spec(f"{name}-{number}", "t") for number in range(jobs)])
    claimed = await store.claim(Claim(("default",), "w", limit=jobs))
    await store.settle([(job.lease, Change.completed()) for job in claimed])


def fed(place: Place) -> list[tuple[int, int]]:
    with place.open() as found:
        return sorted((event.seq, event.n) for event in found.run(all_events(found.store)))


@contextmanager
def busy(place: Place) -> Iterator[threading.Event]:
    """Jobs come and go all the while, from another thread; set the event to end it."""
    enough = threading.Event()

    def run() -> None:
        with place.open() as found:
            for number in range(500):
                found.run(work(found.store, f"busy-{number}", 3))
                if enough.wait(0.2):
                    return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield enough
    finally:
        enough.set()
        thread.join()


def test_a_stream_that_is_stopped_and_started_again_writes_exactly_the_feed(spark, place: Place, tmp_path: Path):
    with place.open() as found:
        found.run(work(found.store, "before", 20))
    lake = Lake(spark, place, tmp_path, maxEventsPerTrigger="100")
    with busy(place):
        for _ in range(3):
            lake.run()
    with place.open() as found:
        found.run(work(found.store, "after", 5))
    lake.run()

    assert lake.events() == fed(place) != []


def test_micro_batches_are_no_larger_than_asked(spark, sqlite: Place, tmp_path: Path):
    with sqlite.open() as found:
        found.run(work(found.store, "x", 20))

    assert Lake(spark, sqlite, tmp_path, maxEventsPerTrigger="25").run() == [25, 25, 10]


def test_a_stream_may_begin_at_the_end(spark, sqlite: Place, tmp_path: Path):
    with sqlite.open() as found:
        found.run(work(found.store, "old", 5))
        lake = Lake(spark, sqlite, tmp_path, startingCursor="latest")
        lake.run()
        found.run(found.store.enqueue([Spec("new", "t")]))
        lake.run()

    assert len(lake.events()) == 1


def test_a_stream_that_was_overtaken_fails_and_says_by_how_much_or_goes_on(spark, sqlite: Place, tmp_path: Path):
    with sqlite.open() as found:
        found.run(work(found.store, "read", 5))
        lake = Lake(spark, sqlite, tmp_path)
        lake.run()
        found.run(work(found.store, "lost", 4))
        found.run(found.store.control("store", "", {"keep_events": 0}))
        while found.run(found.store.maintain()).events:
            pass
        found.run(found.store.control("store", "", {"keep_events": None}))
        found.run(work(found.store, "kept", 3))

        with pytest.raises(Exception, match="12 events after cursor 15 were trimmed"):
            lake.run()
        lake.run(failOnDataLoss="false")

    assert len(lake.events()) == 15 + 9


def stream(place: Place, **options: str) -> FeedStreamReader:
    return FeedStreamReader(read_options({"url": place.url, "table": "events", **options}, "stream"), EVENTS)


def pairs(reader: FeedStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    batches = [batch for share in reader.partitions(start, end) for batch in reader.read(share)]
    return [(row["seq"], row["n"]) for batch in batches for row in batch.to_pylist()]


def test_a_batch_that_is_planned_again_is_the_same(place: Place):
    """Spark has written the offsets down, and asks anew after a crash."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    with place.open() as found:
        found.run(work(found.store, "x", 10))
    reader = stream(place, partitions="3")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    first = pairs(reader, start, end)
    with place.open() as found:
        found.run(work(found.store, "y", 10))

    assert pairs(stream(place, partitions="2"), start, end) == first
    assert sorted(first) == fed(place)[:30]
    assert reader.partitions(end, end) == []


def test_what_comes_after_the_trigger_is_left_for_the_next_run(sqlite: Place):
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    with sqlite.open() as found:
        found.run(work(found.store, "x", 4))
        reader = stream(sqlite)
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(start, ReadAllAvailable())
        found.run(work(found.store, "y", 4))

    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert parse(cursor_in(end)).at == 12


def test_nothing_new_is_no_batch(place: Place):
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    with place.open() as found:
        found.run(work(found.store, "x", 4))
    reader = stream(place)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(1_000))

    assert reader.latestOffset(end, ReadMaxRows(1_000)) == end == reader.latestOffset(end, ReadAllAvailable())


def test_a_task_that_is_overtaken_says_so_or_goes_on(sqlite: Place):
    with sqlite.open() as found:
        found.run(work(found.store, "x", 4))
        strict, lenient = stream(sqlite), stream(sqlite, failOnDataLoss="false")
        [share] = strict.partitions(offset("0"), offset(found.run(found.store.events("end", 1)).cursor))
        found.run(found.store.control("store", "", {"keep_events": 0}))
        found.run(found.store.maintain(limit=5))

    with pytest.raises(EventsLost, match="5 events after cursor 0 were trimmed"):
        [*strict.read(share)]
    assert sum(batch.num_rows for batch in lenient.read(share)) == 7


def test_a_stream_whose_store_was_put_back_fails_and_says_what_to_do(sqlite: Place, tmp_path: Path):
    """Its offsets name events by more than their numbers, which are used again."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    file, copy = Path(sqlite.url.partition("?")[0].removeprefix("sqlite:///")), tmp_path / "backup.db"
    with sqlite.open() as found:
        found.run(work(found.store, "kept", 2))
    shutil.copy(file, copy)
    with sqlite.open() as found:
        found.run(work(found.store, "lost", 2))
    reader = stream(sqlite, failOnDataLoss="false")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    [share] = reader.partitions(start, end)
    for old in file.parent.glob(f"{file.name}*"):
        old.unlink()
    shutil.copy(copy, file)
    with sqlite.open() as found:
        found.run(work(found.store, "new", 5))

    for ask in (
        lambda: reader.latestOffset(end, ReadAllAvailable()),
        lambda: reader.partitions(start, end),
        lambda: [*reader.read(share)],
    ):
        with pytest.raises(EventsReplaced, match="Begin with a new checkpoint"):
            ask()


def test_a_checkpoint_of_another_kind_is_refused():
    for wrong in ({"cursor": "1"}, {"version": 2, "cursor": "1"}, {"version": 1}, {"index": 3}):
        with pytest.raises(ValueError, match="the checkpoint holds an offset that this version cannot read"):
            cursor_in(wrong)


def test_only_events_and_jobs_are_read_as_a_stream():
    from millrace.spark.source import MillraceSource

    source = MillraceSource({"url": "sqlite:////x.db", "table": "dead"})
    with pytest.raises(ValueError, match="the tables events and jobs can be read as a stream, not dead"):
        source.streamReader(source.schema())


# ── lag ───────────────────────────────────────────────────────────────────────────────────────────


def test_progress_reports_say_how_far_the_stream_is_behind(spark, sqlite: Place, tmp_path: Path):
    with sqlite.open() as found:
        found.run(work(found.store, "x", 20))
    frame = spark.readStream.format("millrace").options(url=sqlite.url, table="events", maxEventsPerTrigger="25").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    started = query.start()
    started.awaitTermination()

    reports = [json.loads(one["sources"][0]["latestOffset"]) for one in started.recentProgress if one["numInputRows"]]
    assert [one["events_behind"] for one in reports] == [60, 35, 10]
    assert all(one["seconds_behind"] >= 0 for one in reports)
    assert {one["cursor"] for one in reports} == {
        cursor_in(json.loads(started.lastProgress["sources"][0]["endOffset"]))
    }


def test_the_lag_is_that_of_the_oldest_event_that_is_not_read(place: Place):
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    with place.open() as found:
        found.run(work(found.store, "x", 10))
    reader = stream(place)
    assert reader.reportLatestOffset() is None
    start = reader.initialOffset()

    end = reader.latestOffset(start, ReadMaxRows(10))
    first = checked_cast(dict, reader.reportLatestOffset())
    again = reader.latestOffset(start, ReadMaxRows(10))  # as after a failure: nothing was read
    same = checked_cast(dict, reader.reportLatestOffset())
    end = reader.latestOffset(reader.latestOffset(end, ReadMaxRows(10)), ReadAllAvailable())
    last = checked_cast(dict, reader.reportLatestOffset())
    reader.latestOffset(end, ReadMaxRows(10))
    none = checked_cast(dict, reader.reportLatestOffset())

    assert again != end
    assert first["events_behind"] == same["events_behind"] >= 10  # in a bucket, an estimate
    assert 0 < last["events_behind"] <= first["events_behind"]
    assert (none["events_behind"], none["seconds_behind"]) == (0, 0)
    assert none["cursor"] == cursor_in(end)


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────


def job_rows(reader: JobStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, str]]:
    batches = [batch for share in reader.partitions(start, end) for batch in reader.read(share)]
    return sorted((row["id"], row["state"]) for batch in batches for row in batch.to_pylist())


def test_a_micro_batch_of_jobs_has_each_job_that_changed_once_in_its_latest_state(place: Place):
    from pyspark.sql.streaming.datasource import ReadMaxRows

    with place.open() as found:
        reader = JobStreamReader(read_options({"url": place.url, "table": "jobs", "partitions": "3"}, "stream"), JOBS)
        start = reader.initialOffset()
        found.run(work(found.store, "done", 7))  # three events each
        found.run(found.store.enqueue([Spec("later", "t")]))
        middle = reader.latestOffset(start, ReadMaxRows(1_000))
        found.run(found.store.cancel(["later"]))
        end = reader.latestOffset(middle, ReadMaxRows(1_000))

    done = [(f"done-{number}", "completed") for number in range(7)]
    assert job_rows(reader, start, middle) == [*done, ("later", "cancelled")]  # its state when it is read
    assert job_rows(reader, middle, end) == [("later", "cancelled")]
    assert reader.partitions(end, end) == []


def test_a_stream_of_jobs_skips_those_that_are_gone_and_limits_what_the_driver_holds(sqlite: Place):
    from pyspark.sql.streaming.datasource import ReadMaxRows

    reader = JobStreamReader(read_options({"url": sqlite.url, "table": "jobs"}, "stream"), JOBS)
    start = reader.initialOffset()
    with sqlite.open() as found:
        found.run(work(found.store, "x", 3))
        found.run(found.store.delete(["x-1"]))
    end = reader.latestOffset(start, ReadMaxRows(1_000))

    assert job_rows(reader, start, end) == [("x-0", "completed"), ("x-2", "completed")]
    assert reader.getDefaultReadLimit() == ReadMaxRows(100_000)


def test_a_table_that_is_merged_by_a_stream_of_jobs_equals_the_table_of_the_store(spark, sqlite: Place, tmp_path: Path):
    latest: dict[str, tuple[int, str]] = {}

    def merge(frame: Any, _batch: int) -> None:
        rows = frame.collect()
        assert len({row.id for row in rows}) == len(rows)
        latest.update((row.id, (row.events, row.state)) for row in rows)

    def run() -> None:
        options = {"url": sqlite.url, "table": "jobs", "columns": "id,events,state", "maxEventsPerTrigger": "10"}
        frame = spark.readStream.format("millrace").options(**options).load()
        query = frame.writeStream.foreachBatch(merge).option("checkpointLocation", str(tmp_path / "at"))
        query.trigger(availableNow=True).start().awaitTermination()

    with sqlite.open() as found:
        found.run(work(found.store, "x", 9))
        found.run(found.store.enqueue([Spec("y", "t")]))
        run()
        found.run(found.store.cancel(["y"]))
        run()

    assert latest == {row.id: (row.events, row.state) for row in sqlite.read(spark, "jobs").collect()}


# ── event time ────────────────────────────────────────────────────────────────────────────────────


def test_a_watermark_on_the_time_of_events_closes_windows(spark, sqlite: Place, tmp_path: Path):
    """The store's clock cannot be set here, so the windows are milliseconds; each closes when a later event comes."""
    from pyspark.sql import functions as F

    def run() -> None:
        events = spark.readStream.format("millrace").options(url=sqlite.url, table="events").load()
        windows = events.withWatermark("at", "1 millisecond").groupBy(F.window("at", "10 milliseconds"), "kind")
        query = windows.count().writeStream.format("parquet").outputMode("append").option("path", str(tmp_path / "out"))
        query.option("checkpointLocation", str(tmp_path / "at")).trigger(availableNow=True).start().awaitTermination()

    def closed() -> dict[str, int]:
        rows = spark.read.parquet(str(tmp_path / "out")).groupBy("kind").sum("count").collect()
        return {row.kind: row["sum(count)"] for row in rows}

    with sqlite.open() as found:
        found.run(work(found.store, "early", 4))
        run()
        found.run(elapsed(found.store, 50))
        found.run(found.store.enqueue([Spec("late", "t")]))
        run()

    assert closed() == {"enqueued": 4, "claimed": 4, "completed": 4}  # the window of the last event is open


async def elapsed(store: Store, milliseconds: int) -> None:
    end = await store.now() + milliseconds
    while await store.now() < end:
        await asyncio.sleep(0.005)
