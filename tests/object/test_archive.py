"""Compaction: archived jobs leave the store for Parquet, and whoever reads the tables sees no difference."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput, StoreError
from millrace.domain.event import Kind
from millrace.domain.job import Job, Spec, State
from millrace.spark import upkeep, upkeep_work
from millrace.spark.archive import operations as archive
from millrace.spark.archive.rows import columns_of, jobs_in
from millrace.spark.open import opened
from millrace.spark.upkeep_work import MergeFiles, RemoveJobs, WriteFiles
from millrace.store.archived import ArchiveFile
from millrace.store.object.archive.files import FILES, GRACE, MANIFEST, SILENCE, ArchiveBusy
from millrace.store.object.driver import Unavailable
from millrace.store.object.engine.engine import Crowded
from millrace.store.object.engine.objects import Swap
from millrace.store.object.engine.values import encode
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.store import ObjectStore
from millrace.testing.builders import a_burial, a_claim, a_spec, days, hours
from millrace.testing.clock import START, VirtualClock
from millrace.testing.invariants import assert_holds, gather
from tests.narrowing import checked_cast, the
from tests.object.archiving import FAR, Reading, compact, here, in_memory, rows
from tests.object.stores import a_site
from tests.spark.filled import fill

LARGE = b'"' + b"x" * 2_000 + b'"'
DAY = 24 * 60 * 60


@dataclass
class Yard:
    store: ObjectStore
    blobs: MemoryBlobs
    clock: VirtualClock

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self.blobs._keys if key.startswith(prefix)]

    async def archived(self, *ids: str, **spec) -> None:
        """Completed and archived."""
        await self.store.enqueue([a_spec(id=one, **{"keep_result": 0, **spec}) for one in ids])
        while claimed := await self.store.claim(a_claim(100)):
            await self.store.settle([(job.lease, Change.completed(b"1")) for job in claimed])
        await self.store.archive(ids)

    async def well(self) -> None:
        assert_holds(await gather(self.store, since=START))
        self.clock.advance(20)
        assert (await self.store.sweep(full=True)).repairs == {}


@pytest.fixture
async def yard() -> Yard:
    clock = VirtualClock()
    store, blobs = in_memory(clock)
    await store.connect()
    return Yard(store, blobs, clock)


async def a_mixed_store(yard: Yard) -> list[str]:
    """Something of everything, and large payloads; what can be compacted."""
    await fill(yard.store)
    await yard.store.cancel(["later"])  # while it was open, the result of job-0 would be kept for it
    await yard.store.enqueue([a_spec(id="large", payload=LARGE, queue="mail", task="send")])
    [large] = await yard.store.claim(a_claim(1, queue="mail"))
    await yard.store.settle([(large.lease, a_burial())])
    yard.clock.advance(2 * 3600)  # results are kept for an hour
    await yard.store.maintain()
    ids = [f"job-{number}" for number in range(20)] + ["large"]
    await yard.store.archive(ids)
    return ids


# ── nothing is lost, and nothing is there twice ───────────────────────────────────────────────


@pytest.mark.parametrize("table", ["jobs", "dead"])
async def test_the_tables_are_the_same_before_and_after(yard: Yard, table):
    await a_mixed_store(yard)
    before = await rows(yard.store, table)

    outcome = await compact(yard.store)

    assert outcome.compacted == outcome.found == 17 and outcome.files == outcome.files_written == 1
    assert await rows(yard.store, table) == before
    assert len(await rows(yard.store, table, compacted="without")) < len(before)
    await yard.well()


async def test_the_jobs_are_gone_from_the_store_as_retention_removes_them(yard: Yard):
    ids = await a_mixed_store(yard)
    before = {row.queue: (row.processed, row.died) for row in await yard.store.count()}

    await compact(yard.store)

    left = [job.id for job in await yard.store.get(ids) if job is not None]
    assert left == ["job-2", "job-7", "job-12", "job-17"]  # in backoff: not finished, so not archived
    assert yard.keys("data/") == [] and [key for key in yard.keys("done/") if ".later" not in key] == []
    assert {row.queue: (row.processed, row.died) for row in await yard.store.count()} == before
    last = (await yard.store.history("job-1"))[-1]
    assert (last.kind, last.reason) == (Kind.PRUNED, "compacted")


async def test_files_hold_the_records_and_the_histories_whole(yard: Yard):
    ids = await a_mixed_store(yard)
    jobs = {job.id: job for job in await yard.store.get(ids) if job is not None}
    histories = [event for one in ids for event in await yard.store.history(one)]

    await compact(yard.store)

    [file] = (await yard.store.compacted.value()).files
    body = the(await yard.store.compacted.get(file.key))
    [batch] = columns_of(body, ["record", "payload", "result"])
    assert {job.id: job for job in jobs_in(batch)} == {one: jobs[one] for one in jobs if jobs[one].archived}
    told = await rows(yard.store, "events", compacted="only")
    wanted = sorted((e.seq, e.n, str(e.kind)) for e in histories if jobs[e.job].archived)
    assert [(row["seq"], row["n"], row["kind"]) for row in told] == wanted


async def test_after_the_feed_was_trimmed_the_history_is_in_the_file_still(yard: Yard):
    await yard.archived("a")
    await compact(yard.store)
    await yard.store.control("store", "", {"keep_events": days(1)})
    yard.clock.advance(3 * DAY)
    while (await yard.store.maintain()).more:
        pass

    assert await yard.store.history("a") == []
    told = await rows(yard.store, "events", compacted="only")
    assert [row["kind"] for row in told] == ["enqueued", "claimed", "completed", "archived"]


@pytest.mark.parametrize("kind", ["directory", "s3"])
async def test_a_directory_and_a_bucket_hold_the_same_files(request, kind):
    async with a_site(request, kind, None) as site:
        store = await site.client()
        await store.enqueue([a_spec(id=f"j{n}", payload=LARGE, keep_result=0) for n in range(12)])
        claimed = await store.claim(a_claim(12))
        await store.settle([(job.lease, a_burial()) for job in claimed])
        await store.archive([f"j{n}" for n in range(10)])
        before = await rows(store)

        outcome = await compact(store, limit=7)
        other = await site.client()

        assert (outcome.compacted, outcome.jobs) == (7, 7)
        assert await rows(other) == before and len(await rows(other, compacted="without")) == 5
        assert (await archive.expire(store, here(store), before=FAR, grace=0)).files_deleted == 1
        assert len(await rows(other)) == 5


# ── what is compacted ─────────────────────────────────────────────────────────────────────────


async def test_only_what_was_archived_is_old_enough_and_nobody_waits_for_goes(yard: Yard):
    await yard.store.control("queue", "again", {"auto_retries": 1, "auto_retry_delay": hours(5)})
    await yard.archived("old")
    yard.clock.advance(DAY)
    before = await yard.store.now()
    yard.clock.advance(DAY)
    await yard.archived("young")
    await yard.archived("fetched", keep_result=hours(48))
    await yard.archived("shown")
    await yard.store.archive(["shown"], False)
    await yard.store.enqueue([a_spec(id="returns", queue="again")])
    [dying] = await yard.store.claim(a_claim(1, queue="again"))
    await yard.store.settle([(dying.lease, a_burial())])
    await yard.store.archive(["returns"])

    first = await compact(yard.store, before=before)
    second = await compact(yard.store)

    assert (first.found, first.compacted) == (1, 1)
    assert (second.found, second.compacted, second.not_yet) == (3, 1, 2)
    left = await yard.store.get(["old", "young", "fetched", "shown", "returns"])
    assert [job and job.id for job in left] == [None, None, "fetched", "shown", "returns"]


async def test_a_limit_takes_the_oldest(yard: Yard):
    for one in ("c", "a", "b"):
        await yard.archived(one)
        yard.clock.advance(1)

    outcome = await compact(yard.store, limit=2)

    assert (outcome.found, outcome.compacted) == (2, 2)
    assert [job and job.id for job in await yard.store.get(["c", "a", "b"])] == [None, None, "b"]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_less_than_one_job_is_refused(tmp_path, limit):
    with pytest.raises(InvalidInput, match="at least 1 job, or None for all"):
        upkeep.compactable(f"file://{tmp_path}", limit=limit)


async def test_figures_say_what_there_is_to_do_and_change_nothing(yard: Yard):
    await a_mixed_store(yard)
    written = yard.blobs._changes

    found = await archive.preview(yard.store, FAR, None)

    assert {(one.queue, one.state): one.jobs for one in found} == {
        ("mail", "completed"): 5,
        ("mail", "dead"): 4,
        ("mail", "cancelled"): 2,
        ("parcels", "completed"): 3,
        ("parcels", "dead"): 1,
        ("parcels", "cancelled"): 2,
    }
    assert all(the(one.first) <= the(one.last) for one in found) and yard.blobs._changes == written
    assert all((one.not_yet, one.until) == (0, None) for one in found)


async def test_a_look_says_what_will_be_done_and_what_stays_until_when(yard: Yard):
    """Index keys tell that jobs are archived; only the jobs themselves, that somebody may still fetch a result."""
    await yard.archived("free")
    for number in range(1, 4):
        await yard.archived(f"kept-{number}", keep_result=number * 3600)
    until = await yard.store.now() + hours(3)

    [shown] = await archive.preview(yard.store, FAR, None)
    done = await compact(yard.store)

    assert (shown.jobs, shown.not_yet, shown.until) == (1, 3, until)
    assert (done.compacted, done.not_yet, done.until) == (1, 3, until)
    [waiting] = await archive.preview(yard.store, FAR, None)
    assert (waiting.jobs, waiting.first, waiting.not_yet) == (0, None, 3)
    yard.clock.advance(3 * 3600)
    [free] = await archive.preview(yard.store, FAR, None)
    assert (free.jobs, free.not_yet) == (3, 0)
    assert (await compact(yard.store)).compacted == 3


async def test_a_compacted_id_is_as_free_as_a_pruned_one(yard: Yard):
    await yard.archived("again", key="k", scope="retained")
    await compact(yard.store)

    await yard.store.enqueue([a_spec(id="again", key="k", scope="retained")])

    [job] = await yard.store.get(["again"])
    assert job is not None and job.generation == 2
    both = await rows(yard.store)
    assert [(row["id"], row["generation"], row["archived"]) for row in both] == [
        ("again", 1, True),
        ("again", 2, False),
    ]


async def test_a_key_that_a_crash_has_left_does_not_bring_a_later_job_of_that_id_into_files_twice(yard: Yard):
    await yard.archived("again")
    [left] = yard.keys("done/")
    await compact(yard.store)
    await yard.store.blobs.put(left, b"")  # as if it had died before its deletions
    yard.clock.advance(32 * DAY)  # another month, so another chunk
    await yard.archived("again")

    outcome = await compact(yard.store)

    assert (outcome.found, outcome.compacted) == (1, 1)
    assert [(row["id"], row["generation"]) for row in await rows(yard.store)] == [("again", 1), ("again", 2)]


# ── jobs that live on meanwhile ───────────────────────────────────────────────────────────────


async def written_but_not_removed(yard: Yard, names: tuple[str, ...]) -> tuple[str, ArchiveFile]:
    """A run that stops where its files count, and its jobs are still there."""
    run = await yard.store.compacted.begin()
    [done] = await here(yard.store)([WriteFiles(f"{run}-0", names, FAR)])
    [file] = done.files
    await yard.store.compacted.add(run, [file])
    return run, file


async def test_a_job_that_was_replayed_before_its_removal_stays_and_its_row_does_not_count(yard: Yard):
    await yard.archived("a", "b")
    run, file = await written_but_not_removed(yard, ("a", "b"))
    await yard.store.replay(["a"])

    [done] = await here(yard.store)([RemoveJobs("default", (file,))])
    await yard.store.compacted.close(run, done.void)

    [a, b] = await yard.store.get(["a", "b"])
    assert a is not None and b is None and done.removed == 1
    assert [(row["id"], row["state"]) for row in await rows(yard.store)] == [("a", "waiting"), ("b", "completed")]
    await yard.store.compacted.end(run)
    await yard.store.cancel(["a"])
    await yard.store.archive(["a"])
    assert (await compact(yard.store)).compacted == 1
    again = await rows(yard.store)
    assert [(row["id"], row["state"]) for row in again] == [("a", "cancelled"), ("b", "completed")]


@pytest.mark.parametrize(("meanwhile", "counts"), [("retention", True), ("obliterate", False), ("unarchive", False)])
async def test_a_job_that_is_gone_counts_if_it_went_as_it_was_written(yard: Yard, meanwhile, counts):
    await yard.archived("a")
    run, file = await written_but_not_removed(yard, ("a",))
    if meanwhile == "obliterate":
        await yard.store.obliterate("default")
    else:
        if meanwhile == "unarchive":
            await yard.store.archive(["a"], False)
        await yard.store.control("queue", "default", {"keep_completed": 1})
        yard.clock.advance(1)
        await yard.store.maintain()

    [done] = await here(yard.store)([RemoveJobs("default", (file,))])
    await yard.store.compacted.close(run, done.void)

    assert [row["id"] for row in await rows(yard.store)] == (["a"] if counts else [])


async def test_a_run_that_was_killed_is_finished_by_the_next(yard: Yard):
    await yard.archived("a", "b")
    before = await rows(yard.store)
    await written_but_not_removed(yard, ("a", "b"))
    assert await rows(yard.store) == before

    with pytest.raises(ArchiveBusy, match="last heartbeat was 0 s ago"):
        await compact(yard.store)
    yard.clock.advance(SILENCE / 1000 + 1)
    outcome = await compact(yard.store)

    assert (outcome.finished, outcome.compacted, outcome.found) == (2, 0, 0)
    assert await rows(yard.store) == before and await yard.store.get(["a", "b"]) == [None, None]


def test_a_run_that_somebody_interrupts_does_not_keep_the_next_one_waiting(tmp_path):
    """Ctrl-C in a program of one's own; a command is interrupted elsewhere."""

    def interrupt(*_):
        raise KeyboardInterrupt

    async def each(works):
        signal.raise_signal(signal.SIGUSR1)  # in this thread, so that it is handled here and now
        await asyncio.sleep(60)

    async def enqueued(store):
        await store.enqueue([a_spec(id="a")])
        await store.cancel(["a"])
        await store.archive(["a"])

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with opened(f"file://{tmp_path}?durability=relaxed") as found:
            store = checked_cast(ObjectStore, found.store)
            found.run(enqueued(store))
            with pytest.raises(KeyboardInterrupt):
                found.run(archive.compact(store, each, before=FAR))
            assert found.run(store.compacted.value()).run is None
    finally:
        signal.signal(signal.SIGUSR1, before)


async def test_whoever_was_taken_for_dead_changes_nothing_any_more(yard: Yard):
    await yard.archived("a")
    archived = yard.store.compacted
    late = await archived.begin()
    [done] = await here(yard.store)([WriteFiles(f"{late}-0", ("a",), FAR)])
    yard.clock.advance(SILENCE / 1000 + 1)
    outcome = await compact(yard.store)

    for change in (archived.add(late, done.files), archived.beat(late), archived.tidy(late), archived.end(late)):
        with pytest.raises(ArchiveBusy, match="another run has taken over"):
            await change
    assert outcome.files_deleted == 1 and len(yard.keys(FILES)) == 1  # what the late one wrote for nothing is gone


class AnswerLost(MemoryBlobs):
    """The answer to the next write of the manifest is lost, and something happens before anybody looks."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def write(self, writes):
        answers = await super().write(writes)
        if self.meanwhile is None or writes[0].key != MANIFEST:
            return answers
        meanwhile, self.meanwhile = self.meanwhile, None
        await meanwhile()
        return [Unavailable("the connection was reset")]


@pytest.mark.parametrize("step", ["add", "replace"])
async def test_a_file_is_named_once_also_where_the_answer_was_lost_and_the_run_has_beaten_since(step):
    clock = VirtualClock()
    blobs = AnswerLost(clock=clock)
    store, _ = in_memory(clock, blobs)
    await store.connect()
    archived = store.compacted
    run = await archived.begin()
    file = ArchiveFile(f"{FILES}{run}-0.parquet", ("p",), 1, 1, 1, 1, ("q",))

    async def beat() -> None:
        clock.advance(30)
        await archived.beat(run)

    blobs.meanwhile = beat
    await (archived.add(run, [file]) if step == "add" else archived.replace(run, [], [file]))

    value = await archived.value()
    assert value.files == (file,) and blobs.meanwhile is None


# ── reading while it happens ──────────────────────────────────────────────────────────────────


async def test_what_is_compacted_between_plan_and_read_is_read_once(yard: Yard):
    await yard.archived("old")
    await compact(yard.store)
    await yard.archived(*(f"j{n}" for n in range(8)))
    before = await rows(yard.store)
    reading = await Reading(yard.store, "jobs").plan()

    await compact(yard.store)

    assert await reading.rows() == before


async def test_what_is_compacted_in_the_middle_of_a_read_is_read_once(yard: Yard):
    await yard.archived(*(f"j{n}" for n in range(8)))
    before = await rows(yard.store)
    reading = await Reading(yard.store, "jobs").plan()
    first = await reading.rows(reading.shares[:1])

    await compact(yard.store)
    rest = await reading.rows(reading.shares[1:])

    assert 0 < len(first) < 8 and sorted([*first, *rest], key=lambda row: row["seq"]) == before


async def test_jobs_that_were_just_met_in_the_store_are_not_shown_again_from_their_file(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
):
    await yard.archived(*(f"j{n}" for n in range(8)))
    stop = yard.store.scan

    async def scan_then_compact(*arguments):
        async for jobs in stop(*arguments):
            yield jobs
        if (await yard.store.compacted.value()).files == ():
            await compact(yard.store)

    before = await rows(yard.store)
    monkeypatch.setattr(yard.store, "scan", scan_then_compact)
    assert await rows(yard.store) == before
    assert await yard.store.get(["j0"]) == [None]


async def test_a_read_by_ids_finds_compacted_jobs_too(yard: Yard):
    await yard.archived("a", "b", "c")
    reading = Reading(yard.store, "jobs")
    from millrace.spark.filters import Condition

    reading._reader._conditions = (Condition("id", "In", ("a", "c")),)
    before = await (await reading.plan()).rows()
    await compact(yard.store)

    assert [row["id"] for row in before] == ["a", "c"]
    assert await reading.rows() == before  # planned before
    assert await (await reading.plan()).rows() == before


# ── files that come and go ────────────────────────────────────────────────────────────────────


async def months_of_files(yard: Yard, *months: int) -> None:
    for at, month in enumerate(months):
        await yard.archived(f"m{month}-{at}")
        await compact(yard.store)
        yard.clock.advance(DAY if months[at + 1 : at + 2] == (month,) else 32 * DAY)


async def test_small_files_of_a_month_are_merged_and_readers_of_the_old_ones_go_on(yard: Yard):
    for number in range(archive.FEW - 1):
        await yard.archived(f"j{number}")
        assert (await compact(yard.store)).files_merged == 0
    reading = await Reading(yard.store, "jobs").plan()
    before = await reading.rows()
    await yard.archived("last")

    outcome = await compact(yard.store)
    await archive.expire(yard.store, here(yard.store), before=0, grace=0)

    assert (outcome.files_merged, outcome.files, outcome.jobs) == (archive.FEW, 1, archive.FEW)
    assert len(yard.keys(FILES)) == 1
    assert [row for row in await reading.rows() if row["id"] != "last"] == before
    assert len(await rows(yard.store)) == archive.FEW


async def test_merged_files_leave_out_what_does_not_count(yard: Yard):
    await yard.archived("a", "b")
    run, file = await written_but_not_removed(yard, ("a", "b"))
    await yard.store.replay(["a"])
    [done] = await here(yard.store)([RemoveJobs("default", (file,))])
    await yard.store.compacted.close(run, done.void)
    [closed] = (await yard.store.compacted.value()).files

    [merged] = (await here(yard.store)([MergeFiles(f"{run}-m", (closed,))]))[0].files
    await yard.store.compacted.replace(run, [closed.key], [merged])

    assert (merged.rows, merged.void, merged.parts) == (1, (), closed.parts)
    assert [row["id"] for row in await rows(yard.store)] == ["a", "b"]


async def test_what_was_replaced_stays_for_a_while(yard: Yard):
    for number in range(archive.FEW):
        await yard.archived(f"j{number}")
        await compact(yard.store)
    assert len(yard.keys(FILES)) == archive.FEW + 1

    yard.clock.advance(GRACE / 1000 + 1)
    assert (await compact(yard.store)).files_deleted == archive.FEW
    assert len(yard.keys(FILES)) == 1


async def test_files_of_months_apart_are_not_merged_and_expire_one_by_one(yard: Yard):
    await months_of_files(yard, 1, 2, 2, 3)
    value = await yard.store.compacted.value()
    assert archive.small_files(value.files) == []
    reading = await Reading(yard.store, "jobs").plan()
    oldest = min(file.last for file in value.files)

    outcome = await archive.expire(yard.store, here(yard.store), before=oldest + 1, grace=0)

    assert (outcome.files_expired, outcome.jobs_expired, outcome.files_deleted, outcome.files) == (1, 1, 1, 3)
    assert [row["id"] for row in await reading.rows()] == ["m2-1", "m2-2", "m3-3"]
    assert [row["id"] for row in await rows(yard.store)] == ["m2-1", "m2-2", "m3-3"]


async def test_a_file_is_kept_until_all_of_it_has_expired(yard: Yard):
    await yard.archived("a")
    first = await yard.store.now()
    yard.clock.advance(60)
    await yard.archived("b")
    await compact(yard.store)

    assert (await archive.expire(yard.store, here(yard.store), before=first + 1)).files_expired == 0
    assert len(await rows(yard.store)) == 2


async def test_chunks_end_with_the_month_and_groups_with_the_size(yard: Yard, monkeypatch):
    def entry_like(at: int) -> ArchiveFile:
        return ArchiveFile(f"k{at}", (f"p{at}",), 1, 5 << 20, at, at, ("q",))

    january, february = 1_700_000_000_000, 1_703_000_000_000
    files = [entry_like(january + n) for n in range(8)] + [entry_like(february + n) for n in range(3)]

    groups = archive.small_files(files)

    assert [len(group) for group in groups] == [6]  # 30 of 32 MiB; two that are left, and three, are too few


async def test_a_column_that_a_file_does_not_have_is_made_from_the_record(yard: Yard):
    await yard.archived("a", priority=3)
    await compact(yard.store)
    [file] = (await yard.store.compacted.value()).files
    body = await yard.store.compacted.get(file.key)
    older = pq.read_table(pa.BufferReader(body)).drop_columns(["priority", "max_attempts", "attempts"])
    sink = pa.BufferOutputStream()
    pq.write_table(older, sink)
    await yard.store.blobs.put(file.key, bytes(sink.getvalue()))

    [row] = await rows(yard.store)

    assert (row["priority"], row["max_attempts"], row["archived"]) == (3, 4, True)


async def as_if_older(yard: Yard, file: ArchiveFile) -> None:
    """As it would have been before some columns, and a field of events, were added to the tables."""
    body = await yard.store.compacted.get(file.key)
    table = pq.read_table(pa.BufferReader(body)).drop_columns(["priority", "max_attempts", "attempts"])
    histories = table["history"].combine_chunks()
    kept = [field for field in histories.type.value_type if field.name != "delay_ms"]
    events = pa.StructArray.from_arrays([histories.values.field(field.name) for field in kept], fields=kept)
    older = pa.ListArray.from_arrays(histories.offsets, events)
    sink = pa.BufferOutputStream()
    pq.write_table(table.set_column(table.schema.get_field_index("history"), "history", older), sink)
    await yard.store.blobs.put(file.key, bytes(sink.getvalue()))


@pytest.mark.parametrize("merged", [False, True])
async def test_older_files_are_read_and_merged_with_younger_ones(yard: Yard, merged):
    for name in ("a", "b"):
        await yard.archived(name, priority=3)
        await compact(yard.store)
    files = (await yard.store.compacted.value()).files
    jobs, events = await rows(yard.store), await rows(yard.store, "events", compacted="only")
    await as_if_older(yard, files[0])
    if merged:
        run = await yard.store.compacted.begin()
        [one] = (await here(yard.store)([MergeFiles(f"{run}-m", files)]))[0].files
        await yard.store.compacted.replace(run, [file.key for file in files], [one])

    assert await rows(yard.store) == jobs
    assert await rows(yard.store, "events", compacted="only") == events


async def test_a_file_that_somebody_deleted_by_hand_is_an_error_and_not_an_empty_table(yard: Yard):
    await yard.archived("a")
    await compact(yard.store)
    await yard.blobs.delete(yard.keys(FILES))

    with pytest.raises(Exception, match="is missing, and the archive's manifest names it"):
        await rows(yard.store)


async def test_the_archive_of_a_later_version_is_left_alone(yard: Yard):
    await yard.archived("one")
    await compact(yard.store)
    [seen] = await yard.store.engine.objects.read([MANIFEST])
    later = encode(msgspec.structs.replace(await yard.store.compacted.value(), version=2))
    await yard.store.engine.objects.commit([Swap(seen, later)])

    with pytest.raises(StoreError, match="later version of Millrace"):
        await yard.store.compacted.value()
    with pytest.raises(StoreError, match="later version of Millrace"):
        await yard.store.compacted.begin()


async def test_two_who_compact_at_once_do_not_meet(yard: Yard):
    await yard.archived(*(f"j{n}" for n in range(6)))
    before = await rows(yard.store)

    both = await asyncio.gather(compact(yard.store), compact(yard.store), return_exceptions=True)

    assert sorted(isinstance(one, ArchiveBusy) for one in both) == [False, True]
    assert await rows(yard.store) == before


async def test_where_workers_are_always_faster_fewer_are_removed_at_a_time(yard: Yard, monkeypatch):
    ids = [f"j{n}" for n in range(30)]
    await yard.archived(*ids)
    carry_out, sizes = yard.store.engine.carry_out, []

    async def crowded(items, **how):
        sizes.append(len(items))
        if len(items) > 5:
            raise Crowded("too many processes")
        return await carry_out(items, **how)

    monkeypatch.setattr(yard.store.engine, "carry_out", crowded)
    assert (await compact(yard.store)).compacted == 30
    assert max(sizes[2:]) <= 5 and await yard.store.get(ids) == [None] * 30


async def test_large_jobs_fill_several_files(yard: Yard, monkeypatch):
    monkeypatch.setattr(upkeep_work, "LARGEST", 30_000)
    monkeypatch.setattr(upkeep_work, "AT_ONCE", 5)
    ids = [f"j{n}" for n in range(40)]
    await yard.store.enqueue(
        [a_spec(id=one, payload=b'"' + random.randbytes(1_500).hex().encode() + b'"') for one in ids]
    )
    await yard.store.cancel(ids)
    await yard.store.archive(ids)
    before = await rows(yard.store)

    outcome = await compact(yard.store)

    assert outcome.files_written > 1 and outcome.compacted == 40
    assert await rows(yard.store) == before


def test_jobs_and_specs_are_decoded_as_they_were_encoded():
    """What the record column stands on."""
    import msgspec

    job = Job(
        Spec("a", "t", payload=b"\xff\x00", headers={"h": "ü"}, after=("b",)), 1, 1, State.DEAD, 1, 2, result=b"\x01"
    )
    again = msgspec.json.decode(msgspec.json.encode(job), type=Job)
    assert again == job
