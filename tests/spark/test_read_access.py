"""Spark reads with rights that only suffice to read, whatever the URL says, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millrace.store.read_access import split_access
from tests.servers.read_only import KINDS, Limited, filled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=KINDS)
def limited(request: pytest.FixtureRequest, environment: None) -> Iterator[Limited]:
    with filled(request.param, lambda: request.getfixturevalue("s3_server")) as made:
        yield made


def test_batch_and_stream_need_no_right_to_write(limited: Limited, spark: SparkSession, tmp_path: Path):
    """The URL does not ask for read access. It is in a file, because it may have a password."""
    file = tmp_path / "url"
    file.write_text(split_access(limited.reader)[0])
    options = {"urlFile": str(file)}

    with limited.unchanged():
        tables = {
            name: spark.read.format("millrace").options(**options, table=name).load().collect()
            for name in ("jobs", "dead", "events", "workers")
        }
        stream = spark.readStream.format("millrace").options(**options, table="events").load()
        query = stream.writeStream.format("memory").queryName(f"read_{limited.kind}").trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
        streamed = spark.table(f"read_{limited.kind}").collect()

    assert {name: len(rows) for name, rows in tables.items()} == {"jobs": 21, "dead": 4, "events": 58, "workers": 1}
    assert sorted(streamed) == sorted(tables["events"])
