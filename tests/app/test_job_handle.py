"""Job handles, and the status that they and `app.jobs` return."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millrace import (
    App,
    Bury,
    Cancelled,
    Context,
    InvalidInput,
    JobFailed,
    JobHandle,
    JobNotFound,
    PayloadInvalid,
    Replayed,
    ResultExpired,
    SyncJobHandle,
    Task,
    WaitTimeout,
)
from millrace.domain.change import Change
from millrace.domain.outcome import Failure
from millrace.domain.request import Extension
from millrace.store.memory.store import MemoryStore
from tests.narrowing import the
from tests.worker.by_hand import HandClock, settle, take

Add = Task[[int, int], Any]


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def store(clock: HandClock):
    return MemoryStore(clock=clock)


@pytest.fixture
def app(store: MemoryStore):
    return App(store)


@pytest.fixture
def add(app: App):
    @app.task
    async def add(left: int, right: int) -> dict[str, datetime]:
        return {"sum": datetime(2000, 1, left + right, tzinfo=UTC)}

    return add


async def test_a_handle_has_the_facts_of_the_answer(add: Add):
    first, again = await add.options(id="a").enqueue(1, 2), await add.options(id="a").enqueue(1, 3)

    assert (first.id, first.seq, first.generation, first.is_duplicate) == ("a", 1, 1, False)
    assert (again.id, again.seq, again.is_duplicate, again.payload_differs) == ("a", 1, True, True)
    assert (again.enqueued.status, again.enqueued.by) == ("duplicate", "id")
    assert (first.lane, first.position, first.instance) == (None, None, None)
    assert repr(again) == "<JobHandle 'a', duplicate>"


async def test_the_result_is_converted_to_the_return_annotation(app: App, add: Add):
    job = await add.enqueue(1, 2)
    with pytest.raises(WaitTimeout):
        await job.result()
    await app.worker(burst=True).run()

    assert await job.result() == {"sum": datetime(2000, 1, 3, tzinfo=UTC)}
    assert await app.jobs.result(job) == await job.result()
    assert (await job.status()).result == await job.result()


async def test_each_method_is_about_its_job(app: App, store: MemoryStore, add: Add):
    job, other = await add.enqueue(1, 2), await add.enqueue(3, 4)

    assert [reason.code for reason in await job.why()] == ["no_worker"]
    assert await job.cancel() is Cancelled.CANCELLED
    assert await job.replay() is Replayed.REPLAYED
    assert [event.kind for event in await job.history()] == ["enqueued", "cancelled", "replayed"]
    await take(store)
    assert await other.cancel(running="request") is Cancelled.CANCELLED
    assert await job.cancel(running="request") is Cancelled.REQUESTED
    assert await job.why() == []


async def test_many_handles_come_in_the_order_of_the_items(app: App, add: Add):
    jobs = await add.enqueue_many([(1, n) for n in range(5)], chunk=2)

    assert [type(job) for job in jobs] == [JobHandle] * 5
    assert [job.seq for job in jobs] == [1, 2, 3, 4, 5]
    await app.worker(burst=True).run()
    assert [(await job.result())["sum"].day for job in jobs[1:]] == [2, 3, 4, 5]


async def test_handles_of_several_tasks_know_their_results(app: App, add: Add):
    @app.task
    async def shout(text: str) -> str:
        return text.upper()

    jobs = await app.enqueue([add.spec(1, 1), shout.spec("hello")])
    await app.worker(burst=True).run()

    assert [await job.result() for job in jobs] == [{"sum": datetime(2000, 1, 2, tzinfo=UTC)}, "HELLO"]


async def test_a_handle_of_an_id_from_elsewhere(app: App, add: Add):
    await add.options(id="a").enqueue(1, 2)
    await app.worker(burst=True).run()

    job = app.jobs.handle("a", add)
    assert (await job.result())["sum"].day == 3
    assert await app.jobs.handle("a").result() == await job.result()
    assert (await job.status()).state == "completed"
    with pytest.raises(InvalidInput, match=r"the handle of job 'a' was made from its id.*await job\.status\(\)"):
        _ = job.seq
    assert repr(job) == "<JobHandle 'a'>"
    with pytest.raises(InvalidInput, match="id"):
        app.jobs.handle("")


async def test_a_handle_of_the_wrong_task_refuses_the_result(app: App, add: Add):
    @app.task
    async def other() -> str:
        return ""

    await add.options(id="a").enqueue(1, 2)
    await app.worker(burst=True).run()

    with pytest.raises(InvalidInput, match=r"job 'a' is of task 'add', not of 'other'.*app\.jobs\.result\('a'\)"):
        await app.jobs.handle("a", other).result()


async def test_a_job_that_does_not_exist(app: App):
    job = app.jobs.handle("nobody")

    for ask in (job.status, job.why, job.result):
        with pytest.raises(JobNotFound, match="there is no job 'nobody'"):
            await ask()
    assert await job.history() == []
    assert await job.cancel() is Cancelled.NOT_FOUND


async def test_a_handle_keeps_to_its_generation(app: App, store: MemoryStore, add: Add):
    """The id of a dead job may be enqueued again: the result of the old handle stays that of the old job."""
    old = await add.options(id="a").enqueue(1, 2)
    await settle(store, Change.bury(Failure("ValueError", "no"), "explicit_fail"))
    new = await add.options(id="a").enqueue(1, 3)
    await app.worker(burst=True).run()

    assert (old.generation, new.generation) == (1, 2)
    with pytest.raises(JobFailed, match="no"):
        await old.result()
    assert (await new.result())["sum"].day == 4
    assert await app.jobs.result("a") == await new.result()


async def test_the_handle_of_a_duplicate_gives_the_result_that_is_there(app: App, clock: HandClock, add: Add):
    one = add.options(id="a", keep_result="1m")
    await one.enqueue(1, 2)
    await app.worker(burst=True).run()

    again = await one.enqueue(1, 2)
    assert again.is_duplicate and again.enqueued.status == "completed"
    assert (await again.result())["sum"].day == 3
    clock.advance(61)
    await app.store.maintain()
    with pytest.raises(ResultExpired):
        await (await one.enqueue(1, 2)).result()


async def test_a_handle_can_be_a_parent(app: App, add: Add):
    parent = await add.enqueue(1, 2)
    child = await add.options(after=[parent, app.jobs.handle(parent.id)]).enqueue(2, 2)

    assert (await child.status()).state == "blocked"
    assert (await child.status()).record.blocked == 1


async def test_a_handle_of_a_pool_has_its_lane(app: App):
    @app.pool("orders", lanes=2, partition_by=lambda who: who)
    async def book(who: str) -> int:
        return len(who)

    first, second = await book.enqueue_many([("ada",), ("ada",)])

    assert (first.position, second.position, second.depth) == (0, 1, 2)
    assert first.lane == second.lane
    assert second.instance == f"workerPool:orders:{second.lane}"
    await app.worker(burst=True).run()
    assert await second.result() == 3


# ── status ────────────────────────────────────────────────────────────────────────────────────


async def test_a_status_is_decoded(app: App, store: MemoryStore, clock: HandClock):
    @app.task(queue="mail", priority=3)
    async def send(ctx: Context, at: datetime) -> int:
        ctx.progress({"sent": 1})
        raise Bury("no address")

    at = datetime(2030, 1, 2, tzinfo=UTC)
    enqueued = datetime.fromtimestamp(clock.now / 1000, UTC)
    job = await send.options(delay="1h", headers={"trace": "1"}, group="ada").enqueue(at)
    status = await job.status()

    assert (status.id, status.task, status.queue, status.state) == (job.id, "send", "mail", "scheduled")
    assert (status.enqueued_at, status.available_at) == (enqueued, enqueued + timedelta(hours=1))
    assert (status.args, status.headers, status.group, status.priority) == ({"at": at}, {"trace": "1"}, "ada", 3)
    assert (status.started_at, status.finished_at, status.result, status.progress) == (None, None, None, None)
    assert status.record.available_at == clock.now + 3_600_000  # the stored integer

    clock.advance(3600)
    assert (await job.status()).state == "ready"
    await app.worker(burst=True).run()
    status = await job.status()
    assert (status.state, status.reason, the(status.error).message) == ("dead", "explicit_fail", "no address")
    assert status.finished_at == status.available_at
    assert [attempt.time for attempt in status.attempts] == [status.finished_at]
    assert (await job.history())[0].time == enqueued
    assert repr(status) == f"<JobStatus {job.id!r} of task 'send': dead>"


async def test_progress_is_a_value(app: App, store: MemoryStore, add: Add):
    job = await add.enqueue(1, 2)
    running = await take(store)
    await store.extend([Extension(running.lease, 30_000, b'{"done":0.5}')])

    status = await job.status()
    assert (status.state, status.progress, status.record.progress) == ("running", {"done": 0.5}, b'{"done":0.5}')
    assert status.lease_until is not None and status.lease_until > the(status.started_at)


async def test_a_status_without_the_tasks_code(app: App, store: MemoryStore, add: Add):
    job = await add.enqueue(1, 2)
    await app.worker(burst=True).run()

    elsewhere = await App(store).jobs.handle(job.id).status()
    assert elsewhere.args == {"left": 1, "right": 2}
    assert elsewhere.result == {"sum": "2000-01-03T00:00:00Z"}


async def test_a_payload_that_no_longer_fits_fails_only_where_it_is_read(app: App, store: MemoryStore, add: Add):
    job = await add.enqueue(1, 2)
    newer = App(store)

    @newer.task(name="add")
    async def changed(text: str) -> None: ...

    [status] = [status async for status in newer.jobs.find()]
    assert (status.id, status.state) == (job.id, "ready")
    with pytest.raises(PayloadInvalid, match="does not fit task 'add'"):
        _ = status.args


async def test_one_extra_round_trip_tells_whether_jobs_are_due(app: App, store: MemoryStore, add: Add, monkeypatch):
    calls: list[str] = []
    for name in ("get", "now", "find"):
        plain = getattr(store, name)

        async def counted(*args, plain=plain, name=name):
            calls.append(name)
            return await plain(*args)

        monkeypatch.setattr(store, name, counted)
    await add.enqueue_many([(1, n) for n in range(20)])

    found = [status async for status in app.jobs.find()]
    assert calls == ["find", "now"]
    calls.clear()
    await app.jobs.get(found)
    assert calls == ["get", "now"]
    await app.jobs.cancel(found)
    calls.clear()
    await app.jobs.get(found)
    assert calls == ["get"]


# ── without an event loop ─────────────────────────────────────────────────────────────────────


def test_the_blocking_handle_has_the_same_methods():
    app = App("memory://")

    @app.task
    def double(number: int) -> int:
        return 2 * number

    with app.sync:
        job = double.sync.enqueue(4)
        assert type(job) is SyncJobHandle
        assert [reason.code for reason in job.why()] == ["no_worker"]
        assert job.cancel() is Cancelled.CANCELLED
        assert job.replay() is Replayed.REPLAYED
        app.sync.run(app.worker(burst=True).run())
        assert job.result(wait="10s") == 8
        assert app.sync.jobs.handle(job.id, double).result() == 8
        assert job.status().state == "completed"
        assert [event.kind for event in job.history()][-1] == "completed"
        jobs = [*double.sync.enqueue_many([(1,), (2,)]), *app.sync.enqueue([double.spec(3)])]
        assert [type(one) for one in jobs] == [SyncJobHandle] * 3
        assert [app.sync.run(app.jobs.get(one)) for one in jobs] == app.sync.jobs.get(jobs)


def test_the_two_handles_have_the_same_public_methods():
    names = {name for name in vars(JobHandle) if not name.startswith("_")}

    assert names - {"sync"} == {name for name in vars(SyncJobHandle) if not name.startswith("_")}


def test_a_pools_blocking_handle_has_its_lane():
    app = App("memory://")

    @app.pool("orders", lanes=2)
    async def book(who: str) -> None: ...

    with app.sync:
        first = book.options(partition="ada").sync.enqueue("ada")
        [second] = book.options(partition="ada").sync.enqueue_many([("ada",)])
        assert type(first) is type(second) is SyncJobHandle
        assert (first.position, second.position, first.instance) == (0, 1, second.instance)
