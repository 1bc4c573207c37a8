"""Each fault of the WorkerPool design (SPEC, part 4), and what Millrace does instead: one test per number, or more."""

import asyncio

import msgspec
import pytest

from millrace import App, Context, DeadJob, Emptied, InvalidInput, LanesInUse, QueueFull, StoreError, backoff
from millrace.app.pools.task import MOST_AT_ONCE
from millrace.domain.change import Change
from millrace.domain.request import Claim, Receipt
from millrace.domain.rules.lanes import lane_of
from millrace.store.protocol import Store
from millrace.testing import Fault, FaultyStore, scripted
from millrace.testing.clock import VirtualClock
from tests.app.pools.scene import a_key, after, burst, spread, states, until, worker


def one_lane(app, ran, **options):
    @app.pool("orders", **{"lanes": 1, "retry": [0], **options})
    async def handle(ctx: Context, name: str) -> None:
        ran.append(name)
        if name.startswith("bad"):
            raise RuntimeError(name)

    return handle


@pytest.fixture
def ran():
    return []


class Deaf(FaultyStore):
    """No word of new jobs ever arrives: whoever waits, waits for its poll."""

    async def wait(self, queues, tasks, timeout):
        await asyncio.sleep(timeout)


async def test_bw01_a_job_that_nobody_was_told_of_is_run_without_another_enqueue(store: Store, ran):
    app = App(Deaf(store))
    handle = one_lane(app, ran)
    async with worker(app) as working:
        await until(lambda: working.stats.claims > 1)
        await handle.enqueue("a")
        await until(lambda: ran)

    assert ran == ["a"]


async def test_bw02_a_crash_leaves_no_flag_that_keeps_the_lane_closed(app: App, store: Store, clock: VirtualClock, ran):
    handle = one_lane(app, ran)
    await handle.enqueue_many([("a",), ("b",)])
    await store.claim(Claim(("orders",), "gone"))
    await burst(app)
    assert ran == []
    clock.advance(31)
    async with worker(app):
        await until(lambda: len(ran) == 2)

    assert ran == ["a", "b"]


async def test_bw03_outcome_and_removal_are_one_step(store: Store, ran):
    """The reply to the settle is lost, twice: no record is left behind, and none is counted twice."""
    app = App(FaultyStore(store, scripted(("settle", 1, Fault.AFTER), ("settle", 2, Fault.AFTER))))
    handle = one_lane(app, ran)
    await handle.pool.queue.set(keep_completed=0)
    await handle.enqueue_many([("a",), ("b",), ("c",)])
    await burst(app)

    assert [job async for job in app.jobs.find(archived=None)] == []
    assert ((await handle.pool.status()).processed, ran) == (3, ["a", "b", "c"])


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
async def test_bw04_a_settle_happens_as_a_whole_or_not_at_all(store: Store, ran, fault):
    """Whatever became of the first try, the next job is open exactly when the first one has ended."""
    faulty = FaultyStore(store, scripted(("settle", 1, fault)))
    handle = one_lane(App(store), ran)
    first, second = await handle.enqueue_many([("a",), ("b",)])
    [job] = await store.claim(Claim(("orders",), "w", limit=5))
    with pytest.raises(StoreError):
        await faulty.settle([(job.lease, Change.completed())])
    jobs = await store.claim(Claim(("orders",), "w", limit=5))

    assert [job.seq for job in jobs] == ([second.seq] if fault is Fault.AFTER else [])
    assert await states(handle._app, [first]) == ["completed" if fault is Fault.AFTER else "running"]


async def test_bw05_a_drain_during_a_run_leaves_the_lane_in_order(app: App):
    started, gate, ran = asyncio.Event(), asyncio.Event(), []

    @app.pool("orders", lanes=1)
    async def handle(name: str) -> None:
        ran.append(name)
        if name == "a":
            started.set()
            await gate.wait()

    await handle.enqueue_many([("a",), ("b",), ("c",)])
    async with worker(app):
        await started.wait()
        assert await handle.pool.drain() == 2
        later = await handle.enqueue("later")
        assert later.position == 1  # behind the one that runs
        gate.set()
        await until(lambda: len(ran) == 2)

    assert ran == ["a", "later"]
    assert (await handle.pool.status()).processed == 2


async def test_bw06_a_drain_keeps_settings_pause_counters_and_what_runs(app: App, store: Store, ran):
    handle = one_lane(app, ran, max_depth=7, max_attempts=1)
    await handle.enqueue_many([("a",), ("bad",)])
    await burst(app)
    await handle.enqueue_many([("b",), ("c",)])
    [running] = await store.claim(Claim(("orders",), "w"))
    await handle.pool.pause()

    assert await handle.pool.drain() == 1

    [lane] = (await handle.pool.status()).lanes
    assert (lane.state, lane.processed, lane.dead, lane.running, lane.current) == ("paused", 1, 1, 1, running.seq)
    settings = await handle.pool.queue.settings()
    assert (settings.lanes, settings.max_depth, settings.paused) == (1, 7, True)
    assert await store.settle([(running.lease, Change.completed())]) == [Receipt.OK]


async def test_bw07_a_resume_skips_no_backoff(app: App, clock: VirtualClock, ran):
    handle = one_lane(app, ran, retry=after(60), max_attempts=2)
    await handle.enqueue("bad")
    await burst(app)
    await handle.pool.pause()
    clock.advance(30)
    await handle.pool.resume()
    await burst(app)
    assert ran == ["bad"]

    clock.advance(30)
    await burst(app)
    assert ran == ["bad", "bad"]


async def test_bw07_a_resume_of_one_lane_skips_no_backoff(app: App, clock: VirtualClock, ran):
    handle = one_lane(app, ran, retry=after(60), max_attempts=2)
    await handle.enqueue("bad")
    await burst(app)
    await handle.pool.pause(lane=0)
    clock.advance(59)
    await handle.pool.resume(lane=0)
    await burst(app)

    assert ran == ["bad"]


async def test_bw08_empty_is_told_after_the_last_job_and_only_then(app: App, ran):
    handle = one_lane(app, ran, lanes=2, max_attempts=1)

    @handle.pool.on_empty
    async def empty(lane: Emptied) -> None:
        ran.append(f"empty {lane.lane} after {lane.processed}")

    here = handle.options(partition=a_key(1, 2))
    await burst(app)  # a worker that finds nothing is no transition
    assert ran == []
    await here.enqueue_many([("a",), ("b",), ("bad",)])
    await burst(app)
    assert ran == ["a", "b", "bad", "empty 1 after 2"]
    await burst(app)
    assert len(ran) == 4


async def test_bw08_a_lane_that_waits_for_a_retry_is_not_empty(app: App, clock: VirtualClock, ran):
    handle = one_lane(app, ran, retry=after(60), max_attempts=2)
    handle.pool.on_empty(lambda lane: ran.append("empty"))
    await handle.enqueue("bad")
    await burst(app)
    assert ran == ["bad"]

    clock.advance(60)
    await burst(app)
    assert ran == ["bad", "bad", "empty"]


async def test_bw08_a_hook_that_fails_is_tried_again(app: App, clock: VirtualClock):
    told = []

    @app.pool("orders", lanes=1)
    async def handle(n: int) -> None: ...

    @handle.pool.on_empty
    async def empty(ctx: Context, lane: Emptied) -> None:
        told.append(ctx.attempt)
        if ctx.attempt == 1:
            raise RuntimeError("not yet")

    await handle.enqueue(1)
    await burst(app)
    clock.advance(5)
    await burst(app)

    assert told == [1, 2]


async def test_bw09_the_attempts_are_the_job_s_not_the_lane_s(app: App):
    """A job that is skipped as unreadable leaves no count to the next one."""
    attempts = []

    @app.pool("orders", lanes=1, retry=[0], max_attempts=3)
    async def handle(ctx: Context, name: str) -> None:
        attempts.append((name, ctx.attempt))
        if name == "bad":
            raise RuntimeError(name)

    unreadable = msgspec.structs.replace(handle.spec("x"), payload=b"[]")
    await handle.enqueue("bad")
    await app.enqueue([unreadable])
    await handle.enqueue("good")
    await burst(app)

    assert attempts == [("bad", 1), ("bad", 2), ("bad", 3), ("good", 1)]
    status = await handle.pool.status()
    assert (status.processed, status.dead) == (1, 2)


async def test_bw10_the_dead_are_not_counted_as_processed(app: App, ran):
    handle = one_lane(app, ran, max_attempts=1)
    await handle.enqueue_many([("a",), ("bad",), ("b",), ("bad too",), ("bad again",)])
    await burst(app)

    status = await handle.pool.status()
    assert (status.processed, status.dead) == (2, 3)


async def test_bw10_hooks_are_counted_as_neither(app: App, ran):
    handle = one_lane(app, ran, max_attempts=1)
    handle.pool.on_dead_letter(lambda job: None)
    handle.pool.on_empty(lambda lane: None)
    await handle.enqueue_many([("a",), ("bad",)])
    await burst(app)

    status = await handle.pool.status()
    assert (status.processed, status.dead, status.pending) == (1, 1, 0)


async def test_bw11_a_dead_letter_outlives_a_hook_that_fails(app: App, clock: VirtualClock, ran):
    """The death is kept first; the hook is a job that is tried again, and its own death takes nothing with it."""
    handle = one_lane(app, ran, max_attempts=1)
    told = []

    @handle.pool.on_dead_letter
    async def mourn(ctx: Context, job: DeadJob) -> None:
        told.append((job.args["name"], ctx.attempt))
        if ctx.attempt < 3:
            raise RuntimeError("the mail server is down")

    answer = await handle.enqueue("bad")
    for _ in range(4):
        await burst(app)
        clock.advance(60)

    assert told == [("bad", 1), ("bad", 2), ("bad", 3)]
    assert await states(app, [answer]) == ["dead"]


async def test_bw11_a_hook_that_dies_itself_starts_no_endless_chain(app: App, clock: VirtualClock, ran, caplog):
    handle = one_lane(app, ran, max_attempts=1)

    @handle.pool.on_dead_letter
    async def mourn(job: DeadJob) -> None:
        ran.append("hook")
        raise RuntimeError("always")

    answer = await handle.enqueue("bad")
    for _ in range(8):
        await burst(app)
        clock.advance(120)

    assert ran == ["bad", *["hook"] * 4]
    assert "pool orders: hook dead-letter-orders" in caplog.text  # but it is said
    assert await states(app, [answer]) == ["dead"]
    assert [job.task async for job in app.jobs.find(state="dead", task="orders.on_dead_letter")] == [
        "orders.on_dead_letter"
    ]


async def test_bw11_a_worker_that_dies_with_the_job_leaves_the_hook_behind(
    app: App, store: Store, clock: VirtualClock, ran
):
    """The hook is enqueued by the very step that buries: here the reaper's, for a worker that was lost."""
    handle = one_lane(app, ran, max_attempts=1)
    told = []
    handle.pool.on_dead_letter(lambda job: told.append(job.reason))
    await handle.enqueue("a")
    await store.claim(Claim(("orders",), "gone"))
    clock.advance(31)
    async with worker(app):
        await until(lambda: told)

    assert told == ["worker_lost"]


async def test_bw12_the_cap_on_delays_is_hard_with_jitter_too(app: App, clock: VirtualClock, ran):
    handle = one_lane(app, ran, retry=backoff(1, factor=10, maximum=30, jitter=0.25), max_attempts=8)
    answer = await handle.enqueue("bad")
    waits = []
    for _ in range(7):
        await burst(app)
        waits.append((await app.jobs.get(answer)).record.available_at - clock())
        clock.advance(31)

    assert all(0 < wait <= 30_000 for wait in waits)
    assert max(waits[2:]) > 20_000


async def test_bw13_a_job_knows_its_lane_not_always_zero(app: App):
    lanes = set()

    @app.pool("orders", lanes=4, max_attempts=1)
    async def handle(ctx: Context, n: int) -> None:
        lanes.add((ctx.lane, ctx.instance))
        raise RuntimeError("no")

    @handle.pool.on_dead_letter
    async def mourn(job: DeadJob) -> None:
        lanes.add((job.lane, job.instance))

    @handle.pool.on_empty
    async def empty(lane: Emptied) -> None:
        lanes.add((lane.lane, lane.instance))

    await handle.enqueue_many([(n,) for n in range(4)])
    await burst(app)

    assert lanes == {(n, f"workerPool:orders:{n}") for n in range(4)}


async def test_bw14_an_enqueue_whose_reply_was_lost_can_be_asked_again(store: Store, ran):
    """By an id of the caller's, or with the very spec: its token tells that it is the same enqueue."""
    app = App(FaultyStore(store, scripted(("enqueue", 1, Fault.AFTER), ("enqueue", 3, Fault.AFTER))))
    handle = one_lane(app, ran)
    named = handle.options(id="order-1")
    with pytest.raises(StoreError):
        await named.enqueue("a")
    assert (await named.enqueue("a")).is_duplicate

    spec = handle.spec("b")
    with pytest.raises(StoreError):
        await app.enqueue([spec])
    [again] = await app.enqueue([spec])
    assert (again.is_duplicate, again.id) == (False, spec.id)
    await burst(app)
    assert ran == ["a", "b"]


async def test_bw15_lanes_fill_evenly_however_many_producers_there_are(store: Store):
    """Each client starts anew; the turn is kept in the store."""
    answers = []
    for _ in range(12):
        app = App(store)

        @app.pool("orders", lanes=4)
        async def handle(n: int) -> None: ...

        answers += [await handle.enqueue(n) for n in range(3)]

    assert spread(answers) == {0: 9, 1: 9, 2: 9, 3: 9}


async def test_bw15_another_number_of_lanes_reorders_no_partition(store: Store):
    old, new = App(store), App(store)

    @old.pool("orders", lanes=4)
    async def before(n: int) -> None: ...

    @new.pool("orders", lanes=5)
    async def since(n: int) -> None: ...

    key = next(name for name in map(str, range(99)) if lane_of(name, 4) != lane_of(name, 5))
    await before.options(partition=key).enqueue(1)
    with pytest.raises(LanesInUse):
        await since.options(partition=key).enqueue(2)
    await burst(old)
    assert (await since.options(partition=key).enqueue(2)).lane == lane_of(key, 5)


async def test_bw16_a_worker_whose_every_wake_up_fails_goes_on_by_looking(store: Store, ran):
    app = App(FaultyStore(store, lambda method, _: Fault.BEFORE if method == "wait" else None))
    handle = one_lane(app, ran)
    async with worker(app) as working:
        await until(lambda: working.stats.errors)
        await handle.enqueue_many([("a",), ("b",), ("c",)])
        await until(lambda: len(ran) == 3)

    assert ran == ["a", "b", "c"]


async def test_bw17_a_batch_is_one_step_or_refused_as_too_large(app: App, ran):
    handle = one_lane(app, ran, max_depth=None)
    with pytest.raises(InvalidInput, match=r"at most 10,000 jobs in one step.*chunk=1_000"):
        await handle.enqueue_many((str(n),) for n in range(MOST_AT_ONCE + 1))
    assert (await handle.pool.status()).waiting == 0

    answers = await handle.enqueue_many([(str(n),) for n in range(MOST_AT_ONCE)])
    assert answers[-1].seq - answers[0].seq == MOST_AT_ONCE - 1
    assert answers[-1].position == MOST_AT_ONCE - 1


async def test_bw17_a_batch_that_does_not_fit_leaves_nothing(app: App, ran):
    handle = one_lane(app, ran, max_depth=5)
    with pytest.raises(QueueFull):
        await handle.enqueue_many([(str(n),) for n in range(6)])

    assert (await handle.pool.status()).waiting == 0
