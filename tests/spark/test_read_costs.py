"""What a read of a bucket costs: requests are counted by a proxy. No JVM is needed: tasks are run here."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo

from millrace.domain.change import Change
from millrace.domain.request import Claim
from millrace.spark import reader as reader_module
from millrace.spark.options import read_options
from millrace.spark.reader import FilteringReader
from millrace.spark.schema import table_named
from millrace.store.protocol import Store
from millrace.testing.builders import a_burial, a_spec
from tests.servers.ministack import S3Server
from tests.servers.proxy import Message
from tests.servers.read_only import proxy_aside, run, with_store

JOBS, LARGE = 80, 40
PAYLOAD = b'"' + b"x" * 100_000 + b'"'


async def fill(store: Store) -> None:
    """80 jobs, of which 40 have a large payload; 10 are dead, 10 completed, and 60 wait."""
    await store.enqueue([a_spec(id=f"job-{n}", payload=PAYLOAD if n % 2 else b"1") for n in range(JOBS)])
    claimed = await store.claim(Claim(("default",), "w", limit=20))
    ends = [a_burial() if n % 2 else Change.completed(b"1") for n in range(len(claimed))]
    await store.settle([(job.lease, end) for job, end in zip(claimed, ends, strict=True)])


class Counted:
    """The requests of reads: by the first part of the key, and how many bytes were received."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.gets: Counter[str] = Counter()
        self.received = 0

    async def rule(self, request: Message, forward: Any) -> Message | None:
        reply: Message = await forward(request)
        path = request.first.split(" ")[1].partition("?")[0]
        if request.method == "GET":
            self.gets[path.partition(self._prefix)[2].partition("/")[0] or "list"] += 1
            self.received += len(reply.body)
        return reply


@pytest.fixture(scope="module")
def place(s3_server: S3Server, bucket: S3Server, environment: None):
    address = s3_server.address(secrets.token_hex(8))
    run(with_store(address.url, fill))
    counted = Counted(address.prefix)
    with proxy_aside(s3_server.endpoint, counted.rule) as proxy:
        through = s3_server.address(address.prefix.strip("/").rpartition("/")[2], endpoint=proxy.endpoint)
        yield through.url, counted


def read(place: Any, table: str, columns: str | None = None, **equal: str) -> tuple[int, Counter[str], int]:
    """Return the number of rows, the GETs by the first part of the key, and the bytes received."""
    url, counted = place
    options = read_options({"url": url, "table": table, **({"columns": columns} if columns else {})}, "batch")
    found = table_named(table)
    reader = FilteringReader(options, found if columns is None else found.pruned(columns.split(",")))
    assert list(reader.pushFilters([EqualTo((name,), value) for name, value in equal.items()])) == []
    counted.gets.clear()
    counted.received = 0
    batches: list[pa.RecordBatch] = [batch for share in reader.partitions() for batch in reader.read(share)]
    return sum(batch.num_rows for batch in batches), Counter(counted.gets), counted.received


def test_columns_without_payload_read_no_payload(place: Any):
    rows, gets, received = read(place, "jobs", "id,state")

    assert (rows, gets["tasks"], gets["data"]) == (JOBS, JOBS, 0)
    assert received < 400_000
    rows, gets, received = read(place, "jobs")
    assert (rows, gets["tasks"], gets["data"]) == (JOBS, JOBS, LARGE)
    assert received > LARGE * len(PAYLOAD)


def test_dead_letters_are_found_by_the_index(place: Any):
    rows, gets, _ = read(place, "dead", "id,error_message")
    assert (rows, gets["tasks"], gets["data"]) == (10, 10, 0)

    rows, gets, _ = read(place, "dead")
    assert (rows, gets["tasks"]) == (10, 10) and gets["data"] <= 10


def test_a_filter_that_is_pushed_selects_by_the_index(place: Any):
    for rows, equal in ((10, {"state": "completed"}), (0, {"queue": "nowhere"}), (0, {"state": "dead", "task": "no"})):
        found, gets, _ = read(place, "jobs", "id,state,queue,task", **equal)
        assert (found, gets["tasks"], gets["data"]) == (rows, rows, 0), equal

    rows, gets, _ = read(place, "jobs", "id,state", state="nonsense")
    assert (rows, gets["data"]) == (0, 0)


def test_a_small_table_is_one_task_and_a_large_one_is_many(place: Any, monkeypatch: pytest.MonkeyPatch):
    options = read_options({"url": place[0], "table": "jobs"}, "batch")
    reader = FilteringReader(options, table_named("jobs"))
    assert len(reader.partitions()) == 1

    monkeypatch.setattr(reader_module, "JOBS_WORTH_A_TASK", 1)
    assert len(reader.partitions()) == 80
    monkeypatch.setattr(reader_module, "MOST_JOB_TASKS", 5)
    assert len(reader.partitions()) <= 5
    rows = [batch.num_rows for share in reader.partitions() for batch in reader.read(share)]
    assert sum(rows) == JOBS
