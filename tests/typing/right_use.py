"""Right use of the public API: each function is one snippet, and no type checker may complain about any."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_type

from millrace import (
    App,
    Bury,
    Cancelled,
    Context,
    Depends,
    Event,
    Flow,
    FlowHandle,
    FlowStatus,
    Job,
    JobFailed,
    JobHandle,
    JobStatus,
    LocalEvent,
    QueueError,
    Reason,
    Replayed,
    Retry,
    Serde,
    Snooze,
    SyncJobHandle,
    Task,
    Worker,
    backoff,
    testing,
)

app = App("sqlite:///jobs.db")
log = logging.getLogger(__name__)


@dataclass
class Order:
    id: int
    lines: list[str]


@app.task
async def send(to: str, copies: int = 1) -> str:
    return to * copies


@app.task
def charge(ctx: Context, order: Order) -> float:
    return len(order.lines) / ctx.attempt


@app.task
async def count(text: str, least: int = 0) -> int:
    return max(len(text), least)


@app.task
async def collect(texts: list[str], title: str = "") -> str:
    return title + "".join(texts)


@app.task
def both(parts: tuple[int, str]) -> str:
    return parts[0] * parts[1]


@app.task(queue="mail", priority=3, timeout=timedelta(minutes=1), retry=backoff(1, factor=3), on_dead_letter=send)
async def tuned(to: str) -> None: ...


async def an_enqueue_by_position_and_by_name() -> None:
    assert_type(await send.enqueue("ada", 2), JobHandle[str])
    assert_type(await send.enqueue(to="ada"), JobHandle[str])


async def a_handle_says_what_became_of_the_enqueue() -> str:
    job = await send.enqueue("ada")
    if job.is_duplicate:
        return job.enqueued.state.value
    return f"{job.id} {job.seq} {job.position}"


async def a_call_gives_the_result() -> None:
    assert_type(await send.call("ada"), str)
    assert_type(await charge.call(Order(1, ["tea"])), float)
    assert_type(await tuned.call("ada"), None)


async def a_task_is_still_a_function(ctx: Context) -> None:
    assert_type(await assert_type(send("ada"), Coroutine[Any, Any, str]), str)
    assert_type(charge(ctx, Order(1, [])), float)


async def options_of_one_job(parent: JobHandle[int], other: Job) -> None:
    job = send.options(id="7", delay="10m", priority=5, group="ada", after=[parent, other, "id"], wait=None)
    assert_type(await job.enqueue("ada"), JobHandle[str])
    assert_type(await job.call("ada"), str)


async def durations_in_three_ways() -> None:
    await send.options(delay=1.5, expires=timedelta(days=1), timeout="30s").enqueue("ada")


async def options_in_a_row() -> None:
    urgent = send.options(priority=9)
    await urgent.options(delay=1).enqueue("ada")
    assert_type(urgent.options.priority, int)


async def unique_jobs() -> None:
    await send.options(key="welcome", scope="window", window="1h", on_hit="keep").enqueue("ada")


async def many_at_once() -> None:
    answers = await send.enqueue_many({"to": name} for name in ("ada", "bob"))
    assert_type(answers, list[JobHandle[str]])
    await send.enqueue_many([("ada", 1), ("bob", 2)], chunk=100)


async def many_with_options_of_their_own() -> None:
    items = [send.options(id=name, priority=3).spec(name) for name in ("ada", "bob")]
    assert_type(await send.enqueue_many([*items, ("eve",), {"to": "zoe"}]), list[JobHandle[str]])


async def a_job_at_an_instant(when: datetime) -> None:
    assert_type(await send.options(at=when).enqueue("ada"), JobHandle[str])
    await send.options(at=None).call("ada")


@app.task(retry_on=[ConnectionError, TimeoutError], dont_retry_on=ConnectionRefusedError)
async def picky(to: str) -> None: ...


async def jobs_of_several_tasks_in_one_step() -> None:
    assert_type(await app.enqueue([send.spec("ada"), charge.spec(Order(1, []))]), list[JobHandle[Any]])


@app.task
async def talks(ctx: Context, names: list[str]) -> int:
    ctx.progress({"done": 0})
    ctx.log.info("attempt %s of %s", ctx.attempt, ctx.id)
    for name in names:
        assert_type(ctx.enqueue(send.options(delay="1m"), name), str)
    assert_type(ctx.fence, tuple[int, int])
    assert_type(ctx.remaining, float | None)
    return len(names)


@app.task
def looks_up(ctx: Context) -> None:
    while not ctx.cancelled.wait(1):
        ctx.check()


@app.task
async def gives_its_verdict(how: str) -> None:
    if how == "busy":
        raise Retry("try again", after="30s")
    if how == "early":
        raise Snooze(timedelta(hours=1))
    raise Bury("never")


async def queues() -> None:
    mail = app.queue("mail")
    await mail.pause()
    await mail.resume(lane=2)
    await mail.limits(max_running=20, rate=2.5, burst=None)
    await mail.set(keep_completed="2d", dead_overflow="archive", on_empty=send)
    assert_type((await mail.counts()).waiting, int)
    assert_type(await mail.drain(progress=print), int)
    assert_type(await mail.obliterate(force=True), int)


async def a_handle_keeps_the_type_of_the_result(job_id: str) -> None:
    assert_type(await (await send.enqueue("ada")).result(wait="10s"), str)
    assert_type(await (await charge.enqueue(Order(1, []))).result(), float)
    assert_type([await job.result() for job in await send.enqueue_many([("ada",)])], list[str])
    assert_type(app.jobs.handle(job_id, send), JobHandle[str])
    assert_type(app.jobs.handle(job_id), JobHandle[Any])
    assert_type(await app.jobs.result(app.jobs.handle(job_id, charge)), float)
    any_jobs: list[JobHandle[object]] = [await send.enqueue("ada"), await charge.enqueue(Order(1, []))]
    print([await job.result() for job in any_jobs])


async def what_a_handle_does(job: JobHandle[str]) -> None:
    assert_type(await job.cancel(running="request"), Cancelled)
    assert_type(await job.replay(children=False), Replayed)
    assert_type(await job.history(), list[Event])
    assert_type(await job.why(), list[Reason])
    assert_type((await job.history())[0].time, datetime)


async def a_status_is_decoded(job: JobHandle[str]) -> None:
    status = assert_type(await job.status(), JobStatus)
    if status.state == "completed":
        assert_type(status.enqueued_at, datetime)
        assert_type(status.finished_at, datetime | None)
        assert_type(status.record, Job)
        assert_type(status.record.enqueued_at, int)


def a_handle_without_a_loop(job_id: str) -> None:
    assert_type(send.sync.enqueue("ada").result(wait=10), str)
    assert_type(app.sync.jobs.handle(job_id, charge), SyncJobHandle[float])
    assert_type(app.sync.jobs.handle(job_id, charge).status(), JobStatus)
    assert_type(app.jobs.handle(job_id, charge).sync.result(), float)


async def one_job_or_many(job: JobHandle[str]) -> None:
    assert_type(await app.jobs.get(job), JobStatus | None)
    assert_type(await app.jobs.get(["a", job]), list[JobStatus | None])
    assert_type(await app.jobs.cancel("a", running="request"), Cancelled)
    assert_type(await app.jobs.replay(["a"]), list[Replayed])
    assert_type(await app.jobs.history(job), list[Event])


async def searching() -> list[str]:
    return [job.id async for job in app.jobs.find(queue="mail", state="failed", newest_first=True, limit=10)]


async def a_result_that_may_not_be_there(job: JobHandle[str]) -> str:
    try:
        return await job.result(wait="10s")
    except JobFailed as failed:
        return f"{failed.reason}"
    except QueueError as error:
        return str(error)


async def workers() -> None:
    async with app, app.worker(["mail", "default"], tasks=[send, "charge"], slots=4) as worker:
        assert_type(worker.stats.completed, int)
        await worker.stop(deadline=1.5)
    await app.worker("mail").run(handle_signals=False)
    app.worker(lease="1m", timeout=None, retry=[1, "5s"], max_attempts=None)
    App("memory://", lease=60, timeout=timedelta(minutes=1), retry=backoff(1), max_attempts=3)


def listeners() -> None:
    @app.on("failed")
    def tell(event: LocalEvent) -> None:
        log.error("%s: %s", event.kind, event.reason)

    @app.on("completed")
    async def note(event: LocalEvent) -> None: ...

    app.on("error", tell)
    app.on("stalled", note)


async def the_history_of_the_store() -> None:
    async for event in app.events(cursor=None, follow=False):
        assert_type(event, Event)


async def limits_of_a_task() -> None:
    await app.limit(send, max_running=2)
    await app.limit("charge", rate=None)


async def tasks_as_parameters() -> None:
    async def tell(task: Task[[str], None], name: str) -> None:
        await task.enqueue(name)

    await tell(tuned, "ada")


class Upper:
    name = "upper"

    def encode(self, value: Any) -> bytes:
        return str(value).upper().encode()

    def decode(self, data: bytes) -> Any:
        return data.decode()


def a_serde_of_ones_own(serde: Serde) -> App:
    return App(serde=serde, serdes=[Upper()])


@app.cron("0 3 * * *", tz="Europe/Berlin", kwargs={"to": "ada"}, missed="skip")
@app.task
async def nightly(to: str) -> None: ...


def schedules() -> None:
    app.cron(tuned, every="30s", name="often", kwargs={"to": "ada"})


def by_customer(order: Order) -> str:
    return str(order.id)


@app.pool("orders", lanes=4, partition_by=by_customer, max_attempts=3)
async def place(order: Order) -> int:
    return order.id


async def pools() -> None:
    assert_type(await place.call(Order(1, [])), int)
    pool = app.pool_named("orders")
    await pool.pause(lane=1)
    assert_type(await pool.drain(), int)


@app.middleware
async def timed(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
    ctx.log.info("begins")
    return await call_next()


def flows_have_the_type_of_their_last_result() -> None:
    assert_type(app.chain(send.spec("ada"), count), Flow[int])
    assert_type(app.chain(send.spec("ada"), count.options(delay="1m")), Flow[int])
    assert_type(app.chain(send.spec("ada"), send.spec("bob"), count), Flow[int])
    assert_type(app.gather(send.spec("ada"), count.spec("bob")), Flow[tuple[str, int]])
    assert_type(app.gather([send.spec("ada"), send.spec("bob")]), Flow[list[str]])
    assert_type(app.gather([send.spec("ada"), send.spec("bob")]).then(collect, title="x"), Flow[str])
    assert_type(app.gather(send.spec("ada"), send.spec("bob")).then(collect), Flow[str])
    assert_type(app.gather(count.spec("ada"), send.spec("bob")).then(both), Flow[str])


def flows_inside_flows() -> None:
    assert_type(app.chain(send.spec("ada"), app.gather(count, send), both, count), Flow[int])
    assert_type(app.chain(send.spec("ada"), app.gather(app.chain(send, count), send), both), Flow[str])
    assert_type(app.gather(app.chain(send.spec("ada"), count), send.spec("bob")).then(both), Flow[str])


async def the_handle_of_a_flow() -> None:
    flow = await app.chain(send.spec("ada"), count).enqueue(id="ada")
    assert_type(flow, FlowHandle[int])
    assert_type(await flow.result(wait="1m"), int)
    assert_type(await flow.status(), FlowStatus)
    assert_type(await app.chain(send.spec("ada"), count).call(), int)
    assert_type(app.chain(send.spec("ada"), count).sync.enqueue().result(), int)
    assert_type(await app.flows.handle("ada", count).result(), int)


async def the_output_of_a_job_as_an_argument(ctx: Context) -> None:
    assert_type(send.spec("ada").output, str)
    await app.enqueue([first := send.spec("ada"), collect.spec([first.output])])
    await count.enqueue((await send.enqueue("ada")).output)
    assert_type((await ctx.parents())[0].result_as(count), int)


def without_a_loop() -> None:
    assert_type(send.sync.enqueue("ada"), SyncJobHandle[str])
    assert_type(send.sync.call("ada", copies=2), str)
    assert_type(app.sync.jobs.get("id"), JobStatus | None)


async def within_a_transaction(connection: sqlite3.Connection) -> None:
    with connection:
        await send.options(within=connection).enqueue("ada")


async def one_handler_in_a_test() -> None:
    assert_type(await testing.run(send, "ada", copies=2), str)
    assert_type(testing.run_sync(charge, Order(1, [])), float)
    assert_type(await testing.rehearse(send, attempt=2).run("ada"), str)


def harness() -> Iterator[testing.Harness]:
    with testing.on_memory(app) as mill:
        yield mill


async def a_test_with_a_harness(mill: testing.Harness) -> None:
    assert_type(mill.assert_enqueued(send, to="ada", queue="mail", count=1), Job)
    assert_type(mill.all_enqueued(state="ready"), list[Job])
    mill.refute_enqueued(charge)
    assert_type(await mill.drain(failures="keep"), testing.Drained)
    await mill.advance("1h")
    mill.sync.skip_ahead(timedelta(days=3))


class Session:
    def execute(self, statement: str) -> int:
        return len(statement)


@app.lifespan
async def lifespan() -> AsyncIterator[dict[str, int]]:
    yield {}


async def url() -> str:
    return "db"


async def session(ctx: Context, url: str = Depends(url)) -> AsyncIterator[Session]:
    ctx.log.info("a session of %s", url)
    yield Session()


def pool() -> Iterator[list[Session]]:
    yield []


@app.task
async def inject(
    number: int, db: Session = Depends(session), shared: list[Session] = Depends(pool, scope="worker")
) -> int:
    return db.execute("select") + len(shared) + number


async def injected_parameters_are_not_passed() -> None:
    assert_type(Depends(url), str)
    assert_type(Depends(Session), Session)
    assert_type(await inject.enqueue(7), JobHandle[int])
    assert_type(await inject.call(number=7), int)
    assert_type(await inject(7, Session()), int)
    app.dependency_overrides[session] = Session


async def tags_and_defaults_of_a_queue() -> None:
    shop = App(keep_result="1d")
    shop.queue("mail", timeout="30s", retry=[1, 5], max_attempts=8, lease=60, keep_result=0)
    await send.options(tags=["import-7"]).enqueue("ada")
    [job] = [status async for status in app.jobs.find(tag="import-7")]
    assert_type(job.tags, tuple[str, ...])
    assert_type(app.worker(keep_result=None), Worker)
