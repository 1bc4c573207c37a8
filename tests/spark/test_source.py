"""The source on every store: what Spark reads is what the store says."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.errors import CursorExpired, QueueError
from millrace.domain.job import Spec, State
from millrace.spark.schema import DEAD, EVENTS, JOBS, TABLES, WORKERS
from tests.spark.conftest import Place
from tests.spark.filled import ERROR, all_events, all_jobs, fill


def instant(at: int | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at / 1000, UTC)


def utc(row: Any) -> dict[str, Any]:
    """Spark hands instants out in the local time of this process, without saying so."""
    return {
        name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.asDict().items()
    }


def test_every_table_holds_what_the_store_says(spark, place: Place):
    with place.open() as found:
        found.run(fill(found.store))
        events = found.run(all_events(found.store))
        jobs = found.run(all_jobs(found.store))
        [worker] = found.run(found.store.workers())

    rows = {(row.seq, row.n): utc(row) for row in place.read(spark, "events").collect()}
    assert len(events) == len(rows) > 50
    for event in events:
        error = event.error
        assert rows[event.seq, event.n] == {
            **{name: getattr(event, name) for name in ("job", "seq", "generation", "n", "queue", "task", "state")},
            **{name: getattr(event, name) for name in ("attempt", "failures", "worker", "lease", "reason")},
            "kind": event.kind.value,
            "at": instant(event.at),
            "delay_ms": event.delay,
            "duration_ms": event.duration,
            "error_type": error and error.type,
            "error_message": error and error.message,
            "error_traceback": error and error.traceback,
        }

    by_id = {row.id: utc(row) for row in place.read(spark, "jobs").collect()}
    assert by_id.keys() == {job.id for job in jobs} and len(jobs) == 21
    for job in jobs:
        row = by_id[job.id]
        same = ("id", "seq", "generation", "queue", "task", "priority", "attempt", "failures", "stalls", "worker")
        assert {name: row[name] for name in same} == {name: getattr(job, name) for name in same}
        spec = ("group", "key", "max_attempts", "serde", "headers")
        assert {name: row[name] for name in spec} == {name: getattr(job.spec, name) for name in spec}
        assert (row["state"], row["archived"], row["after"]) == (job.state.value, job.archived, list(job.spec.after))
        assert (bytes(row["payload"]), row["result"] and bytes(row["result"])) == (job.payload, job.result)
        for name in ("enqueued_at", "available_at", "started_at", "finished_at", "result_until"):
            assert row[name] == instant(getattr(job, name)), name

    dead = {row.id: row for row in place.read(spark, "dead").collect()}
    assert dead.keys() == {job.id for job in jobs if job.state is State.DEAD} != set()
    assert {(row.error_message, row.reason, len(row.attempts)) for row in dead.values()} == {
        (ERROR.message, "explicit_fail", 1)
    }

    [known] = place.read(spark, "workers").collect()
    assert (known.id, known.queues, known.slots, known.alive) == ("w-1", list(worker.info.queues), 4, True)


def test_an_empty_store_has_empty_tables(spark, place: Place):
    with place.open():
        pass

    for name, table in TABLES.items():
        frame = place.read(spark, name)
        assert frame.schema == table.spark()
        assert frame.collect() == []


def test_tasks_share_the_work_and_nothing_is_read_twice(spark, place: Place):
    from pyspark.sql import functions as F

    with place.open() as found:
        found.run(fill(found.store, 60))
        events, jobs = found.run(all_events(found.store)), found.run(all_jobs(found.store))

    for table, expected in (("events", len(events)), ("jobs", len(jobs))):
        frame = place.read(spark, table, partitions=3, batchRows=7)
        by_task = frame.groupBy(F.spark_partition_id().alias("task")).count().collect()
        assert 2 <= len(by_task) <= 3
        assert sum(row["count"] for row in by_task) == expected
        assert frame.select("seq", *(["n"] if table == "events" else [])).distinct().count() == expected


def test_only_the_columns_that_were_asked_for_come_in_that_order(spark, sqlite: Place):
    with sqlite.open() as found:
        found.run(fill(found.store))

    frame = sqlite.read(spark, "jobs", columns="state, id")
    assert frame.columns == ["state", "id"]
    assert ("dead", "job-1") in [tuple(row) for row in frame.collect()]
    given = spark.read.format("millrace").schema("job string, n int").options(url=sqlite.url, table="events").load()
    assert sorted(tuple(row) for row in given.where("job = 'job-1'").collect()) == [("job-1", n) for n in (1, 2, 3)]


def test_a_read_begins_and_ends_where_it_is_told(spark, place: Place):
    with place.open() as found:
        store = found.store
        found.run(store.enqueue([Spec(f"a-{n}", "t") for n in range(5)]))
        first = found.run(store.event_spans(None, 1))[-1].until
        found.run(store.enqueue([Spec(f"b-{n}", "t") for n in range(5)]))
        second = found.run(store.event_spans(None, 1))[-1].until
        found.run(store.enqueue([Spec(f"c-{n}", "t") for n in range(5)]))
        at = found.run(store.now()) + 3_600_000

    def jobs(**options: str) -> set[str]:
        return {row.job[0] for row in place.read(spark, "events", **options).collect()}

    assert jobs(startingCursor=first) == {"b", "c"}
    assert jobs(startingCursor=first, endingCursor=second) == {"b"}
    assert jobs(endingCursor=first) == {"a"}
    assert jobs(startingCursor="2020-01-01") == {"a", "b", "c"}
    assert jobs(startingCursor=datetime.fromtimestamp(at / 1000, UTC).isoformat()) == set()


def test_the_url_may_come_from_the_environment_or_a_file_and_stays_out_of_the_plan(spark, sqlite: Place, tmp_path):
    with sqlite.open() as found:
        found.run(fill(found.store, 5))
    file = tmp_path / "where"
    file.write_text(sqlite.url + "\n")

    frame = spark.read.format("millrace").options(urlFile=str(file), table="jobs").load()

    assert frame.count() == 6
    assert "jobs.db" not in frame._jdf.queryExecution().toString()
    with pytest.raises(Exception, match=r"NOT_SET_ANYWHERE \(option urlEnv\) is not set"):
        spark.read.format("millrace").options(urlEnv="NOT_SET_ANYWHERE", table="jobs").load().count()


def test_spark_finds_the_source_by_itself(spark, sqlite: Place):
    """A session in which nobody has registered it: the package pyspark_millrace is enough."""
    fresh = spark.newSession()

    assert sqlite.read(fresh, "workers").count() == 0


def test_a_read_is_of_one_moment(sqlite: Place, directory: Place):
    """Planned once, on the driver: what happens while tasks read is not seen by some of them and missed by others."""
    for place in (sqlite, directory):
        reader = reader_of(place, "events", partitions="2")
        with place.open() as found:
            found.run(fill(found.store))
            planned = reader.partitions()
            before = found.run(all_events(found.store))
            found.run(found.store.enqueue([Spec("late", "t")]))

        rows = [row for share in planned for batch in reader.read(share) for row in batch.to_pylist()]

        assert [(row["seq"], row["n"]) for row in rows] == [(event.seq, event.n) for event in before]


def test_a_task_that_is_run_again_reads_the_same(sqlite: Place):
    with sqlite.open() as found:
        found.run(fill(found.store))
    reader = reader_of(sqlite, "events", partitions="3")
    _, share, _ = reader.partitions()

    assert [*reader.read(share)] == [*reader.read(share)] != []


def test_what_retention_takes_away_during_a_read_is_an_error(sqlite: Place):
    with sqlite.open() as found:
        found.run(fill(found.store))
        reader = reader_of(sqlite, "events")
        planned = reader.partitions()
        found.run(found.store.control("store", "", {"keep_events": 0}))
        while found.run(found.store.maintain()).events:
            pass

    with pytest.raises(CursorExpired, match="retention deleted"):
        [*reader.read(planned[0])]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "memory://", "table": "jobs"}, "memory:// lives inside one process"),
        ({"url": "sqlite:///jobs.db", "table": "jobs"}, "Write the absolute path: sqlite:///"),
        ({"url": "sqlite:////nowhere/jobs.db", "table": "jobs"}, "there is no database /nowhere/jobs.db"),
        ({"url": "file:///nowhere", "table": "jobs"}, "there is no directory /nowhere"),
        ({"url": "sqlite:////x.db", "table": "job"}, "there is no table 'job'. Did you mean 'jobs'"),
        ({"url": "sqlite:////x.db"}, "name the table"),
        ({"table": "jobs"}, "name the store by one of the options url, urlEnv and urlFile; none was given"),
        ({"url": "sqlite:////x.db", "table": "jobs", "columns": "id,stat"}, "no column 'stat'. Did you mean 'state'"),
        ({"url": "sqlite:////x.db", "table": "jobs", "startingCursor": "5"}, "are for the table events"),
        ({"url": "sqlite:////x.db", "table": "events", "startingCursor": "latest"}, "is for streams"),
    ],
)
def test_what_cannot_be_read_is_refused_with_words(options: dict[str, str], words: str):
    from millrace.spark.source import MillraceSource

    def plan() -> None:
        source = MillraceSource(options)
        source.reader(source.schema()).partitions()

    with pytest.raises(QueueError) as refused:
        plan()

    assert words in str(refused.value)


def test_a_schema_that_changes_a_type_is_refused(sqlite: Place):
    from pyspark.sql.types import StringType, StructType

    from millrace.spark.source import MillraceSource

    source = MillraceSource({"url": sqlite.url, "table": "jobs"})
    with pytest.raises(ValueError, match="column seq of jobs is bigint, not string"):
        source.reader(StructType().add("seq", StringType()))


def test_small_spans_are_put_together_until_they_are_worth_a_task():
    from millrace.domain.request import EventSpan
    from millrace.spark.reader import merged

    spans = [EventSpan(str(n), str(n + 1), 30) for n in range(5)]

    assert merged(spans, 50) == [EventSpan("0", "2", 60), EventSpan("2", "4", 60), EventSpan("4", "5", 30)]
    assert merged(spans, 30) == spans
    assert merged(spans[:1], 50) == spans[:1]


def test_a_relative_url_is_made_absolute_for_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from millrace.spark.open import absolute_url

    monkeypatch.chdir(tmp_path)
    assert absolute_url("sqlite:///a b.db?durability=relaxed") == f"sqlite:///{tmp_path}/a%20b.db?durability=relaxed"
    assert absolute_url("sqlite:////x/y.db") == "sqlite:////x/y.db"
    assert absolute_url("s3://bucket/x") == "s3://bucket/x"
    assert os.getcwd() == str(tmp_path)


def test_every_column_has_its_values():
    """Each column of each table can be made from a record: none was forgotten when one was added."""
    from millrace.domain.event import Event, Kind
    from millrace.domain.job import Job
    from millrace.domain.request import WorkerInfo, WorkerRecord
    from millrace.spark.batches import Batches

    job = Job(Spec("x", "t"), 1, 1, State.DEAD, 5, 6)
    event = Event("x", 1, 1, 1, Kind.ENQUEUED, 5, "q", "t", "waiting")
    record = WorkerRecord(WorkerInfo("w"), 5, 6, 7, True)
    for table, one in ((JOBS, job), (DEAD, job), (EVENTS, event), (WORKERS, record)):
        batch = Batches(table).batch([one, one])
        assert batch is not None
        assert batch.schema == table.arrow()
        batch.validate(full=True)


def reader_of(place: Place, table: str, **options: str) -> Any:
    from millrace.spark.source import MillraceSource

    source = MillraceSource({"url": place.url, "table": table, **options})
    return source.reader(source.schema())
