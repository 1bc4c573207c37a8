"""Drains on Spark: a backlog run by workers in Spark's own processes, on every store that they can reach."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millrace import App, DrainFailed, InvalidInput, StoreError
from millrace.app.spark_drain import DrainWorker
from millrace.domain.request import Query
from millrace.spark.drain.driver import parallelism, reason
from millrace.spark.drain.plan import OUTCOME
from tests.narrowing import checked_cast
from tests.spark.conftest import Place
from tests.spark.programs.drain_shop import app, crash, fail, judge, ship, stumble

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    file = tmp_path / "ledger"
    file.touch()
    return str(file)


def put(place: Place, *specs: Any) -> None:
    with place.open() as opened:
        opened.run(opened.store.enqueue(list(specs)))


def states(place: Place) -> Counter[str]:
    with place.open() as opened:
        return Counter(job.state.value for job in opened.run(opened.store.find(Query(limit=1000))).jobs)


def ran(ledger: str) -> list[int]:
    return [int(line.split()[0]) for line in Path(ledger).read_text().splitlines()]


def test_a_backlog_is_run_by_workers_in_sparks_processes(spark: SparkSession, place: Place, ledger: str):
    many = 20 if place.name == "s3" else 60
    put(place, *(ship.spec(n, ledger) for n in range(many)))
    put(place, fail.spec(many, ledger), stumble.spec(many + 1, ledger))
    put(place, *(judge.spec(f"s{n}", float(n)) for n in range(-3, 12)))

    with app.on_spark(spark, url=place.url, queues=["orders", "readings"], partitions=2) as drain:
        outcome = drain.wait(240)
        after = drain.progress()

    assert outcome.completed == many + 1 + 12
    assert (outcome.total("dead"), outcome.total("retried")) == (1 + 3, 1)
    assert Counter(ran(ledger)) == Counter([*range(many + 1), many + 1, many + 1])
    assert states(place) == {"completed": many + 13, "dead": 4}
    assert [worker.partition for worker in outcome.workers] == [0, 1]
    assert {worker.ended for worker in outcome.workers} == {"empty"}
    assert len({worker.pid for worker in outcome.workers}) == 2
    assert (after.completed, after.dead, after.ready, after.running, after.workers) == (many + 13, 4, 0, 0, 0)
    with place.open() as opened:
        assert opened.run(opened.store.workers()) == []  # nothing of the drain is left behind


def test_stop_lets_running_jobs_end_and_gives_back_the_rest(spark: SparkSession, sqlite: Place, ledger: str):
    put(sqlite, *(ship.spec(n, ledger, 60.0 if n else 0.5) for n in range(50)))

    drain = app.on_spark(spark, url=sqlite.url, queues="orders", partitions=2, slots=3)
    with pytest.raises(TimeoutError, match="it continues"):
        drain.wait(0.01)
    until(lambda: len(ran(ledger)) >= 6)
    assert drain.progress().running >= 5
    drain.stop(2)
    outcome = drain.wait(120)

    assert {worker.ended for worker in outcome.workers} == {"stopped"}
    assert (outcome.completed, outcome.total("released")) == (1, len(ran(ledger)) - 1)
    assert states(sqlite) == {"completed": 1, "waiting": 49}
    assert drain.done


def test_a_drain_ends_after_so_long_or_so_many(spark: SparkSession, sqlite: Place, ledger: str):
    put(sqlite, *(ship.spec(n, ledger) for n in range(40)))

    few = app.on_spark(spark, url=sqlite.url, queues="orders", partitions=2, max_jobs=15).wait(240)
    assert (few.completed, {worker.ended for worker in few.workers}) == (15, {"max_jobs"})
    assert len(ran(ledger)) == 15

    short = app.on_spark(spark, url=sqlite.url, queues="orders", partitions=2, until="stopped", duration="8s").wait(240)
    assert {worker.ended for worker in short.workers} == {"stopped"}
    done = len(ran(ledger))
    assert short.completed > 0 and states(sqlite) == Counter(completed=done, waiting=40 - done)


def test_a_process_that_dies_is_replaced_and_its_jobs_run_again(spark: SparkSession, sqlite: Place, ledger: str):
    put(sqlite, crash.spec(1, ledger), *(ship.options(queue="crash").spec(n, ledger) for n in range(2, 6)))

    outcome = app.on_spark(spark, url=sqlite.url, queues="crash", partitions=1, lease=2).wait(240)

    assert [(worker.ended, worker.attempt) for worker in outcome.workers] == [("empty", 1)]
    assert states(sqlite) == {"completed": 5}
    assert Counter(ran(ledger))[1] == 2 and set(ran(ledger)) == {1, 2, 3, 4, 5}


def test_a_drain_that_spark_cancels_loses_nothing(spark: SparkSession, sqlite: Place, ledger: str):
    """Spark kills the processes of a job that it cancels. They give back what they can before; leases do the rest."""
    put(sqlite, *(ship.options(retry=["50ms"]).spec(n, ledger, 0.0 if n % 4 else 4.0) for n in range(8)))
    cancelled = app.on_spark(spark, url=sqlite.url, queues="orders", partitions=1, slots=4, lease=3)
    until(lambda: len(ran(ledger)) >= 4)

    spark.sparkContext.cancelJobsWithTag(cancelled.id)
    with pytest.raises(DrainFailed, match="No job is lost"):
        cancelled.wait(240)
    next_one = app.on_spark(spark, url=sqlite.url, queues="orders", partitions=1, until="stopped")
    until(lambda: states(sqlite) == {"completed": 8})
    next_one.stop()
    next_one.wait(120)

    assert set(ran(ledger)) == set(range(8))


def until(condition: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


# ── what is refused ───────────────────────────────────────────────────────────────────────────


def test_what_executors_lack_is_said_in_one_sentence(spark: SparkSession, sqlite: Place):
    drain = app.on_spark(spark, url=sqlite.url, address="no_such_shop:app", partitions=1)

    with pytest.raises(InvalidInput, match="the module 'no_such_shop' cannot be imported on"):
        drain.wait(240)


def test_a_store_that_spark_cannot_reach_is_refused_before_anything_starts(spark: SparkSession, tmp_path: Path):
    with pytest.raises(InvalidInput, match="memory:// lives inside one process"):
        app.on_spark(spark, url="memory://")
    with pytest.raises(StoreError, match="there is no database"):
        app.on_spark(spark, url=f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(InvalidInput, match="a drain has no option 'slot'"):
        app.on_spark(spark, slot=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="partitions must be a whole number from 1 up"):
        app.on_spark(spark, url="sqlite:////a.db", partitions=0)
    with pytest.raises(InvalidInput, match="has no tasks"):
        App("sqlite:////a.db").on_spark(spark, address="a:b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it gave no reason"),
        ("[X] Job 7 cancelled part of cancelled job tags drain-1.\n\tat org.apache", "[X] Job 7 cancelled part of"),
        ("An exception was thrown. See below.\n  File 'a'\nOSError: full\n\nValueError: b\n", "OSError: full"),
        ("Traceback\nModuleNotFoundError: No module named 'millrace'\n", "has no millrace. Install it there"),
    ],
)
def test_why_spark_gave_up_is_said_in_one_sentence(text: str, said: str):
    assert said in reason(text) and "\n" not in reason(text)


def test_there_is_a_partition_for_each_core_that_spark_has(spark: SparkSession):
    assert parallelism(spark) == 2


def test_the_rows_that_come_back_are_as_declared(spark: SparkSession):
    from pyspark.sql.types import StructType

    assert checked_cast(StructType, StructType.fromDDL(OUTCOME)).names == list(DrainWorker.__struct_fields__)
