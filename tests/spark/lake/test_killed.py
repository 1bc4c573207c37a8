"""Real processes, killed for real, 20 times each: 0 events are lost, 0 are doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.domain.event import Kind
from millrace.domain.job import Spec
from millrace.spark.lake import Lake, LakePlace, TakeRequest, take
from millrace.spark.lake.audit import audit
from tests.spark.conftest import Place
from tests.spark.filled import all_events
from tests.spark.lake.conftest import quietly
from tests.spark.lake.history import ListFeed, an_event, table
from tests.spark.lake.test_exactly_once import DyingShare, part_of

TIMES = 20
COMMITS = 9  # of a take: the events, and eight derived tables

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3_600)]


def put(place: Place, number: int) -> None:
    with place.open() as opened:
        store = opened.store
        opened.run(store.enqueue([Spec(f"job-{number}-{part}", "send", "mail", group="g") for part in range(50)]))
        opened.run(store.cancel([f"job-{number}-1", f"job-{number - 1}-2"]))


def require_every_event_once(spark: SparkSession, place: Place, lake: str) -> None:
    with place.open() as opened:
        expected = sorted((event.seq, event.n) for event in opened.run(all_events(opened.store)))
    found = Lake(lake, spark)
    assert sorted((row["seq"], row["n"]) for row in found.events().select("seq", "n").collect()) == expected
    assert audit(found).sound


def start(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.programs.killed_take", *arguments],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> int:
    code = process.wait(1_200)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the JVM that it started
    return code


@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_drivers_that_are_killed_before_a_commit(
    spark: SparkSession, sqlite: Place, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    log = tmp_path / "log"
    lake = str(tmp_path / "lake") if kind == "directory" else request.getfixturevalue("bucket").address("killed").url
    for number in range(1, TIMES + 1):
        put(sqlite, number)
        code = end(start(log, sqlite.url, lake, str((number - 1) % COMMITS + 1)))
        assert code == -signal.SIGKILL, log.read_text("utf-8", "replace")[-4000:]

    assert end(start(log, sqlite.url, lake, "0")) == 0, log.read_text("utf-8", "replace")[-4000:]
    require_every_event_once(spark, sqlite, lake)


def test_two_drivers_at_once(spark: SparkSession, sqlite: Place, tmp_path: Path) -> None:
    lake, log = str(tmp_path / "lake"), tmp_path / "log"
    LakePlace(lake).prepare()
    lost = 0
    for number in range(1, TIMES + 1):
        put(sqlite, number)
        both = [start(log, sqlite.url, lake, "0") for _ in range(2)]
        codes = sorted(end(process) for process in both)
        said = log.read_text("utf-8", "replace")[-4000:]
        assert codes in ([0, 0], [0, 1]), said  # the loser of a race ends with an error
        lost += codes == [0, 1]
        require_every_event_once(spark, sqlite, lake)
    assert LakePlace(lake).require().state.take == TIMES
    print(f"{lost} of {TIMES} pairs met at the commit")


def test_executors_that_are_killed_in_the_middle(spark: SparkSession, empty: LakePlace, tmp_path: Path) -> None:
    history = [an_event(1, Kind.ENQUEUED, seq=seq) for seq in range(1, TIMES * 5 + 1)]
    feed = ListFeed(spark, history)
    feed.end = 0
    for number in range(TIMES):
        died = tmp_path / f"died-{number}"
        feed.shares = lambda stretch, died=died: [DyingShare(table(part_of(feed, stretch)), died)]  # type: ignore[method-assign, misc]
        feed.end += 5
        take(empty, spark, feed, TakeRequest(groups=False), quietly)
        assert died.exists()

    lake = Lake(empty.location.root, spark)
    assert sorted(row["seq"] for row in lake.events().collect()) == list(range(1, TIMES * 5 + 1))
    assert audit(lake).sound
