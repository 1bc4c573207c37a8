"""The integration tests that the bucket design asked for (O-35), by name: an app, real workers, and the real clock.

Each on a directory and on a bucket (O-02). What the operations O-16…O-26 promise beyond them stands below.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import pairwise

import msgspec
import pytest

from millrace import App, Context, State
from millrace.domain.change import Change
from millrace.domain.request import Archived, Receipt, Replayed
from millrace.store.object.keys import Layout
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.store.object.versions import VersionRecord, Versions
from millrace.testing.builders import a_claim, a_spec, seconds
from millrace.testing.conformance.scenes import kinds, put, show, take
from millrace.worker.options import WorkerKeywords
from tests.narrowing import the
from tests.object.stores import Site, a_site

OPTIONS = ObjectOptions(look_every=20, feed_delay=0)
QUICK: WorkerKeywords = {"poll_min": 0.01, "poll_max": 0.05, "reap_interval": 0.05, "beat_interval": 0.1}


@pytest.fixture(params=["directory", "s3"])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    async with a_site(request, request.param, None, OPTIONS) as found:
        yield found


@pytest.fixture
async def store(site: Site) -> ObjectStore:
    return await site.client()


@pytest.fixture
def app(store: ObjectStore) -> App:
    return App(store)


async def burst(app: App) -> None:
    options: WorkerKeywords = {**QUICK, "burst": True}
    await app.worker(**options).run(handle_signals=False)


def only_extended(before: VersionRecord, after: VersionRecord) -> bool:
    """A heartbeat came in between: on a slow machine an attempt of a moment has one too."""
    assert before.job
    assert after.job
    return msgspec.structs.replace(before.job, lease_until=after.job.lease_until) == after.job


async def keys_below(store: ObjectStore, *prefixes: str) -> list[str]:
    """The first parts of all index keys there are."""
    return [entry.key for prefix in prefixes for entry in (await store.blobs.list(prefix)).entries]


async def until(store: ObjectStore, job_id: str, state: State) -> None:
    async with asyncio.timeout(120):
        while (await show(store, job_id)).state is not state:
            await asyncio.sleep(0.01)


# ── O-35 ──────────────────────────────────────────────────────────────────────────────────────────


async def test_submit_claim_complete(app: App, store: ObjectStore):
    """O-16 … O-19: at each step the job object says where it is, and exactly one index key agrees."""
    seen = []

    @app.task
    async def double(ctx: Context, n: int) -> int:
        seen.append((await keys_below(store, "ready/", "leases/", "done/"), await show(store, ctx.job.id)))
        return 2 * n

    job = await double.enqueue(21)
    [ready] = await keys_below(store, "ready/", "leases/", "done/")
    await burst(app)

    assert ready.startswith("ready/") and ready.endswith(job.id)
    [([lease], running)] = seen
    assert lease.startswith("leases/") and lease.endswith(job.id)
    assert (running.state, running.attempt, running.result) == (State.RUNNING, 1, None)
    [done] = await keys_below(store, "ready/", "leases/", "done/")
    assert done.startswith("done/") and done.endswith(job.id)
    record = await show(store, job.id)
    assert (record.state, record.result, record.lease_id) == (State.COMPLETED, b"42", None)
    assert await kinds(store, job.id) == ["enqueued", "claimed", "completed"]


async def test_contention_on_one_task(site):
    """Five workers, each with a client of its own, and jobs that come one by one: each runs once."""
    ran: Counter[int] = Counter()
    apps = [App(await site.client()) for _ in range(5)]

    async def work(n: int) -> None:
        ran[n] += 1
        await asyncio.sleep(0.005)

    tasks = [app.task(name="work")(work) for app in apps]
    jobs = []
    async with asyncio.timeout(240), AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app.worker(**QUICK))
        for n in range(15):
            jobs.append(await tasks[0].enqueue(n))
        for job in jobs:
            await apps[0].jobs.result(job, wait=120)

    assert ran == dict.fromkeys(range(15), 1)
    assert [await kinds(apps[1].store, job.id) for job in jobs] == [["enqueued", "claimed", "completed"]] * 15


async def test_timeout_detection_and_requeue(app: App, store: ObjectStore):
    """O-11, O-22: the lease of a worker that is gone runs out; another one takes the job over, and it counts."""

    @app.task(retry=[0])
    async def work() -> str:
        return "rescued"

    job = await work.enqueue()
    [lost] = await store.claim(a_claim(worker="gone", lease=0.2))
    async with app.worker(**QUICK):
        assert await app.jobs.result(job, wait=120) == "rescued"

    record = await show(store, job.id)
    assert (record.attempt, record.failures, record.worker) == (2, 1, None)
    assert await kinds(store, job.id) == ["enqueued", "claimed", "reclaimed", "retried", "claimed", "completed"]
    assert await store.settle([(lost.lease, Change.completed(b'"late"'))]) == [Receipt.LOST]
    assert (await show(store, job.id)).result == b'"rescued"'
    assert await keys_below(store, "leases/") == []


async def test_a_timeout_in_the_worker_is_a_failure_that_may_be_retried(app: App, store: ObjectStore):
    """O-21, BO-17: the worker settles it itself, while its lease is live."""
    runs = []

    @app.task(timeout=0.5, lease=30, retry=[0])
    async def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            await asyncio.sleep(30)

    job = await work.enqueue()
    await burst(app)

    assert await kinds(store, job.id) == ["enqueued", "claimed", "retried", "claimed", "completed"]
    assert (await show(store, job.id)).failures == 1


async def test_graceful_shutdown_requeues(app: App, store: ObjectStore):
    """O-24, BO-07: at once, uncounted, under the same checks as any other end; and the worker's record goes."""
    begun = asyncio.Event()
    stays = True

    @app.task(max_attempts=1)
    async def work() -> str:
        begun.set()
        if stays:
            await asyncio.sleep(60)
        return "after all"

    job = await work.enqueue()
    worker = app.worker(**QUICK)
    async with asyncio.timeout(120), worker:
        await begun.wait()
        while [record.info.id for record in await store.workers()] != [worker.id]:
            await asyncio.sleep(0.01)
        await worker.stop(deadline=0)

    record = await show(store, job.id)
    assert (record.state, record.failures, record.releases, record.worker, record.lease_id) == (
        State.WAITING,
        0,
        1,
        None,
        None,
    )
    assert record.available_at <= await store.now()
    assert [key.split("/")[0] for key in await keys_below(store, "ready/", "leases/", "workers/")] == ["ready"]
    stays = False
    await burst(app)
    assert (await show(store, job.id)).result == b'"after all"'


async def test_failed_after_max_retries(app: App, store: ObjectStore):
    """O-10, O-20, BO-08: dead with its last error and no lease; and it stays where operators find it."""

    @app.task(max_attempts=3, retry=[0])
    async def fails(ctx: Context) -> None:
        raise ConnectionError(f"attempt {ctx.attempt}")

    job = await fails.enqueue()
    await burst(app)

    record = await show(store, job.id)
    assert (record.state, record.failures, record.attempt) == (State.DEAD, 3, 3)
    assert [the(attempt.error).message for attempt in record.attempts] == ["attempt 1", "attempt 2", "attempt 3"]
    assert (record.lease_id, record.lease_until, record.worker) == (None, None, None)
    assert [key.split("/")[:3] for key in await keys_below(store, "ready/", "leases/", "done/")] == [
        ["done", "default", "d"]
    ]
    assert [found.id async for found in app.jobs.find(state="dead")] == [job.id]


async def test_version_history_correct(app: App, store: ObjectStore):
    """O-23: every state the job was ever in is a version of its one object, in order, with its full record."""
    if not Versions(store).kept:
        pytest.skip("this bucket keeps no versions")

    @app.task(retry=[0])
    async def work(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ConnectionError("not yet")
        return 7

    job = await work.enqueue()
    await burst(app)
    await store.archive([job.id])

    kept = [record for record in await Versions(store).oldest_first(job.id) if not record.repeats]
    assert [record.rev for record in kept] == list(range(1, len(kept) + 1))
    records = [kept[0], *(after for before, after in pairwise(kept) if not only_extended(before, after))]
    jobs = [the(record.job) for record in records]
    assert [(job.state, job.attempt, job.failures) for job in jobs] == [
        (State.WAITING, 0, 0),
        (State.RUNNING, 1, 0),
        (State.WAITING, 1, 1),
        (State.RUNNING, 2, 1),
        (State.COMPLETED, 2, 1),
        (State.COMPLETED, 2, 1),
    ]
    assert [job.archived for job in jobs] == [False] * 5 + [True]
    assert [record.filed.split("/")[0] for record in records] == ["ready", "leases", "ready", "leases", "done", "done"]
    assert [event.n for event in await store.history(job.id)] == [1, 2, 3, 4, 5, 6]


# ── O-16 … O-26, what is left of them ─────────────────────────────────────────────────────────────


async def test_a_second_submission_is_told_that_the_job_exists(site):
    """O-16: whoever it is, and whatever became of the first."""
    first, second = await site.clients(2)
    spec = a_spec(id="the one")
    await first.enqueue([spec])

    assert [answer.status for answer in await second.enqueue([a_spec(id="the one")])] == ["duplicate"]
    job = await take(second)
    assert [answer.status for answer in await first.enqueue([a_spec(id="the one")])] == ["duplicate"]
    await second.settle([(job.lease, Change.completed())])
    assert len((await second.blobs.list("tasks/")).entries) == 1


async def test_an_index_key_that_tells_of_the_past_is_removed_by_who_meets_it(store: ObjectStore):
    """O-07, O-17: the job wins over its index."""
    spec = await put(store)
    [ready] = await keys_below(store, "ready/")
    await store.settle([((await take(store)).lease, Change.completed())])
    await store.blobs.put(ready, b"")  # as if its deletion had not arrived

    assert await store.claim(a_claim()) == []
    assert await keys_below(store, "ready/") == []
    assert (await show(store, spec)).state is State.COMPLETED


async def test_nothing_is_claimed_before_it_is_available_and_nobody_sleeps_for_it(store: ObjectStore):
    """O-11: backoff is a time in the record, so workers do other things meanwhile."""
    later = await put(store, delay=3_600)
    await put(store, id="now")

    assert [job.id for job in await store.claim(a_claim(10))] == ["now"]
    record = await show(store, later)
    assert record.available_at - record.enqueued_at == seconds(3_600)
    [ready] = await keys_below(store, "ready/")
    assert f"/{record.available_at // 60_000:08d}/{record.available_at:013d}." in ready  # O-06


async def test_archive_hides_and_replay_brings_back(app: App, store: ObjectStore):
    """O-25, O-26, BO-11, BO-12."""

    @app.task(max_attempts=1)
    async def fails() -> None:
        raise ConnectionError("no")

    job = await fails.enqueue()
    await burst(app)

    assert await app.jobs.archive(job) is Archived.DONE
    assert [found.id async for found in app.jobs.find(state="dead")] == []
    assert await app.jobs.unarchive(job) is Archived.DONE
    assert (await show(store, job.id)).state is State.DEAD
    assert await app.jobs.replay(job) is Replayed.REPLAYED
    record = await show(store, job.id)
    assert (record.state, record.failures, record.replays) == (State.WAITING, 0, 1)
    assert (await store.blobs.list("tasks/")).entries[0].key == Layout().job(job.id)


async def test_a_worker_is_known_by_its_record_while_it_beats(app: App, store: ObjectStore):
    """O-15, O-24."""
    running = asyncio.Event()
    enough = asyncio.Event()

    @app.task
    async def work() -> None:
        running.set()
        await enough.wait()

    job = await work.enqueue()
    worker = app.worker(name="crane 7", **QUICK)
    async with asyncio.timeout(120), worker:
        await running.wait()
        while not [record for record in await store.workers() if record.info.running == (job.id,)]:
            await asyncio.sleep(0.01)
        [record] = await store.workers()
        enough.set()
        await until(store, job.id, State.COMPLETED)

    assert (record.info.id, record.info.tasks, record.alive) == ("crane 7", (work.name,), True)
    assert await store.workers() == []


async def test_ids_are_spread_over_the_shards(app: App, store: ObjectStore):
    """O-05: drawn ids begin with the shard, evenly enough that sixteen workers find something each."""

    @app.task
    async def nothing() -> None: ...

    jobs = await nothing.enqueue_many([{}] * 200)

    shards = Counter(entry.key.split("/")[1] for entry in (await store.blobs.list("tasks/")).entries)
    assert len(shards) > 12 and sum(shards.values()) == 200
    assert all(f"tasks/{job.id[0]}/{job.id}.json" == Layout().job(job.id) for job in jobs)
