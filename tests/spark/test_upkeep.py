"""Upkeep of object stores, as it is typed, on Spark: sweep, compaction, expiry. What each does is tested without Spark
in tests/object (test_sweep_shares, test_archive, test_archive_crashes)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import Row, SparkSession

from millrace.cli import exits
from millrace.domain.errors import InvalidInput
from millrace.spark import bulk, upkeep
from millrace.spark.lake.feed import StoreFeed
from tests.cli.stage import Stage
from tests.spark.conftest import Place
from tests.spark.filled import fill

COMPACTABLE = 8  # of twenty: dead and cancelled ones; results of the completed are kept for an hour


@pytest.fixture
def cli(shared_session: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    monkeypatch.chdir(tmp_path)
    return Stage(monkeypatch)


def filled(place: Place) -> None:
    with place.open() as opened:
        opened.run(fill(opened.store))
        opened.run(opened.store.archive([f"job-{number}" for number in range(20)]))


def table(spark: SparkSession, place: Place, name: str = "jobs", **options: str) -> list[Row]:
    return sorted(place.read(spark, name, partitions=2, **options).collect(), key=lambda row: row.seq)


def test_archived_jobs_become_files_and_the_tables_stay_as_they_are(spark: SparkSession, cli: Stage, s3: Place) -> None:
    place = s3  # on a directory it is the example of docs/spark-upkeep.md
    filled(place)
    before = table(spark, place)
    command = ("pipeline", "compact-archive", "--url", place.url)

    shown = cli(*command, "--limit", "11", "--json").json
    done = cli(*command, "--yes", "--json").json

    assert (shown["found"] + shown["not_yet"], shown["dry_run"]) == (11, True)
    assert (done["found"], done["compacted"], done["not_yet"], done["files"]) == (16, COMPACTABLE, 8, 1)
    assert table(spark, place) == before
    assert len(table(spark, place, compacted="without")) == len(before) - COMPACTABLE
    assert place.read(spark, "events", compacted="only").where("kind = 'archived'").count() == COMPACTABLE


def test_expired_files_go_after_somebody_agreed(spark: SparkSession, cli: Stage, directory: Place) -> None:
    filled(directory)
    upkeep.compact(spark, directory.url)
    command = ("pipeline", "expire-archive", "--url", directory.url, "--older-than", "0s", "--grace", "0s")

    shown = cli(*command)
    assert len(table(spark, directory, compacted="only")) == COMPACTABLE
    done = cli(*command, "--yes")

    assert bulk.select(spark, directory.url, "true", "unarchive").count() == 8, "the others cannot be acted on"
    assert StoreFeed(spark, url=directory.url).jobs().count() == 13, "an audit would take them for come back"
    assert "8 jobs would be deleted. Nothing was changed; use --yes to do it." in shown.err
    assert shown.out.splitlines()[1].startswith("archive/files/")
    assert "jobs_expired\t8" in done.out and "files_deleted\t1" in done.out
    assert table(spark, directory, compacted="only") == []


def test_a_sweep_in_shares_repairs_and_says_what(spark: SparkSession, cli: Stage, directory: Place) -> None:
    filled(directory)
    folder = Path(urlsplit(directory.url).path)
    lost = sorted((folder / "done").rglob("*job-*"))[:5]
    assert len(lost) == 5
    for file in lost:
        file.unlink()
    long_ago = time.time() - 3600
    for path in folder.rglob("*"):
        os.utime(path, (long_ago, long_ago))

    command = ("pipeline", "sweep", "--url", directory.url, "--shares", "2")
    dry = cli(*command, "--dry-run", "--json").json
    done = cli(*command[:-1], "64")
    again = cli(*command, "--json").json

    assert dry["dry_run"] and dry["repaired"]["index_restored"] == 5
    assert [len(share["shards"]) for share in dry["shares"]] == [8, 8]
    assert "index_restored\t5" in done.out and "in 16 shares" in done.err
    assert "this store has 16 shards, which limits the number of shares" in done.err
    assert again["repaired"] == {} and again["looked_at"] > 20
    assert all(map(Path.exists, lost))


def test_what_has_nothing_to_do_says_why(directory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = Stage(monkeypatch)
    filled(directory)

    young = cli("pipeline", "compact-archive", "--url", directory.url, "--older-than", "1h")
    empty = cli("pipeline", "expire-archive", "--url", directory.url)

    assert "No archived job finished more than 1h ago. Archive jobs first" in young.err
    assert "or there are no files" in empty.err
    assert "There is nothing to do now." in young.err and "There is nothing to do now." in empty.err


def test_stores_that_need_none_of_it_say_so(sqlite: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = Stage(monkeypatch)  # no session: nobody starts a JVM to say no
    for command in ("sweep", "compact-archive", "expire-archive"):
        ran = cli.refused("pipeline", command, "--url", sqlite.url)
        assert ran.code == exits.USAGE and "sqlite:// does not need it" in ran.err
    nowhere = cli.refused("pipeline", "sweep", "--url", f"file://{tmp_path}/nowhere")
    assert nowhere.code == exits.STORE and "there is no directory" in nowhere.err
    both = cli.refused("pipeline", "compact-archive", "--url", f"file://{tmp_path}", "--yes", "--dry-run")
    assert both.code == exits.USAGE and "--yes and --dry-run cannot be used together" in both.err
    with pytest.raises(InvalidInput, match="sqlite:// needs no such maintenance"):
        upkeep.compactable(sqlite.url)


def test_what_fails_on_executors_is_said_in_words(directory: Place) -> None:
    class Broken:
        def createDataFrame(self, _pieces: Any) -> Any:
            raise RuntimeError("Job aborted\nTraceback:\n  millrace.domain.errors.StoreError: no such bucket\n at java")

    with pytest.raises(upkeep.UpkeepFailed, match=r"StoreError: no such bucket\. Completed work is kept") as failed:
        upkeep.sweep(Broken(), directory.url)  # type: ignore[arg-type]
    assert exits.code_of(failed.value) == exits.NO


CONNECT = """
import sys
from pyspark.sql import SparkSession
from millrace.spark import register, upkeep
from millrace.spark.java import use_java

url, = sys.argv[1:]
use_java()
builder = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.memory", "1g").getOrCreate()
register(spark)
jobs = spark.read.format("millrace").options(url=url, table="jobs")
before = jobs.load().count()
done = upkeep.compact(spark, url)
swept = upkeep.sweep(spark, url, shares=2)
print(done.compacted, jobs.load().count() == before, len(swept.shares), swept.total.repairs)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.nightly
def test_upkeep_works_through_connect(directory: Place, tmp_path: Path) -> None:
    filled(directory)

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CONNECT, directory.url],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    assert done.returncode == 0, done.stderr[-4_000:]
    assert done.stdout.splitlines() == [f"{COMPACTABLE} True 2 {{}}"]
