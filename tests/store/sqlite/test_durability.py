"""What waits for the disk, and what need not: a claim that a crash of the machine undoes leaves a job that waits."""

import asyncio

import pytest

from millrace.domain.change import Change
from millrace.domain.request import Claim, Extension, Reclaim, WorkerInfo
from millrace.store.sqlite import SqliteStore
from millrace.store.sqlite.connection import Io
from millrace.testing.builders import a_spec

NORMAL, FULL = 1, 2


class Disk(Io):
    """Sees how each commit and each read of the feed treats the disk."""

    def __init__(self):
        self.commits = []
        self.synced = []

    def commit(self, connection):
        [(level,)] = connection.execute("PRAGMA synchronous").fetchall()
        self.commits.append(level)
        super().commit(connection)

    def sync(self, path):
        self.synced.append(path)
        super().sync(path)


@pytest.fixture
def disk():
    return Disk()


async def opened(tmp_path, disk, durability="full"):
    store = SqliteStore(tmp_path / "jobs.db", io=disk, durability=durability)
    await store.connect()
    disk.commits.clear()
    return store


async def test_promises_wait_for_the_disk_and_claims_do_not(tmp_path, disk):
    store = await opened(tmp_path, disk)
    await store.enqueue([a_spec(id="a", lease=0.05)])
    [job] = await store.claim(Claim(("default",), "w", 1))
    await store.beat(WorkerInfo("w"), 1_000)
    await store.extend([Extension(job.lease, 1)])
    await asyncio.sleep(0.02)
    [job] = await store.reclaim(Reclaim("w", 1, 30_000))
    await store.settle([(job.lease, Change.completed(b"1"))])
    await store.cancel(["a"])
    await store.close()

    assert disk.commits == [FULL, NORMAL, NORMAL, NORMAL, NORMAL, FULL, FULL]


async def test_a_claim_that_shares_a_commit_with_an_enqueue_waits_with_it(tmp_path, disk):
    store = await opened(tmp_path, disk)
    await store.claim(Claim(("default",), "w", 1))
    begun = asyncio.gather(*(store.enqueue([a_spec()]) for _ in range(20)), store.claim(Claim(("default",), "w", 1)))
    await begun
    await store.close()

    assert disk.commits[0] == NORMAL
    assert FULL in disk.commits[1:]
    assert disk.commits.count(FULL) >= len(disk.commits) - 2  # the claim alone, if it came too late for the others


async def test_a_cursor_is_only_given_out_for_what_is_on_disk(tmp_path, disk):
    """A reader that goes on from a cursor after a crash of the machine must not find other events before it."""
    store = await opened(tmp_path, disk)
    await store.enqueue([a_spec()])
    await store.claim(Claim(("default",), "w", 1))
    assert disk.synced == []

    page = await store.events(None, 100)

    assert [event.kind for event in page.events] == ["enqueued", "claimed"]
    assert disk.synced == [f"{tmp_path}/jobs.db-wal"]
    await store.close()


async def test_relaxed_waits_for_nothing(tmp_path, disk):
    store = await opened(tmp_path, disk, "relaxed")
    await store.enqueue([a_spec()])
    await store.claim(Claim(("default",), "w", 1))
    await store.events(None, 100)
    await store.close()

    assert set(disk.commits) == {NORMAL}
    assert disk.synced == []
