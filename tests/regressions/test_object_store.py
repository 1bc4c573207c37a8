"""What was wrong in qo's design (BO-01 … BO-23), and what job-queue's files got wrong (BR), on the object store.

Most of it is about the order of requests, so a journal is kept of them. The directory's numbers are about real files.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import StoreError
from millrace.domain.job import Job, State
from millrace.domain.request import Query, Receipt
from millrace.store.clock import system_clock
from millrace.store.object.blobs import Blobs, LostReply, Won
from millrace.store.object.directory import DirectoryBlobs
from millrace.store.object.driver import Answer, Expect, Listing, Read, Refused, Want, Write
from millrace.store.object.keys import Layout
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.options import ObjectOptions
from millrace.store.object.probe import UnsafeStore, probe
from millrace.store.object.s3 import BucketAddress, S3Blobs
from millrace.store.object.s3.admin import BucketAdmin
from millrace.store.object.store import ObjectStore
from millrace.store.object.versions import Versions
from millrace.testing import VirtualClock, a_claim, a_reclaim, a_spec, specs
from millrace.testing.builders import a_burial, a_retry_change, an_extension, minutes
from millrace.testing.conformance.scenes import bury, complete, control, put, put_completed, put_dead, retry, show, take
from proof.blob_faults import BlobFault, FaultyBlobs
from tests.narrowing import the
from tests.object.stores import in_folder

OPTIONS = ObjectOptions(
    look_every=0, feed_delay=0, lock_patience=20, listing_reuse=0, inline_limit=1_000, index_mode="index-only"
)
LARGE = json.dumps("x" * 2_000).encode()


@dataclass
class Journal:
    """A bucket in memory that notes every request, by key. What is forbidden fails as if the client had died."""

    bucket: MemoryBlobs
    steps: list[tuple[str, str]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bucket, name)

    async def read(self, wants: Sequence[Want]) -> Sequence[Read]:
        self.steps += [("read", want.key) for want in wants]
        return await self.bucket.read(wants)

    async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
        self.steps += [("write", write.key) for write in writes]
        return await self.bucket.write(writes)

    async def delete(self, keys: Sequence[str]) -> None:
        self.steps += [("delete", key) for key in keys]
        await self.bucket.delete(keys)

    async def list(self, prefix: str, after: str | None, limit: int) -> Listing:
        self.steps.append(("list", prefix))
        return await self.bucket.list(prefix, after, limit)

    def first(self, kind: str, prefix: str) -> int:
        return next(n for n, (what, key) in enumerate(self.steps) if what == kind and key.startswith(prefix))

    def of(self, kind: str, prefix: str = "") -> Sequence[str]:
        return [key for what, key in self.steps if what == kind and key.startswith(prefix)]

    def keys(self, prefix: str) -> Sequence[str]:
        return [key for key in self.bucket._keys if key.startswith(prefix)]


@dataclass
class Bench:
    clock: VirtualClock
    journal: Journal

    async def client(self, options: ObjectOptions = OPTIONS) -> ObjectStore:
        store = ObjectStore(lambda: self.journal, clock=self.clock, options=options)
        await store.connect()
        self.journal.steps.clear()
        return store


@pytest.fixture
def bench(clock: VirtualClock) -> Bench:
    return Bench(clock, Journal(MemoryBlobs(clock=clock)))


@pytest.fixture
async def objects(bench: Bench) -> ObjectStore:
    return await bench.client()


@pytest.fixture
async def folder(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[ObjectStore]:
    store = in_folder(tmp_path / "jobs", options=OPTIONS)(clock)
    await store.connect()
    yield store
    await store.close()


# ── indexes ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["hybrid", "log-scan"])
async def test_bo_01_a_job_that_the_index_lacks_is_claimed_all_the_same(bench: Bench, mode):
    """Written, but its key was not: the process died in between."""
    store = await bench.client(ObjectOptions(look_every=0, listing_reuse=0, index_mode=mode))
    spec = await put(store)
    await bench.journal.bucket.delete(bench.journal.keys("ready/"))

    assert [job.id for job in await store.claim(a_claim())] == [spec.id]


async def test_bo_01_without_the_scan_the_sweep_finds_it(bench: Bench, objects: ObjectStore):
    spec = await put(objects)
    await bench.journal.bucket.delete(bench.journal.keys("ready/"))
    assert await objects.claim(a_claim()) == []

    bench.clock.advance(60)
    assert (await objects.sweep(full=True)).repairs == {"index_restored": 1}

    assert [job.id for job in await objects.claim(a_claim())] == [spec.id]


async def test_bo_02_who_loses_a_claim_leaves_the_winners_keys_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    winner, loser = await bench.client(), await bench.client()
    spec = await put(winner)
    had: list[Job] = []

    async def overtake(writes: Sequence[Write]) -> Sequence[Answer]:
        if any(write.key.startswith("tasks/") for write in writes):
            monkeypatch.setattr(bench.journal, "write", write)
            had.extend(await winner.claim(a_claim(worker="winner")))
        return await write(writes)

    write = bench.journal.write
    monkeypatch.setattr(bench.journal, "write", overtake)
    assert await loser.claim(a_claim(worker="loser")) == []

    [job] = had
    [lease] = bench.journal.keys("leases/")
    assert lease == (await filed(bench, spec.id)) and bench.journal.keys("ready/") == []
    assert await winner.settle([(job.lease, Change.completed())]) == [Receipt.OK]


async def filed(bench: Bench, job_id: str) -> str:
    blob = bench.journal.bucket._current(Layout().job(job_id))
    assert blob is not None
    found: str = json.loads(blob.body)["value"]["filed"]
    return found


async def test_bo_03_deleting_a_stale_key_cannot_hit_the_new_one(bench: Bench, objects: ObjectStore):
    """Back in the same minute, even in the same millisecond, a job has a key that it never had before."""
    spec = await put(objects)
    seen = [*bench.journal.keys("ready/")]
    for _ in range(3):
        await retry(objects, await take(objects))
        [fresh] = bench.journal.keys("ready/")
        assert fresh not in seen
        await bench.journal.bucket.write([Write(seen[-1], b"", Expect.ANYTHING)])  # its deletion comes late
        seen.append(fresh)

    assert [job.id for job in await objects.claim(a_claim(10))] == [spec.id]
    assert bench.journal.keys("ready/") == []


async def test_bo_04_the_lease_can_be_found_before_it_counts(bench: Bench, objects: ObjectStore):
    """Claim: lease key, then the swap, then the ready key goes. So a crash anywhere leaves a job that is found."""
    await put(objects)
    bench.journal.steps.clear()

    await take(objects)

    swap = bench.journal.first("write", "tasks/")
    assert bench.journal.first("write", "leases/") < swap < bench.journal.first("delete", "ready/")


async def test_bo_05_a_write_of_ones_own_is_not_taken_for_somebody_elses(clock: VirtualClock):
    """Every answer to a write is lost once: each is asked again, and recognised."""
    lost: set[int] = set()

    def plan(kind: str, number: int) -> BlobFault | None:
        if kind != "write" or number - 1 in lost:
            return None
        lost.add(number)
        return BlobFault.LOST_REPLY

    faulty = FaultyBlobs(MemoryBlobs(clock=clock), plan)
    store = ObjectStore(lambda: faulty, clock=clock, options=OPTIONS)
    await store.connect()

    [answer] = await store.enqueue([a_spec(id="mine")])
    [job] = await store.claim(a_claim())
    receipts = await store.settle([(job.lease, Change.completed(b"1"))])

    assert (answer.status, job.id, receipts) == ("queued", "mine", [Receipt.OK])
    assert (await show(store, "mine")).attempt == 1
    assert faulty.faults[BlobFault.LOST_REPLY] >= 5


async def test_bo_06_a_result_is_not_lost_because_the_object_moved(bench: Bench):
    """Its lease was extended by a heartbeat that has a connection of its own."""
    worker, heartbeat = await bench.client(), await bench.client()
    spec = await put(worker)
    job = await take(worker)
    assert await heartbeat.extend([an_extension(job, by=60, progress=b"1")]) == [Receipt.OK]

    assert await worker.settle([(job.lease, Change.completed(b"7"))]) == [Receipt.OK]
    assert (await show(heartbeat, spec)).result == b"7"


async def test_bo_07_a_release_is_checked_like_any_other_end_and_leaves_nothing(bench: Bench, objects: ObjectStore):
    spec = await put(objects)
    stale = await take(objects, lease=1)
    bench.clock.advance(2)
    [rescued] = await objects.reclaim(a_reclaim())

    assert await objects.settle([(stale.lease, Change.release())]) == [Receipt.LOST]
    assert await objects.settle([(rescued.lease, Change.release())]) == [Receipt.OK]
    job = await show(objects, spec)
    assert (job.state, job.worker, job.lease_id, job.lease_until, job.failures) == (State.WAITING, None, None, None, 0)
    assert bench.journal.keys("leases/") == []


@pytest.mark.parametrize("end", ["worker", "reaper"])
async def test_bo_08_every_burial_clears_the_lease_and_keeps_the_error(bench: Bench, objects: ObjectStore, end):
    spec = await put(objects)
    job = await take(objects, lease=1)
    if end == "reaper":
        bench.clock.advance(2)
        [job] = await objects.reclaim(a_reclaim())
    assert await objects.settle([(job.lease, a_burial(message="it is broken"))]) == [Receipt.OK]

    dead = await show(objects, spec)
    assert (dead.state, dead.worker, dead.lease_id, dead.lease_until) == (State.DEAD, None, None, None)
    assert dead.error is not None and dead.error.message == "it is broken"


# ── the bucket ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def admin(ministack_server) -> BucketAdmin:
    return BucketAdmin(ministack_server.address("regressions", bucket="regressions"))


def test_bo_09_only_the_versions_of_jobs_pile_up(admin):
    """Whatever is not a job or its data loses its old versions after a day; `setup` sees to that."""
    admin.setup()

    rules = admin._client.get_bucket_lifecycle_configuration(Bucket="regressions")["Rules"]
    expiring = {rule["Filter"]["Prefix"].removeprefix(admin.address.prefix) for rule in rules}
    families = {"ready/", "held/", "leases/", "done/", "gone/", "deps/", "due/", "upkeep/", "lines/", "keys/"}
    assert expiring >= families | {"control/", "schedules/", "workers/", "feed/", "batches/", "probe/"}
    assert not expiring & {"tasks/", "data/", ""}
    assert {rule["NoncurrentVersionExpiration"]["NoncurrentDays"] for rule in rules} == {1}


def test_bo_10_a_page_sees_etags_and_only_named_pages_may_write(admin):
    admin.setup(origins=["https://jobs.example.com"])

    [rule] = admin._client.get_bucket_cors(Bucket="regressions")["CORSRules"]
    assert rule["AllowedOrigins"] == ["https://jobs.example.com"] and "ETag" in rule["ExposeHeaders"]
    with pytest.raises(ValueError, match="any page write"):
        admin.setup(origins=["*"])


async def test_bo_11_unarchiving_gives_back_what_was_archived(objects: ObjectStore):
    done, dead = await put_completed(objects, b"1"), await put_dead(objects)
    await objects.archive([done.id, dead.id])

    await objects.archive([done.id, dead.id], archived=False)

    assert [(await show(objects, spec)).state for spec in (done, dead)] == [State.COMPLETED, State.DEAD]
    assert (await show(objects, done)).result == b"1"


async def test_bo_12_a_replayed_job_has_all_its_attempts_again(objects: ObjectStore):
    spec = await put(objects, max_attempts=2)
    await retry(objects, await take(objects))
    await bury(objects, await take(objects))

    await objects.replay([spec.id])

    job = await show(objects, spec)
    assert (job.state, job.failures, job.replays) == (State.WAITING, 0, 1)
    await retry(objects, await take(objects))
    assert (await show(objects, spec)).state is State.WAITING


# ── finding what is due ───────────────────────────────────────────────────────────────────────────


async def test_bo_13_order_and_due_time_are_read_from_the_key(bench: Bench, objects: ObjectStore):
    """First in, first out within a minute; and no job is fetched to learn that it is not due."""
    asked = specs(30)
    for spec in asked:
        await objects.enqueue([spec])
    await objects.enqueue(specs(50, delay=30))  # of the same minute
    bench.journal.steps.clear()

    taken = [job.id for job in await objects.claim(a_claim(30))]

    assert taken == [spec.id for spec in asked]
    assert len(bench.journal.of("read", "tasks/")) == 30
    bench.journal.steps.clear()
    assert await objects.claim(a_claim(10)) == []
    assert bench.journal.of("read", "tasks/") == []


async def test_bo_14_what_is_due_later_is_not_paged_through(bench: Bench, objects: ObjectStore):
    """There is no listing of "up to now": the first key that is not due ends the look at its priority."""
    for _ in range(3):
        await objects.enqueue(specs(1_000, delay=3_600))
    await objects.enqueue(specs(5))
    bench.journal.steps.clear()

    assert len(await objects.claim(a_claim(5))) == 5
    first = len(bench.journal.of("list", "ready/"))
    await objects.enqueue(specs(5))
    bench.journal.steps.clear()
    assert len(await objects.claim(a_claim(5))) == 5

    again = len(bench.journal.of("list", "ready/"))
    assert first <= 2 * 16 + 1 and again <= 2 * 16 + 1, "a bounded number for each shard, whatever is scheduled"


async def test_bo_15_no_shard_starves_and_an_idle_look_is_not_one_per_shard(bench: Bench, objects: ObjectStore):
    asked = specs(200)
    await objects.enqueue(asked)
    shards = {Layout().shard_of(spec.id) for spec in asked}
    assert len(shards) == 16

    taken = await objects.claim(a_claim(40))
    assert len({Layout().shard_of(job.id) for job in taken}) > 8, "the best of all shards, not all of the first"
    await objects.claim(a_claim(200))
    bench.journal.steps.clear()
    assert await objects.claim(a_claim(10)) == []

    assert len(bench.journal.of("list")) <= 3


async def test_bo_16_time_is_the_buckets_not_the_machines():
    """The bucket's clock is half a minute behind this machine's, and it is the one that counts."""
    behind = 30_000
    blobs = MemoryBlobs(clock=lambda: system_clock() - behind)
    store = ObjectStore(lambda: blobs, options=OPTIONS)
    await store.connect()
    await put(store, delay=20)

    assert abs(await store.now() - (system_clock() - behind)) < 5_000
    assert await store.claim(a_claim()) == []
    behind = 5_000
    job = await take(store, lease=30)
    assert job.lease_until is not None and job.lease_until < system_clock() + 30_000


async def test_bo_16_whose_clock_is_far_off_claims_nothing():
    blobs = MemoryBlobs(clock=lambda: system_clock() - 90_000)
    store = ObjectStore(lambda: blobs, options=OPTIONS)
    await store.connect()
    await put(store)

    with pytest.raises(StoreError, match=r"ahead of the store's.*set this machine's clock"):
        await store.claim(a_claim())


async def test_bo_17_a_timeout_is_over_before_the_lease_is(objects: ObjectStore, clock: VirtualClock):
    await put(objects, timeout=5, lease=30)

    job = await take(objects)

    assert (job.spec.timeout, job.lease_until) == (5_000, clock() + 30_000)


async def test_bo_18_a_worker_neither_takes_nor_fetches_what_it_cannot_run(bench: Bench, objects: ObjectStore):
    """The task stands in the key."""
    others = specs(20, task="unknown-here")
    await objects.enqueue(others)
    await put(objects, id="mine", task="known")
    bench.journal.steps.clear()

    assert [job.id for job in await objects.claim(a_claim(30, tasks=["known"]))] == ["mine"]
    assert bench.journal.of("read", "tasks/") == [Layout().job("mine")]
    assert {(await show(objects, spec)).attempt for spec in others} == {0}


# ── history and data ──────────────────────────────────────────────────────────────────────────────


async def test_bo_19_a_history_longer_than_a_page_is_told_to_its_end(objects: ObjectStore):
    spec = await put(objects, max_attempts=1_000)
    for _ in range(120):
        await retry(objects, await take(objects))

    records = await Versions(objects).oldest_first(spec.id)

    assert [record.rev for record in records if not record.repeats] == list(range(1, 242))


async def test_bo_19_a_bucket_without_versions_is_refused_at_once(ministack_server):
    loose = ministack_server.address("regressions", bucket="regressions-plain")
    await asyncio.to_thread(BucketAdmin(loose).setup, versioning=False)
    strict = BucketAddress(**{**vars(loose), "versioning": "required"})

    with pytest.raises(UnsafeStore, match="the bucket keeps versions"):
        await S3Blobs(strict).connect()


async def test_bo_20_large_data_is_there_before_the_record_that_names_it(bench: Bench, objects: ObjectStore):
    bench.journal.steps.clear()

    spec = await put(objects, payload=LARGE)
    await complete(objects, await take(objects), LARGE)

    assert bench.journal.first("write", "data/") < bench.journal.first("write", "tasks/")
    assert len(bench.journal.keys("data/")) == 2
    job = await show(objects, spec)
    assert (job.payload, job.result) == (LARGE, LARGE)
    assert len(the(bench.journal.bucket._current(Layout().job(spec.id))).body) < len(LARGE)


async def test_bo_20_data_that_no_record_names_is_collected(bench: Bench, objects: ObjectStore):
    await put(objects, payload=LARGE)
    [kept] = bench.journal.keys("data/")
    await objects.blobs.put("data/0/nobody/input-0.json", LARGE)

    bench.clock.advance(minutes(120) / 1000)
    await objects.sweep(full=True)

    assert bench.journal.keys("data/") == [kept]


async def test_bo_21_finished_jobs_are_listed_without_a_look_at_the_others(bench: Bench, objects: ObjectStore):
    done = [await put_completed(objects) for _ in range(3)]
    await objects.enqueue(specs(300))
    bench.journal.steps.clear()

    page = await objects.find(Query(state="completed"))

    assert sorted(job.id for job in page.jobs) == sorted(spec.id for spec in done)
    assert len(bench.journal.of("read", "tasks/")) == 3
    assert {prefix.split("/")[0] for prefix in bench.journal.of("list")} == {"done"}


async def test_bo_22_filters_are_served_by_the_index_not_by_the_server(bench: Bench, objects: ObjectStore):
    """Queue, task and state stand in the keys, so what does not match is never fetched."""
    for queue in ("a", "b"):
        for task in ("x", "y"):
            await objects.enqueue(specs(20, queue=queue, task=task))
    bench.journal.steps.clear()

    page = await objects.find(Query(queue="a", task="x", state="waiting"))

    assert len(page.jobs) == 20
    assert len(bench.journal.of("read", "tasks/")) == 20


async def test_bo_23_a_server_that_cannot_swap_under_versions_is_refused_with_the_way_out():
    """Ceph 16: with versioning every creation succeeds, and no swap does."""

    class Ceph16(MemoryBlobs):
        def _write(self, write: Write) -> Answer:
            if isinstance(write.expect, str):
                return Refused()
            return super()._write(Write(write.key, write.body, Expect.ANYTHING))

    with pytest.raises(UnsafeStore, match=r"refused.*without versioning.*\?versioning=optional"):
        await probe(Ceph16())


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


async def test_br_01_creating_the_file_of_an_id_is_what_decides(tmp_path):
    drivers = [DirectoryBlobs(tmp_path / "jobs", durability="relaxed") for _ in range(6)]
    clients = [Blobs(driver) for driver in drivers]
    for client in clients:
        await client.connect()
    for round_number in range(10):
        key = f"tasks/0/{round_number}.json"
        answers = await asyncio.gather(*(client.create(key, f"{n}".encode()) for n, client in enumerate(clients)))
        won = [n for n, answer in enumerate(answers) if isinstance(answer, Won)]
        assert len(won) == 1 and sum(isinstance(answer, LostReply) for answer in answers) == 5
        assert the(await clients[0].get(key)).body == f"{won[0]}".encode()
    for client in clients:
        await client.close()


async def test_br_02_a_job_whose_second_file_was_never_written_blocks_nobody(folder: ObjectStore, clock: VirtualClock):
    """The record is the one commit. Its id answers as what it is, and the sweep puts the other file back."""
    spec = await put(folder)
    await folder.blobs.delete([entry.key for entry in (await folder.blobs.list("ready/")).entries])

    [again] = await folder.enqueue([a_spec(id=spec.id)])
    clock.advance(60)
    await folder.sweep(full=True)

    assert again.status == "duplicate"
    await complete(folder, await take(folder))
    assert (await show(folder, spec)).state is State.COMPLETED


async def test_br_03_a_file_that_comes_between_the_look_and_the_watch_is_not_missed(
    folder: ObjectStore, tmp_path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
):
    """The bell is marked before the look: what comes after it ends the wait at once."""
    other = in_folder(tmp_path / "jobs", options=OPTIONS)(clock)
    await other.connect()
    listing = folder.blobs.list

    async def look_then_write(*arguments: Any) -> Any:
        seen = await listing(*arguments)
        if arguments[0] == "ready/":
            monkeypatch.setattr(folder.blobs, "list", listing)
            await put(other, id="in between")
        return seen

    monkeypatch.setattr(folder.blobs, "list", look_then_write)
    async with asyncio.timeout(45):
        await folder.wait(["default"], None, 60)

    assert (await take(folder)).id == "in between"
    await other.close()


async def test_br_04_without_any_watcher_a_waiting_worker_hears_of_new_files(
    folder: ObjectStore, tmp_path, clock: VirtualClock, monkeypatch
):
    monkeypatch.setattr("millrace.store.object.directory.change_signal.find_spec", lambda name: None)
    other = in_folder(tmp_path / "jobs", options=OPTIONS)(clock)
    await other.connect()
    waiting = asyncio.create_task(folder.wait(["default"], None, 60))
    await asyncio.sleep(0.05)

    await put(other)

    async with asyncio.timeout(45):
        await waiting
    await other.close()


async def test_br_18_an_id_never_leaves_the_directory_nor_meets_another(folder: ObjectStore, tmp_path):
    ids = [
        "../../etc/passwd",
        "a:b:c",
        "A",
        "a",
        "\u00e9",
        "e\u0301",
        ".",
        "con",
        "x/../y",
        "\\\\host",
        "a" * 200,
        "%2e%2e",
        "-",
    ]
    await folder.enqueue([a_spec(id=job_id, payload=job_id.encode().hex().encode()) for job_id in ids])

    found = await folder.get(ids)

    assert [job.id for job in found if job is not None] == ids
    assert [bytes.fromhex(job.payload.decode()).decode() for job in found if job is not None] == ids
    assert [entry.name for entry in tmp_path.iterdir()] == ["jobs"]
    names = [file.name for file in (tmp_path / "jobs/tasks").rglob("*.json")]
    assert len({name.casefold() for name in names}) == len(ids)


async def test_br_20_numbers_sort_as_names_where_they_get_another_digit(bench: Bench):
    """They are milliseconds and a count, in 19 digits, which hold whatever 64 bits can."""
    bench.clock.set((10**18 >> 20) - 2)
    objects = await bench.client()
    names = []
    for n in range(6):
        names.append((await put(objects, delay=1 - n / 1000)).id)  # all due at the same moment: the number decides
        bench.clock.advance(0.001)
    bench.clock.advance(1)

    jobs = await objects.claim(a_claim(10))

    assert [job.id for job in jobs] == names
    assert jobs[0].seq < 10**18 < jobs[-1].seq
    assert [job.id for job in (await objects.find(Query())).jobs] == names


async def test_br_20_producers_do_not_wait_for_each_others_numbers(bench: Bench):
    one, other = await bench.client(), await bench.client()

    await asyncio.gather(*(store.enqueue([spec]) for store in (one, other) for spec in specs(20)))

    assert [key for key in bench.journal.of("write", "control/") if "queues" not in key] == []
    assert len({job.seq for job in await one.claim(a_claim(40))}) == 40


async def test_br_21_the_times_of_files_mean_nothing(folder: ObjectStore, tmp_path, clock: VirtualClock):
    """As after a restore or a copy: all files are of 1970, or of next year."""
    await control(folder, keep_completed=3_600)
    fresh = await put_completed(folder, b"1", keep_result=600)
    waits = await put(folder, expires=600)
    for when in (0, 4_000_000_000):
        for file in (tmp_path / "jobs").rglob("*"):
            if ".millrace" not in file.parts:
                os.utime(file, (when, when))
        await folder.maintain()
        assert ((await show(folder, fresh)).result, (await show(folder, waits)).state) == (b"1", State.WAITING)

    clock.advance(601)
    await folder.maintain()

    assert ((await show(folder, fresh)).result, (await show(folder, waits)).state) == (None, State.DEAD)


async def test_br_22_notifications_are_a_few_files_however_many_jobs_there_were(folder: ObjectStore, tmp_path):
    """A bell per kind of object, whose time is the message: nothing to remove, nothing to overwrite."""
    for _ in range(20):
        await put_completed(folder)
    bells = sorted(file.name for file in (tmp_path / "jobs/.millrace/bell").iterdir())
    for _ in range(20):
        await put_dead(folder)

    assert sorted(file.name for file in (tmp_path / "jobs/.millrace/bell").iterdir()) == bells
    assert len(bells) < 20


async def test_br_15_a_monitor_needs_no_leader_and_two_of_them_do_no_harm(bench: Bench):
    one, other = await bench.client(), await bench.client()
    await one.enqueue(specs(20))
    lost = await one.claim(a_claim(20, lease=1))
    bench.clock.advance(60)

    rescued = await asyncio.gather(*(store.reclaim(a_reclaim(worker=f"m-{n}")) for n, store in enumerate((one, other))))
    await asyncio.gather(one.sweep(full=True), other.sweep(full=True))

    jobs = [job for part in rescued for job in part]
    assert sorted(job.id for job in jobs) == sorted(job.id for job in lost)
    receipts = await one.settle([(job.lease, a_retry_change(0, stalled=1)) for job in jobs])
    assert set(receipts) == {Receipt.OK}
