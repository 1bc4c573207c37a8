"""What a task of the sink does to a store, whoever runs it and how often."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from millrace.domain.change import Change
from millrace.domain.errors import DeadLettersFull, InvalidInput, QueueFull, StoreError
from millrace.domain.job import Spec, State
from millrace.domain.outcome import Failure
from millrace.domain.request import Claim, Enqueued
from millrace.spark.sink import enqueue as sink_put
from millrace.spark.sink.enqueue import enqueue_in_parts
from millrace.spark.sink.ids import job_id
from millrace.spark.sink.rejects import RejectFolder
from millrace.spark.sink.writer import RowInvalid, Sink, Written
from millrace.store.memory import MemoryStore
from millrace.store.protocol import Store
from tests.spark.conftest import Place
from tests.spark.filled import all_jobs
from tests.spark.sinking import APP, jobs_in, numbers, payloads, rows, sink

pytestmark = pytest.mark.usefixtures("spark")
DDL = "n int, s string"


def batches(first: int, last: int, size: int = 50, order: random.Random | None = None) -> list[Any]:
    values = [(n, f"text {n % 3}") for n in range(first, last)]
    if order is not None:
        order.shuffle(values)
    return [rows(DDL, *values[at : at + size]) for at in range(0, len(values), size)]


# ── exactly once ──────────────────────────────────────────────────────────────────────────────


def test_a_task_that_runs_again_enqueues_only_what_is_missing(place: Place):
    """A first attempt dies after half of its rows; the second gets them in another order and in other batches."""
    given = sink(place, DDL, batchSize=30)
    some = batches(0, 200)
    given.write("w", 0, iter(some[:2]))
    assert len(jobs_in(place)) == 100

    done = given.write("w", 0, iter(batches(0, 200, 37, random.Random(1))))

    assert numbers(jobs_in(place)) == list(range(200))
    assert (done.rows, done.queued, done.duplicates) == (200, 200, 0)  # as if it had been the only one


def test_two_tasks_at_once_for_the_same_partition_enqueue_each_row_once(place: Place):
    given = sink(place, DDL, batchSize=20)

    with ThreadPoolExecutor(2) as both:
        speculative = [
            both.submit(given.write, "w", 0, iter(batches(0, 120, 50, random.Random(seed)))) for seed in (1, 2)
        ]

    assert [task.result().queued for task in speculative] == [120, 120]
    assert numbers(jobs_in(place)) == list(range(120))


def test_equal_rows_are_jobs_of_their_own(sqlite: Place):
    given = sink(sqlite, DDL)
    same = [rows(DDL, (1, "x"), (1, "x")), rows(DDL, (1, "x"), (2, "x"))]

    for _ in range(2):
        given.write("w", 0, iter(same))
    given.write("w", 1, iter(same))

    assert numbers(jobs_in(sqlite)) == [1, 1, 1, 1, 1, 1, 2, 2]


def test_another_write_of_the_same_rows_enqueues_them_again(sqlite: Place):
    for write in ("monday", "tuesday"):
        sink(sqlite, DDL).write(write, 0, iter(batches(0, 3)))

    assert numbers(jobs_in(sqlite)) == [0, 0, 1, 1, 2, 2]


def test_chosen_ids_hold_over_all_writes(place: Place):
    given = sink(place, DDL, idColumns="n")

    first = given.write("monday", 0, iter([rows(DDL, (1, "a"), (2, "b"), (1, "again"))]))
    second = given.write("tuesday", 5, iter([rows(DDL, (2, "b"), (1, "other"), (3, "c"))]))

    assert (first.queued, first.duplicates, first.differing) == (2, 1, 1)
    assert (second.queued, second.duplicates, second.differing) == (1, 2, 1)
    assert {job.id: payloads([job.spec])[0]["s"] for job in jobs_in(place)} == {
        job_id("send", 1): "a",
        job_id("send", 2): "b",
        job_id("send", 3): "c",
    }


@pytest.mark.parametrize("ids", [{}, {"idColumns": "n"}], ids=["of the write", "of columns"])
def test_a_replayed_batch_never_runs_a_job_again_that_has_ended(place: Place, ids: dict[str, str]):
    """Neither one that completed, nor one that died, nor one that was cancelled, nor one that is forgotten (BW-14)."""
    given = sink(place, DDL, **ids)
    some = batches(0, 4)
    given.write("w", 0, iter(some))

    async def end(store: Store) -> None:
        completed, dead, forgotten = await store.claim(Claim(("default",), "worker", limit=3))
        await store.settle(
            [(completed.lease, Change.completed()), (dead.lease, Change.bury(Failure("E", "no"), "explicit_fail"))]
        )
        await store.control("queue", "default", {"keep_completed": 0})
        await store.settle([(forgotten.lease, Change.completed())])
        for _ in range(3):
            await store.maintain()
        [waiting] = [job for job in await all_jobs(store) if job.state is State.WAITING]
        await store.cancel([waiting.id])

    with place.open() as found:
        found.run(end(found.store))
    before = {job.id: (job.state, job.generation) for job in jobs_in(place)}

    given.write("w", 0, iter(some))
    given.write("w" if not ids else "later", 0, iter(some))

    after = {job.id: (job.state, job.generation) for job in jobs_in(place)}
    assert after == before
    assert State.DEAD in {state for state, _ in before.values()}


# ── rows that are unfit ───────────────────────────────────────────────────────────────────────

FLOATS = "n int, f double"
NAN = float("nan")


def test_an_unfit_row_fails_the_write_before_its_chunk(place: Place):
    given = sink(place, FLOATS, batchSize=10)
    some = [(n, NAN if n == 25 else 0.5) for n in range(40)]

    with pytest.raises(
        RowInvalid, match=r"row 25 of partition 3 \(n=25, f=nan\) cannot become a job: column 'f' is nan"
    ):
        given.write("w", 3, iter([rows(FLOATS, *some)]))

    assert numbers(jobs_in(place)) == list(range(20))


def test_rejected_rows_are_published_once_whatever_was_tried(sqlite: Place, tmp_path: Path):
    folder = tmp_path / "rejects"
    given = sink(sqlite, FLOATS, onInvalid="reject", rejectPath=folder, batchSize=4)
    some = [rows(FLOATS, *[(n, NAN if n % 3 == 0 else 0.5) for n in range(10)])]
    given.write("w", 0, iter(some))  # of a task whose executor was lost
    done = [given.write("w", 0, iter(some)), given.write("w", 1, iter([rows(FLOATS, (100, NAN))]))]
    assert [path.name for path in folder.iterdir() if not path.name.startswith("_")] == []

    for _ in range(2):  # a commit of which the driver never heard is done again, with all its tasks
        given.commit("w", done)
        done = [given.write("w", 0, iter(some)), given.write("w", 1, iter([rows(FLOATS, (100, NAN))]))]
    given.commit("w", done)

    table = pq.read_table(folder)
    assert sorted(table["n"].to_pylist()) == [0, 3, 6, 9, 100]
    assert all("JSON cannot represent" in reason for reason in table["reject_reason"].to_pylist())
    assert set(table["reject_write"].to_pylist()) == {"w"}
    assert [path.name for path in folder.iterdir() if path.name.startswith("_")] == []
    assert [(one.rows, one.queued, one.rejected) for one in done] == [(10, 6, 4), (1, 0, 1)]
    assert numbers(jobs_in(sqlite)) == [1, 2, 4, 5, 7, 8]


def test_a_write_done_again_replaces_its_rejects_and_leaves_those_of_others(sqlite: Place, tmp_path: Path):
    given = sink(sqlite, FLOATS, onInvalid="reject", rejectPath=tmp_path / "r")

    def write(name: str, *partitions: list[Any]) -> None:
        given.commit(name, [given.write(name, at, iter([rows(FLOATS, *some)])) for at, some in enumerate(partitions)])

    write("other", [(7, NAN)])
    write("w", [(1, NAN)], [(2, NAN)])
    write("w", [(1, NAN), (2, NAN)], [(3, 0.5)])

    assert sorted(pq.read_table(tmp_path / "r")["n"].to_pylist()) == [1, 2, 7]


def test_an_aborted_write_leaves_no_rejects(sqlite: Place, tmp_path: Path):
    given = sink(sqlite, FLOATS, onInvalid="reject", rejectPath=tmp_path / "r")
    given.write("w", 0, iter([rows(FLOATS, (1, NAN))]))
    assert list((tmp_path / "r").glob("_pending-*/*"))

    given.abort("w")

    assert list((tmp_path / "r").iterdir()) == []


def test_the_reject_folder_must_mean_the_same_everywhere(sqlite: Place):
    with pytest.raises(InvalidInput, match="absolute path"):
        RejectFolder("rejects")
    with pytest.raises(InvalidInput, match="cannot be used"):
        RejectFolder("nonsense://rejects")
    with pytest.raises(InvalidInput, match="Rename yours"):
        sink(sqlite, "reject_reason string", onInvalid="reject", rejectPath="/tmp/r")


def test_rejects_can_go_to_a_bucket(s3: Place, bucket: Any, monkeypatch: pytest.MonkeyPatch):
    from pyarrow import fs

    where = bucket.address("x")
    endpoint = where.endpoint.partition("://")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    path = f"s3://{where.bucket}/rejects-here?scheme={endpoint[0]}&endpoint_override={endpoint[2]}&region=us-east-1"
    given = sink(s3, FLOATS, onInvalid="reject", rejectPath=path)

    given.commit("w", [given.write("w", 0, iter([rows(FLOATS, (1, NAN), (2, 0.5))]))])

    system, root = fs.FileSystem.from_uri(path)
    assert pq.read_table(root, filesystem=system)["n"].to_pylist() == [1]


# ── pools ─────────────────────────────────────────────────────────────────────────────────────


def test_a_pool_must_have_been_declared(sqlite: Place):
    given = sink(sqlite, "n int", app=APP, task="laned")
    with pytest.raises(InvalidInput, match="pool 'laned' has 3 lanes in the app and none in this store"):
        given.write("w", 0, iter([rows("n int", (1,))]))

    with sqlite.open() as found:
        found.run(found.store.control("queue", "laned", {"lanes": 3}))
    given.write("w", 0, iter([rows("n int", *((n,) for n in range(9)))]))

    assert {job.lane for job in jobs_in(sqlite)} == {0, 1, 2}


# ── full queues and unwell stores ─────────────────────────────────────────────────────────────


class Unwell(MemoryStore):
    """Fails every other enqueue, half of the times after it was carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        self.asked += 1
        answers = await super().enqueue(specs) if self.asked % 4 != 1 else []
        if self.asked % 2:
            raise StoreError("no answer")
        return answers


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_put, "FIRST_LOOK", 0.001)
    monkeypatch.setattr(sink_put, "SLOWEST_LOOK", 0.01)


def some_specs(count: int) -> list[Spec]:
    return [Spec(f"job-{n}", "send", token="t", reuse=False) for n in range(count)]


async def test_a_store_that_fails_for_a_while_is_asked_again():
    store = Unwell()
    await store.connect()

    answers = [one for _ in range(3) for one in await enqueue_in_parts(store, some_specs(10), 1)]

    assert [answer.status for answer in answers] == ["queued"] * 30
    assert sum(counts.waiting for counts in await store.count()) == 10


async def test_a_store_that_stays_away_fails_the_write():
    class Gone(MemoryStore):
        async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
            raise StoreError("it is not there")

    with pytest.raises(StoreError, match="it is not there") as failed:
        await enqueue_in_parts(Gone(), some_specs(1), 1)
    assert failed.value.__notes__ == ["The write asked 6 times."]


async def test_more_rows_than_a_queue_takes_at_once_go_in_as_room_comes():
    store = MemoryStore()
    await store.connect()
    await store.control("queue", "default", {"max_depth": 7})
    ended: list[str] = []

    async def work() -> None:
        while len(ended) < 50:
            for job in await store.claim(Claim(("default",), "worker", limit=3)):
                await store.settle([(job.lease, Change.completed())])
                ended.append(job.id)
            await asyncio.sleep(0.001)

    answers, _ = await asyncio.gather(enqueue_in_parts(store, some_specs(50), 10), work())

    assert [answer.id for answer in answers] == [f"job-{n}" for n in range(50)]
    assert sorted(ended) == sorted(f"job-{n}" for n in range(50))


@pytest.mark.parametrize("full", [QueueFull, DeadLettersFull])
async def test_a_queue_that_stays_full_fails_the_write_when_patience_ends(full: type[QueueFull]):
    store = MemoryStore()
    await store.connect()
    settings = {"max_depth": 3} if full is QueueFull else {"dead_cap": 1, "dead_overflow": "reject"}
    await store.control("queue", "default", settings)
    if full is DeadLettersFull:
        await store.enqueue([Spec("dead", "send")])
        [job] = await store.claim(Claim(("default",), "worker"))
        await store.settle([(job.lease, Change.bury(Failure("E", "no"), "explicit_fail"))])

    with pytest.raises(full) as failed:
        await enqueue_in_parts(store, some_specs(8), 0.05)

    assert any("option queueFullTimeout" in note for note in failed.value.__notes__)
    waiting = sum(counts.waiting for counts in await store.count())
    assert waiting == (3 if full is QueueFull else 0)


def test_a_write_into_a_full_queue_goes_on_where_it_stopped(sqlite: Place):
    given = sink(sqlite, DDL, queueFullTimeout="50ms")
    with sqlite.open() as found:
        found.run(found.store.control("queue", "default", {"max_depth": 5}))
    with pytest.raises(QueueFull):
        given.write("w", 0, iter(batches(0, 12)))
    assert len(jobs_in(sqlite)) == 5

    with sqlite.open() as found:
        found.run(found.store.control("queue", "default", {"max_depth": None}))
    given.write("w", 0, iter(batches(0, 12)))

    assert numbers(jobs_in(sqlite)) == list(range(12))


# ── what the driver says ──────────────────────────────────────────────────────────────────────


def test_a_commit_tells_the_counts(sqlite: Place, caplog: pytest.LogCaptureFixture):
    given: Sink = sink(sqlite, DDL)

    with caplog.at_level("INFO", "millrace.spark"):
        given.commit("w", [Written("w", 0, 10, 7, 2, 1), Written("w", 1, 5, 5)])

    [record] = caplog.records
    assert record.getMessage() == (
        "write w: 15 rows, 12 enqueued, 2 had a job already (1 of these with another payload), 0 rejected"
    )
    assert record.levelname == "WARNING"
