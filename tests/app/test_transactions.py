"""`within` as users write it: enqueues that are part of their transaction, and jobs that complete in it."""

import asyncio
import contextlib
import logging
import sqlite3

import pytest

from millrace import App, Context, InvalidInput, LeaseLost, LocalEvent, PayloadInvalid, QueueFull, State
from millrace.domain.request import Claim, Reclaim
from millrace.store.memory import MemoryStore
from millrace.testing.invariants import assert_holds, gather
from millrace.worker.run import Run
from millrace.worker.scope import WorkerScope
from tests.narrowing import checked_cast

SHOP = "CREATE TABLE purchase (id INTEGER PRIMARY KEY, mailed INTEGER NOT NULL DEFAULT 0)"


class Shop:
    """An app, and a way to the database of the shop that uses it: the same file, or a stand-in on memory."""

    def __init__(self, app, connect):
        self.app = app
        self.connect = connect

    async def ids(self):
        return [job.id async for job in self.app.jobs.find()]


@pytest.fixture(params=["memory", "sqlite"])
async def shop(request, tmp_path):
    path = tmp_path / "shop.db"
    app = App("memory://" if request.param == "memory" else f"sqlite:///{path}")
    async with app:
        opened = []

        def connect(**more):
            connection = sqlite3.connect(path, timeout=30, check_same_thread=False, **more)
            opened.append(connection)
            if request.param == "sqlite":
                return connection
            return checked_cast(MemoryStore, app.store).transaction(connection)

        with contextlib.closing(sqlite3.connect(path)) as first:
            first.execute(SHOP)
        yield Shop(app, connect)
        assert_holds(await gather(app.store, since=0))
        for connection in opened:
            connection.close()


def count_of(connection):
    return connection.execute("SELECT count(*), sum(mailed) FROM purchase").fetchone()


# ── enqueue ───────────────────────────────────────────────────────────────────────────────────


async def test_the_same_code_enqueues_within_its_transaction_on_every_store(shop: Shop):
    @shop.app.task
    async def send_mail(purchase: int) -> None: ...

    async def place(connection, ok):
        connection.execute("INSERT INTO purchase DEFAULT VALUES")
        await send_mail.options(within=connection).enqueue(purchase=1)
        if not ok:
            raise LookupError("no such card")

    mine = shop.connect()
    with pytest.raises(LookupError), mine:
        await place(mine, ok=False)
    assert (count_of(mine)[0], await shop.ids()) == (0, [])

    with mine:
        await place(mine, ok=True)
    assert (count_of(mine)[0], len(await shop.ids())) == (1, 1)


async def test_every_way_to_enqueue_takes_a_transaction(shop: Shop):
    @shop.app.task
    async def work(n: int) -> None: ...

    mine = shop.connect()
    bound = work.options(within=mine, priority=3)
    for end in (mine.rollback, mine.commit):
        await bound.enqueue(1)
        await bound.enqueue_many([(2,), {"n": 3}], chunk=1)
        await shop.app.enqueue([work.spec(4), work.spec(5)], within=mine)
        await asyncio.to_thread(lambda: None)
        end()

    jobs = [job async for job in shop.app.jobs.find()]
    assert [job.priority for job in jobs] == [3, 3, 3, 0, 0]


async def test_within_none_takes_it_away_again(shop: Shop):
    @shop.app.task
    async def work() -> None: ...

    mine = shop.connect()
    await work.options(within=mine).options(within=None).enqueue()
    mine.rollback()

    assert len(await shop.ids()) == 1


async def test_call_within_a_transaction_would_wait_for_itself(shop: Shop):
    @shop.app.task
    async def work() -> None: ...

    with pytest.raises(InvalidInput, match="commit, then wait"):
        await work.options(within=shop.connect()).call()


async def test_a_child_takes_no_transaction_of_its_own(shop: Shop):
    refused: list[str] = []

    @shop.app.task
    async def work(ctx: Context) -> None:
        try:
            ctx.enqueue(work.options(within=shop.connect()))
        except InvalidInput as error:
            refused.append(str(error))

    await work.enqueue()
    await shop.app.worker(burst=True).run(handle_signals=False)
    assert len(refused) == 1 and "within" in refused[0]


async def test_a_worker_runs_what_was_committed_and_nothing_else(shop: Shop):
    ran = []

    @shop.app.task
    async def work(n: int) -> None:
        ran.append(n)

    async with shop.app.worker(poll_max=60.0):
        await asyncio.sleep(0.1)
        mine = shop.connect()
        for n in range(6):
            job = await work.options(within=mine).enqueue(n)
            if n % 2:
                mine.rollback()
            else:
                mine.commit()
                await asyncio.wait_for(shop.app.jobs.result(job, wait=60), 60)
    assert ran == [0, 2, 4]


async def test_on_memory_a_commit_that_others_have_made_impossible_is_refused(tmp_path):
    """On SQLite the others have to wait, so nothing comes between."""
    app = App("memory://")

    @app.task
    async def work() -> None: ...

    await app.queue("default").set(max_depth=1)
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as raw:
        raw.execute(SHOP)
        mine = checked_cast(MemoryStore, app.store).transaction(raw)
        mine.execute("INSERT INTO purchase DEFAULT VALUES")
        await work.options(within=mine).enqueue()
        await work.enqueue()
        with pytest.raises(QueueFull):
            mine.commit()
        mine.execute("ROLLBACK")

        assert (count_of(mine)[0], mine.in_transaction) == (0, False)
    assert (await app.queue("default").counts()).waiting == 1


async def test_on_memory_a_block_that_cannot_commit_is_rolled_back_and_the_next_one_is_not_burdened(tmp_path):
    """As `with` does on a connection of sqlite3."""
    app = App("memory://")

    @app.task
    async def work() -> None: ...

    await app.queue("default").set(max_depth=1)
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as raw:
        raw.execute(SHOP)
        mine = checked_cast(MemoryStore, app.store).transaction(raw)
        await work.enqueue()
        await app.jobs.cancel([job.id async for job in app.jobs.find()])

        async def place() -> None:
            with mine:
                mine.execute("INSERT INTO purchase DEFAULT VALUES")
                await work.options(within=mine).enqueue()
                await work.enqueue()

        with pytest.raises(QueueFull):
            await place()
        with mine:
            mine.execute("INSERT INTO purchase DEFAULT VALUES")

        assert (count_of(raw)[0], mine.in_transaction) == (1, False)


async def test_a_store_in_memory_says_what_it_takes(tmp_path):
    app = App("memory://")

    @app.task
    async def work() -> None: ...

    with (
        contextlib.closing(sqlite3.connect(tmp_path / "own.db")) as mine,
        pytest.raises(InvalidInput, match=r"app\.store\.transaction\(conn\)"),
    ):
        await work.options(within=mine).enqueue()


# ── complete ──────────────────────────────────────────────────────────────────────────────────


async def test_a_handler_completes_its_job_in_its_own_transaction(shop: Shop):
    seen: list[LocalEvent] = []

    @shop.app.task
    async def mail(ctx: Context, n: int) -> int:
        with shop.connect() as mine:
            mine.execute("INSERT INTO purchase (mailed) VALUES (1)")
            ctx.enqueue(after_mail)
            await ctx.complete(n * 2, within=mine)
        return -1  # not looked at

    @shop.app.task
    async def after_mail() -> None: ...

    shop.app.on("completed", seen.append)
    job = await mail.enqueue(21)
    worker = shop.app.worker(burst=True)
    await worker.run(handle_signals=False)

    assert await shop.app.jobs.result(job) == 42
    assert [event.kind for event in await shop.app.jobs.history(job)] == ["enqueued", "claimed", "completed"]
    assert (worker.stats.completed, worker.stats.lost, worker.stats.failed) == (2, 0, 0)
    assert {event.job.task: event.result for event in seen} == {"mail": 42, "after_mail": None}
    assert count_of(shop.connect()) == (1, 1)
    assert len(await shop.ids()) == 2


async def test_a_def_handler_completes_its_job_too(shop: Shop):
    @shop.app.task
    def mail(ctx: Context) -> str:
        with shop.connect() as mine:
            mine.execute("INSERT INTO purchase (mailed) VALUES (1)")
            ctx.complete_sync("sent", within=mine)
        return ""

    job = await mail.enqueue()
    await shop.app.worker(burst=True).run(handle_signals=False)

    assert await shop.app.jobs.result(job) == "sent"


async def test_a_handler_that_rolls_back_and_raises_has_failed_like_any_other(shop: Shop):
    @shop.app.task(retry=[0])
    async def mail(ctx: Context) -> str:
        with shop.connect() as mine:
            mine.execute("INSERT INTO purchase (mailed) VALUES (1)")
            await ctx.complete("sent", within=mine)
            if ctx.attempt == 1:
                raise ConnectionError("gone")
        return ""

    job = await mail.enqueue()
    await shop.app.worker(burst=True).run(handle_signals=False)

    kinds = [event.kind for event in await shop.app.jobs.history(job)]
    assert kinds == ["enqueued", "claimed", "retried", "claimed", "completed"]
    assert count_of(shop.connect()) == (1, 1)


async def test_a_handler_that_returns_without_a_commit_has_failed(shop: Shop):
    @shop.app.task(max_attempts=1)
    async def mail(ctx: Context) -> None:
        mine = shop.connect()
        mine.execute("INSERT INTO purchase (mailed) VALUES (1)")
        await ctx.complete(None, within=mine)
        mine.rollback()

    job = await mail.enqueue()
    await shop.app.worker(burst=True).run(handle_signals=False)

    found = await shop.app.jobs.get(job)
    assert (found.state, found.error.type) == (State.DEAD, "NotCommitted")
    assert count_of(shop.connect())[0] == 0


async def test_an_error_after_the_commit_changes_nothing_any_more(shop: Shop, caplog):
    @shop.app.task
    async def mail(ctx: Context) -> None:
        with shop.connect() as mine:
            await ctx.complete(None, within=mine)
        raise ValueError("in the last line")

    job = await mail.enqueue()
    worker = shop.app.worker(burst=True)
    with caplog.at_level(logging.WARNING, "millrace"):
        await worker.run(handle_signals=False)

    found = await shop.app.jobs.get(job)
    assert (found.state, found.failures) == (State.COMPLETED, 0)
    assert (worker.stats.completed, worker.stats.lost) == (1, 0)
    assert caplog.records == []


async def test_a_transaction_that_is_tried_again_completes_the_job_once(shop: Shop):
    @shop.app.task
    async def mail(ctx: Context) -> int:
        for last in (False, True):
            mine = shop.connect()
            mine.execute("INSERT INTO purchase (mailed) VALUES (1)")
            await ctx.complete(1 + last, within=mine)
            if last:
                mine.commit()
            else:
                mine.rollback()
        return 0

    job = await mail.enqueue()
    await shop.app.worker(burst=True).run(handle_signals=False)

    assert await shop.app.jobs.result(job) == 2


async def test_completing_twice_is_refused_inside_the_second_transaction(shop: Shop):
    caught = []

    @shop.app.task
    async def mail(ctx: Context) -> int:
        for number in (1, 2):
            try:
                with shop.connect() as mine:
                    mine.execute("INSERT INTO purchase (mailed) VALUES (1)")
                    await ctx.complete(number, within=mine)
            except LeaseLost:
                caught.append(ctx.id)
        return 0

    job = await mail.enqueue()
    await shop.app.worker(burst=True).run(handle_signals=False)

    assert caught == [job.id]
    assert await shop.app.jobs.result(job) == 1
    assert count_of(shop.connect())[0] == 1


async def test_completing_twice_is_told_from_a_lease_that_others_took(shop: Shop):
    notes = []

    @shop.app.task
    async def mail(ctx: Context) -> None:
        with contextlib.suppress(LeaseLost), shop.connect() as mine:
            await ctx.complete(within=mine)
            try:
                await ctx.complete(within=mine)
            except LeaseLost as error:
                notes.extend(error.__notes__)

    await mail.enqueue()
    await shop.app.worker(burst=True).run(handle_signals=False)

    assert notes == ["This run has called ctx.complete before: if that has committed, the job is completed."]


async def test_a_child_that_comes_after_the_completion_is_refused_and_not_lost(shop: Shop):
    said = []

    @shop.app.task
    async def follow() -> None: ...

    @shop.app.task
    async def mail(ctx: Context) -> None:
        with shop.connect() as mine:
            ctx.enqueue(follow)
            await ctx.complete(within=mine)
        with pytest.raises(InvalidInput, match=r"before ctx\.complete") as error:
            ctx.enqueue(follow)
        said.append(str(error.value))

    job = await mail.enqueue()
    await shop.app.worker(tasks=["mail"], burst=True).run(handle_signals=False)

    assert len(said) == 1 and (await shop.app.jobs.get(job)).state == "completed"
    assert len([found async for found in shop.app.jobs.find(task=follow.name)]) == 1


async def test_a_lost_lease_shows_inside_the_transaction_and_rolls_it_back(shop: Shop):
    """DESIGN 3b: whatever a stale run would write is not committed."""

    @shop.app.task
    async def mail() -> str:
        return "mailed"

    job = await mail.enqueue()
    [claimed] = await shop.app.store.claim(Claim(("default",), "stalled", lease=20))
    context = Context(run_of(shop.app, claimed))
    while not await shop.app.store.reclaim(Reclaim("rescuer", lease=60_000)):
        await asyncio.sleep(0.02)
    lost = False
    try:
        with shop.connect() as mine:
            mine.execute("INSERT INTO purchase (mailed) VALUES (1)")
            await context.complete("stale", within=mine)
    except LeaseLost:
        lost = True

    assert lost
    assert (await shop.app.jobs.get(job)).state == "running"
    assert count_of(shop.connect())[0] == 0


def run_of(app, job):
    loop = asyncio.get_running_loop()
    return Run(job, app.tasks[job.task], 30.0, loop.time(), WorkerScope(loop.time), 3.0)


async def test_what_cannot_be_encoded_is_refused_before_anything_is_written(shop: Shop):
    @shop.app.task
    async def mail(ctx: Context) -> int:
        with contextlib.closing(shop.connect()) as mine, pytest.raises(PayloadInvalid):
            await ctx.complete(object(), within=mine)
        return 7

    job = await mail.enqueue()
    await shop.app.worker(burst=True).run(handle_signals=False)

    assert await shop.app.jobs.result(job) == 7


async def test_a_handler_goes_on_after_its_commit_though_the_heartbeat_finds_the_lease_gone(shop: Shop):
    went_on = asyncio.Event()

    @shop.app.task
    async def mail(ctx: Context) -> None:
        with shop.connect() as mine:
            await ctx.complete(None, within=mine)
        await asyncio.sleep(0.8)  # several beats, each of which is told that the lease is lost
        went_on.set()

    job = await mail.enqueue()
    worker = shop.app.worker(burst=True, beat_interval=0.1)
    await worker.run(handle_signals=False)

    assert went_on.is_set()
    assert (await shop.app.jobs.get(job)).state == "completed"
    assert (worker.stats.completed, worker.stats.lost, worker.stats.abandoned) == (1, 0, 0)


async def test_a_batch_completes_all_its_jobs_in_one_transaction(shop: Shop):
    @shop.app.batch_task(size=5, linger=0.2)
    async def mail(contexts: list[Context], items: list[int]) -> None:
        with shop.connect() as mine:
            for ctx, item in zip(contexts, items, strict=True):
                mine.execute("INSERT INTO purchase (mailed) VALUES (1)")
                await ctx.complete(item * 2, within=mine)

    jobs = [await mail.enqueue(n) for n in range(5)]
    await shop.app.worker(burst=True).run(handle_signals=False)

    assert [await shop.app.jobs.result(job) for job in jobs] == [0, 2, 4, 6, 8]
    assert count_of(shop.connect()) == (5, 5)


async def test_a_pool_takes_jobs_within_a_transaction(shop: Shop):
    pool = shop.app.pool("carts", lanes=3)

    @pool.handler
    async def cart(n: int) -> None: ...

    await pool.declare()
    mine = shop.connect()
    for end in (mine.rollback, mine.commit):
        placed = [await cart.options(within=mine, partition="ada").enqueue(n) for n in range(3)]
        end()

    assert [answer.position for answer in placed] == [0, 1, 2]
    assert len({answer.instance for answer in placed}) == 1
    assert (await pool.status()).waiting == 3
