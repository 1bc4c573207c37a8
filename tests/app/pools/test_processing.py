"""W-48 and W-17: jobs of a lane run one at a time and in order; handlers know where they are."""

import asyncio

import msgspec

from millrace import App, Context, Emptied
from millrace.domain.rules.lanes import lane_of
from millrace.store.protocol import Store
from millrace.testing import Fault, FaultyStore
from millrace.testing.clock import VirtualClock
from tests.app.pools.scene import a_key, after, burst, kinds, states, until, worker
from tests.narrowing import the


async def test_w48_a_lane_runs_its_jobs_in_order(app: App):
    ran = []

    @app.pool("orders", lanes=1)
    async def handle(n: int) -> None:
        await asyncio.sleep(0)
        ran.append(n)

    await handle.enqueue_many([(n,) for n in range(50)])
    await burst(app, slots=10)

    assert ran == list(range(50))


async def test_w02_w06_one_job_per_lane_runs_at_a_time(app: App):
    now, most, lanes_met = {}, 0, set()
    ran: dict[int | None, list[int]] = {}

    @app.pool("orders", lanes=3)
    async def handle(ctx: Context, n: int) -> None:
        nonlocal most
        assert ctx.lane not in now
        now[ctx.lane] = n
        lanes_met.add(ctx.lane)
        most = max(most, len(now))
        await asyncio.sleep(0.002)
        del now[ctx.lane]
        ran.setdefault(ctx.lane, []).append(n)

    answers = await handle.enqueue_many([(n,) for n in range(30)])
    async with worker(app, slots=20), worker(app, slots=20):
        await until(lambda: sum(map(len, ran.values())) == 30)

    assert most <= 3 and lanes_met == {0, 1, 2}
    assert ran == {lane: [n for n, a in enumerate(answers) if a.lane == lane] for lane in range(3)}


async def test_w04_jobs_of_one_key_run_in_order_whatever_others_do(app: App):
    ran: dict[str, list[int]] = {}

    @app.pool("orders", lanes=4, partition_by=lambda customer, n: customer)
    async def handle(customer: str, n: int) -> None:
        await asyncio.sleep(n % 3 / 1000)
        ran.setdefault(customer, []).append(n)

    await handle.enqueue_many([(f"c{n % 7}", n) for n in range(70)])
    await burst(app)

    assert ran == {f"c{k}": list(range(k, 70, 7)) for k in range(7)}


async def test_w48_w24_a_finished_job_leaves_its_lane_and_is_counted(app: App):
    @app.pool("orders", lanes=1)
    async def handle(n: int) -> int:
        return n

    answers = await handle.enqueue_many([(n,) for n in range(3)])
    await burst(app)

    [lane] = (await handle.pool.status()).lanes
    assert (lane.waiting, lane.running, lane.processed, lane.dead, lane.current) == (0, 0, 3, 0, None)
    assert await states(app, answers) == ["completed"] * 3
    assert await app.jobs.result(answers[2]) == 2


async def test_w48_records_of_finished_jobs_may_be_gone_at_once(app: App):
    """W-12, W-34: nothing piles up, if that is what one wants."""

    @app.pool("orders", lanes=1)
    async def handle(n: int) -> None: ...

    await handle.pool.queue.set(keep_completed=0)
    await handle.enqueue_many([(n,) for n in range(5)])
    await burst(app)

    assert [job async for job in app.jobs.find(archived=None)] == []
    assert (await handle.pool.status()).processed == 5


async def test_w48_a_lane_that_ran_empty_is_told_once_each_time(app: App):
    """W-29: instance, lane, pool and the number of jobs it has processed."""
    told = []

    @app.pool("orders", lanes=2)
    async def handle(n: int) -> None: ...

    @handle.pool.on_empty
    async def empty(lane: Emptied) -> None:
        told.append((lane.pool, lane.lane, lane.instance, lane.processed))

    here = handle.options(partition=a_key(1, 2))
    await here.enqueue_many([(n,) for n in range(3)])
    await burst(app)
    assert told == [("orders", 1, "workerPool:orders:1", 3)]

    await here.enqueue(4)
    await burst(app)
    assert told[1:] == [("orders", 1, "workerPool:orders:1", 4)]


async def test_w17_a_handler_knows_its_place(app: App, clock: VirtualClock):
    seen = []

    @app.pool("orders", lanes=5, retry=after(10), max_attempts=3)
    async def handle(ctx: Context, order: str) -> None:
        seen.append((ctx.attempt, ctx.is_retry, ctx.enqueued_at, ctx.started_at, ctx.lane, ctx.instance, ctx.pool))
        assert (ctx.seq, ctx.id, ctx.task) == (answer.seq, answer.id, "orders")
        if ctx.attempt == 1:
            raise RuntimeError("once more")

    enqueued = clock()
    answer = await handle.options(partition="ada").enqueue("book")
    clock.advance(5)
    first = clock()
    await burst(app)
    second = clock.advance(20)
    await burst(app)

    lane = lane_of("ada", 5)
    here = (lane, f"workerPool:orders:{lane}", "orders")
    assert seen == [(1, False, enqueued, first, *here), (2, True, enqueued, second, *here)]


async def test_a_plain_task_is_in_no_pool(app: App):
    seen = []

    @app.task
    async def plain(ctx: Context) -> None:
        seen.append((ctx.pool, ctx.instance, ctx.lane))

    await plain.enqueue()
    await burst(app)

    assert seen == [(None, None, None)]


async def test_handlers_in_threads_are_handlers_too(app: App):
    ran = []

    @app.pool("orders", lanes=2)
    def handle(ctx: Context, n: int) -> None:
        ran.append((ctx.lane, n))

    answers = await handle.enqueue_many([(n,) for n in range(6)])
    await burst(app)

    assert sorted(ran) == sorted((answer.lane, n) for n, answer in enumerate(answers))


async def test_w46_pools_and_tasks_of_one_app_run_on_one_worker(app: App):
    """By default a worker takes all that its app knows: pools and their hooks too."""
    ran = []

    @app.pool("a", lanes=1)
    async def a(n: int) -> None:
        ran.append(f"a{n}")

    @app.pool("b", lanes=1)
    async def b(n: int) -> None:
        ran.append(f"b{n}")

    @b.pool.on_empty
    async def empty(lane: Emptied) -> None:
        ran.append(lane.pool)

    @app.task
    async def plain() -> None:
        ran.append("plain")

    await a.enqueue(1)
    await b.enqueue(1)
    await plain.enqueue()
    made = await burst(app)

    assert made.queues == ("a", "b", "default")
    assert sorted(ran) == ["a1", "b", "b1", "plain"]


async def test_a_worker_writes_the_pool_down_before_it_claims(app: App, store: Store):
    """So a job that came by another way, here a bare spec, finds its lane and its hook."""
    told = []
    pool = app.pool("orders", lanes=3)

    @pool.handler
    async def handle(n: int) -> None: ...

    @pool.on_empty
    async def empty(lane: Emptied) -> None:
        told.append(lane.processed)

    async with worker(app) as working:
        await until(lambda: working.stats.claims)
        [answer] = await store.enqueue([handle.options(partition="ada").spec(1)])
        await until(lambda: told)

    assert (answer.lane, told) == (lane_of("ada", 3), [1])


async def test_w16_a_head_that_is_gone_does_not_stop_its_lane(app: App):
    """The first in line is cancelled, or cannot be read: the lane goes on with the next."""
    ran = []

    @app.pool("orders", lanes=1)
    async def handle(n: int) -> None:
        ran.append(n)

    first, _, unreadable, _ = await handle.enqueue_many([(n,) for n in range(4)])
    [corrupt] = await app.enqueue([_with_payload(handle.options(priority=9).spec(9), b"\xff not json")])
    await app.jobs.cancel([first, unreadable])
    await burst(app)

    assert ran == [1, 3]
    job = the(await app.jobs.get(corrupt))
    assert (job.state, job.reason) == ("dead", "payload_invalid")


def _with_payload(spec, payload):
    return msgspec.structs.replace(spec, payload=payload)


async def test_a_burst_ends_only_when_no_lane_has_anything_left(store: Store):
    """A claim that was answered late has not seen what a settle opened meanwhile."""
    ran = []

    class Late(FaultyStore):
        async def claim(self, request):
            jobs = await super().claim(request)
            await asyncio.sleep(0.03)
            return jobs

    app = App(Late(store, lambda method, _: Fault.DELAY if method == "settle" else None, delay=0.01))

    @app.pool("orders", lanes=1)
    async def handle(n: int) -> None:
        ran.append(n)

    await handle.enqueue_many([(n,) for n in range(4)])
    await burst(app)

    assert ran == [0, 1, 2, 3]


async def test_the_history_of_a_job_shows_what_became_of_it(app: App):
    @app.pool("orders", lanes=1)
    async def handle(n: int) -> None: ...

    answer = await handle.enqueue(1)
    await burst(app)

    assert await kinds(app, answer) == ["enqueued", "claimed", "completed"]
