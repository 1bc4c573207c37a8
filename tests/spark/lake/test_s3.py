"""A lake in a bucket: the same tables as in a directory, and the commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millrace.cli import exits
from millrace.cli.root import run
from millrace.domain.event import Event
from millrace.spark.lake import Lake, LakePlace, TakeRequest, take
from millrace.spark.lake.audit import audit
from millrace.spark.lake.errors import LakeUnreachable
from millrace.spark.lake.maintenance import compact, retain
from tests.servers.ministack import S3Server
from tests.spark.conftest import Place
from tests.spark.filled import fill
from tests.spark.lake.compare import TABLES, rows, told
from tests.spark.lake.conftest import quietly
from tests.spark.lake.history import ListFeed


@pytest.fixture
def url(environment: None, bucket: S3Server) -> str:
    import secrets

    return bucket.address(f"lake-{secrets.token_hex(4)}").url


def test_a_lake_in_a_bucket_equals_one_in_a_directory(
    spark: SparkSession, events: Sequence[Event], at_once: Lake, url: str
) -> None:
    place, feed = LakePlace(url), ListFeed(spark, events)
    feed.end = len(events) // 2
    take(place, spark, feed, TakeRequest(groups=True), quietly)
    half = told(Lake(url, spark), ("jobs", "open_runs"))
    feed.end = len(events)
    take(place, spark, feed, TakeRequest(groups=True), quietly)
    expected = told(at_once, (*TABLES, "durations", "worker_use"))

    lake = Lake(url, spark)
    assert told(lake, (*TABLES, "durations", "worker_use")) == expected
    assert audit(lake).sound
    since = datetime(2023, 11, 15, tzinfo=UTC)
    assert rows(lake.events(since)) == rows(at_once.events(since)) != []
    assert told(Lake(url, spark, as_of=1), ("jobs", "open_runs")) == half

    compact(place, quietly)
    assert told(Lake(url, spark), TABLES) == {name: expected[name] for name in TABLES}
    assert told(Lake(url, spark, as_of=1), ("jobs", "open_runs")) == half
    assert take(place, spark, feed, TakeRequest(groups=True), quietly).events == 0

    retained = retain(place, {"events": 86_400_000}, max(event.at for event in events) + 86_400_000)
    assert retained is not None and retained.rows > 0
    assert audit(Lake(url, spark)).sound


@pytest.mark.usefixtures("shared_session")
def test_the_commands_work_on_a_bucket(
    url: str, sqlite: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(*arguments: str) -> Any:
        code = run(["pipeline", *arguments, "--lake", url, "--json"])
        assert code == exits.OK
        return json.loads(capsys.readouterr().out)

    monkeypatch.chdir(tmp_path)
    with sqlite.open() as opened:
        opened.run(fill(opened.store, 10))
    first = answer("run", "--url", sqlite.url)
    with sqlite.open() as opened:
        opened.run(opened.store.replay(["job-1"]))
    second = answer("run", "--url", sqlite.url)
    compacted = answer("compact")
    verdict = answer("audit", "--url", sqlite.url)
    past = answer("audit", "--no-store", "--as-of", "1")
    page = answer("report", "--out", "report.html", "--as-of", "1")

    assert (first["take"], second["take"], second["taken"]) == (1, 2, 1)
    assert compacted["take"] == 2
    assert verdict["sound"] and past["sound"]
    assert page["sound"] and [path.name for path in tmp_path.iterdir() if path.suffix == ".html"] == ["report.html"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("s3")]


def test_a_bucket_that_does_not_exist_is_said_so(environment: None, bucket: S3Server) -> None:
    place = LakePlace(bucket.address("lake", bucket="no-such-bucket").url)

    with pytest.raises(LakeUnreachable, match="cannot be opened.*credentials"):
        place.prepare()
