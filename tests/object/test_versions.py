"""A job's records from the versions of its object (O-23, BO-19): complete, in order, and true about transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput
from millrace.domain.job import State
from millrace.domain.request import Claim
from millrace.store.object.directory import DirectoryBlobs
from millrace.store.object.driver import Driver
from millrace.store.object.engine.objects import Pending, opened, sealed, value_bytes
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.store.object.versions import VersionRecord, Versions, diff
from millrace.testing.builders import a_claim, a_spec
from tests.object.conftest import Bucket

OPTIONS = ObjectOptions(look_every=0, feed_delay=0, lock_patience=20, inline_limit=200)


@pytest.fixture(params=["directory", "s3"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    def driver() -> Driver:
        if request.param == "directory":
            return DirectoryBlobs(tmp_path / "jobs", durability="relaxed", keep_versions=["tasks/"])
        bucket: Bucket = request.getfixturevalue("ministack_bucket")
        return bucket.driver(f"v{abs(hash(request.node.nodeid)):x}")

    made = ObjectStore(driver, options=OPTIONS)
    await made.connect()
    yield made
    await made.close()


async def run_all(store: ObjectStore, claim: Claim, rounds: int) -> None:
    for _ in range(rounds):
        jobs = await store.claim(claim)
        await store.settle([(job.lease, Change.completed(b'"done"')) for job in jobs])


async def distinct(store: ObjectStore, job_id: str) -> list[VersionRecord]:
    return [record for record in await Versions(store).oldest_first(job_id) if not record.repeats]


def states(records: list[VersionRecord]) -> list[State | None]:
    return [None if record.job is None else record.job.state for record in records]


async def test_every_step_is_there_with_the_whole_record(store: ObjectStore):
    await store.enqueue([a_spec(id="a", payload=b'{"n":1}')])
    await run_all(store, a_claim(limit=1), 1)

    records = await distinct(store, "a")

    assert states(records) == [State.WAITING, State.RUNNING, State.COMPLETED]
    assert [record.rev for record in records] == [1, 2, 3]
    assert all(record.job is not None and record.job.payload == b'{"n":1}' for record in records)
    assert records[-1].job is not None and records[-1].job.result == b'"done"'
    assert {one.field: (one.before, one.after) for one in diff(records[1], records[2])}["result"] == (None, "done")
    assert diff(records[0], records[0]) == []


@pytest.mark.parametrize("size", [1, 2, 3, 5])
async def test_pages_of_any_size_tell_the_same(store: ObjectStore, size: int):
    """Steps of a group are transactions: a pending version may stand at the edge of a page."""
    await store.enqueue([a_spec(id=name, group="g") for name in "abcdef"])
    await run_all(store, a_claim(limit=1), 3)
    versions = Versions(store)
    whole = [record async for record in versions.newest_first("b")]

    paged: list[VersionRecord] = []
    cursor: str | None = None
    while True:
        page = await versions.page("b", cursor, size)
        paged += page.records
        assert len(page.records) <= size
        if page.cursor is None:
            break
        cursor = page.cursor

    assert [(one.version, one.rev, one.repeats) for one in paged] == [
        (one.version, one.rev, one.repeats) for one in whole
    ]
    assert any(one.repeats for one in whole)
    revs = [record.rev for record in await distinct(store, "b")]
    assert revs == sorted(set(revs))
    assert states(await distinct(store, "b"))[-2:] == [State.RUNNING, State.COMPLETED]
    with pytest.raises(InvalidInput):
        await versions.page("b", None, 0)


async def pend(store: ObjectStore, job_id: str, text: bytes) -> bytes:
    """Leave an undecided write of this job's object; answers the value before it."""
    key = store.engine.layout.job(job_id)
    blob = await store.blobs.get(key)
    assert blob is not None
    value = value_bytes(opened(blob.body).value)
    assert value is not None
    changed = value.replace(b'"priority":4', text)
    assert changed != value
    body = sealed(value, pending=Pending("tx", "lines/default/l-0.json", opened(sealed(changed)).value))
    await store.blobs.swap(key, body, blob.tag)
    return value


async def test_a_write_that_is_under_way_does_not_count_yet(store: ObjectStore):
    await store.enqueue([a_spec(id="a", priority=4)])
    await pend(store, "a", b'"priority":9')

    [newest, oldest] = (await Versions(store).page("a")).records

    assert newest.undecided and newest.repeats and not oldest.undecided
    assert newest.job is not None and newest.job.priority == 4


async def test_a_write_that_was_taken_back_never_counts(store: ObjectStore):
    await store.enqueue([a_spec(id="a", priority=4)])
    value = await pend(store, "a", b'"priority":9')
    key = store.engine.layout.job("a")
    blob = await store.blobs.get(key)
    assert blob is not None
    await store.blobs.swap(key, sealed(value), blob.tag)  # as a writer does in whose way it stood

    records = (await Versions(store).page("a")).records

    assert [record.repeats for record in records] == [True, True, False]
    first = await Versions(store).page("a", None, 1)
    second = await Versions(store).page("a", first.cursor, 1)  # what decides about it is on the page before
    assert (*first.records, *second.records) == records[:2]
    assert {record.job.priority for record in records if record.job is not None} == {4}


async def test_a_write_that_was_carried_through_counts_from_the_start(store: ObjectStore):
    await store.enqueue([a_spec(id="a", priority=4)])
    value = await pend(store, "a", b'"priority":9')
    key = store.engine.layout.job("a")
    blob = await store.blobs.get(key)
    assert blob is not None
    await store.blobs.swap(key, sealed(value.replace(b'"priority":4', b'"priority":9')), blob.tag)

    records = (await Versions(store).page("a")).records

    assert [record.job.priority for record in records if record.job is not None] == [9, 9, 4]
    assert [record.repeats for record in records] == [True, False, False]


async def test_many_jobs_put_in_at_once_have_been_there_from_the_start(store: ObjectStore):
    """They stay pending behind a manifest until something happens to them."""
    await store.enqueue([a_spec(id=f"j{n}") for n in range(20)])
    [only] = await distinct(store, "j7")
    assert only.job is not None and only.job.state is State.WAITING and not only.undecided

    await run_all(store, a_claim(limit=20), 1)

    assert states(await distinct(store, "j7")) == [State.WAITING, State.RUNNING, State.COMPLETED]


async def test_large_data_that_is_gone_is_told(store: ObjectStore):
    await store.enqueue([a_spec(id="big", payload=b'"' + b"x" * 500 + b'"')])
    [record] = await distinct(store, "big")
    assert record.missing == () and record.job is not None and len(record.job.payload) == 502

    listed = await store.blobs.list("data/")
    await store.blobs.delete([entry.key for entry in listed.entries])
    [record] = await distinct(store, "big")

    assert record.missing == ("input",) and record.job is not None and record.job.payload == b""


async def test_a_job_nobody_knows_has_no_versions(store: ObjectStore):
    assert (await Versions(store).page("nobody")).records == ()
    assert Versions(store).kept


async def test_a_deleted_object_is_told_where_the_store_notes_deletions(store: ObjectStore):
    await store.enqueue([a_spec(id="a")])
    await store.blobs.delete([store.engine.layout.job("a")])

    records = await Versions(store).oldest_first("a")

    assert states(records)[0] is State.WAITING
    assert [record.deleted for record in records] == ([False, True] if store.url.startswith("s3:") else [False])
    assert diff(records[0], records[-1]) != [] or len(records) == 1


async def test_a_place_without_versions_says_so():
    store = ObjectStore(MemoryBlobs, options=OPTIONS)
    await store.connect()

    assert Versions(store).kept == store.blobs.keeps_versions
    await store.close()
