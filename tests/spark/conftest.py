"""One Spark session for all tests of this folder, and the stores that Spark can reach.

A JVM takes seconds to start and its options cannot be changed afterwards, so whatever a worker process must find in its
environment is set before: the keys of the bucket, and a feed that does not stay behind the clock.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millrace.spark.open import OpenedStore, opened
from tests.object.stores import a_quick_folder
from tests.servers import postgres as postgres_server
from tests.servers.ministack import S3Server, ministack_server, s3_server
from tests.servers.redis_server import url_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ministack_server", "s3_server"]

STORES = ("sqlite", "directory", "s3", "redis", "postgres")
# For a case that takes long: a file and a bucket at every push, all of them at night.
BY_NIGHT = [name if name in ("sqlite", "s3") else pytest.param(name, marks=pytest.mark.nightly) for name in STORES]


@dataclass
class Place:
    """A store that Spark's processes can open. `open()` opens it here, for a test to put jobs in."""

    name: str
    url: str
    options: dict[str, str] = field(default_factory=dict)

    def open(self) -> AbstractContextManager[OpenedStore]:
        return opened(self.url)

    def read(self, spark: SparkSession, table: str, **options: Any) -> DataFrame:
        given = {name: str(value) for name, value in options.items()}
        return spark.read.format("millrace").options(url=self.url, table=table, **given).load()


@pytest.fixture(scope="session")
def environment() -> Iterator[None]:
    """What workers inherit from the JVM, and the JVM from here."""
    given = {
        "MILLRACE_FEED_DELAY_MS": "0",
        "MILLRACE_ALLOW_NO_VERSIONING": "1",
        "AWS_ACCESS_KEY_ID": os.environ.get("AWS_ACCESS_KEY_ID", "test"),
        "AWS_SECRET_ACCESS_KEY": os.environ.get("AWS_SECRET_ACCESS_KEY", "test"),
        "PYTHONWARNINGS": "ignore",
    }
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture(scope="session")
def spark(environment: None) -> Iterator[SparkSession]:
    from millrace.spark.session import QUICK, session

    with tempfile.TemporaryDirectory(prefix="millrace-spark-") as scratch:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pyspark, about itself
            made = session(
                "millrace-tests",
                "local[2,4]",  # a task that fails is run again, as on a cluster
                java_options=QUICK,
                settings={
                    "spark.sql.shuffle.partitions": "2",
                    "spark.local.dir": scratch,
                    "spark.sql.warehouse.dir": f"{scratch}/warehouse",
                    "spark.sql.streaming.stopTimeout": "20s",
                },
            )
        yield made
        made.stop()


@pytest.fixture
def sqlite(tmp_path: Path) -> Place:
    place = Place("sqlite", f"sqlite:///{tmp_path}/jobs.db?durability=relaxed")
    with place.open():
        return place


@pytest.fixture
def directory() -> Iterator[Place]:
    with a_quick_folder() as folder:
        yield Place("directory", f"file://{folder}?durability=relaxed")


@pytest.fixture(scope="session")
def bucket(s3_server: S3Server) -> S3Server:
    if s3_server.ours:
        from millrace.store.object.s3 import S3Blobs

        S3Blobs(s3_server.address("setup")).admin.setup()
    return s3_server


@pytest.fixture
def s3(environment: None, bucket: S3Server) -> Place:
    return Place("s3", bucket.address(secrets.token_hex(8)).url)


@pytest.fixture
def redis(tmp_path: Path) -> Place:
    return Place("redis", url_for(tmp_path))


@pytest.fixture
def postgres(tmp_path: Path) -> Place:
    return Place("postgres", postgres_server.url_for(tmp_path))


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest) -> Place:
    """Each of the stores in turn. A store that comes later joins `STORES` and every test here."""
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands start and stop a session of their own; here they are given the one there is."""
    from millrace.cli.pipeline import options as pipeline_options
    from millrace.spark import session as sessions

    class Shared:
        def __getattr__(self, name: str) -> Any:
            return getattr(spark, name)

        def stop(self) -> None:
            """Others still need it."""

    monkeypatch.setattr(pipeline_options, "spark_session", lambda *_given, **_settings: Shared())
    monkeypatch.setattr(sessions, "session", lambda *_given, **_settings: Shared())
    monkeypatch.delenv("MILLRACE_URL", raising=False)
