"""W-36…W-44, W-51 and W-53: the failure matrix. Each worker is a real one; a crash is a wire that is cut."""

import asyncio
import signal
import subprocess
import sys
import textwrap

import pytest

from millrace import App, Context, DeadJob, StoreError
from millrace.domain.request import Claim
from millrace.store.protocol import Store
from millrace.store.sqlite import SqliteStore
from millrace.testing import Fault, FaultyStore, InjectedFault, scripted, seeded
from millrace.testing.clock import VirtualClock
from tests.app.pools.scene import Wire, after, burst, kinds, states, until, worker
from tests.narrowing import the


class Handled:
    """What was run, in order, and a gate that handlers may be held at."""

    def __init__(self):
        self.ran = []
        self.started = asyncio.Event()
        self.gate = asyncio.Event()

    def define(self, app, **options):
        @app.pool("orders", **{"lanes": 1, "retry": [0], "max_attempts": 5, **options})
        async def handle(ctx: Context, name: str) -> None:
            self.ran.append((name, ctx.attempt))
            if name == "slow" and ctx.attempt == 1:
                self.started.set()
                await self.gate.wait()

        return handle


@pytest.fixture
def handled():
    return Handled()


async def crash(working, wire):
    """The worker is gone for the store: not one more word of it arrives."""
    wire.is_cut = True
    await working.stop(deadline=0)


async def test_w36_a_crash_during_an_enqueue_fails_it_and_the_client_asks_again(store: Store, handled: Handled):
    handle = handled.define(App(FaultyStore(store, scripted(("enqueue", 1, Fault.BEFORE)))))

    with pytest.raises(StoreError):
        await handle.enqueue("a")
    assert (await handle.pool.status()).pending == 0

    answer = await handle.enqueue("a")
    assert (answer.position, answer.depth) == (0, 1)


async def test_w36_a_batch_that_fails_leaves_nothing_of_itself(store: Store, handled: Handled):
    handle = handled.define(App(FaultyStore(store, scripted(("enqueue", 1, Fault.BEFORE)))), lanes=3)

    with pytest.raises(StoreError):
        await handle.enqueue_many([(str(n),) for n in range(10)])
    assert (await handle.pool.status()).pending == 0


async def test_w36_a_crash_while_the_pool_is_written_down_is_made_good_by_the_next_use(store: Store, handled: Handled):
    handle = handled.define(App(FaultyStore(store, scripted(("control", 2, Fault.BEFORE)))), lanes=3)

    with pytest.raises(StoreError):
        await handle.enqueue("a")
    answers = [await handle.enqueue(str(n)) for n in range(3)]
    assert {answer.lane for answer in answers} == {0, 1, 2}


async def test_w37_a_producer_that_dies_after_its_enqueue_leaves_a_job_that_runs(store: Store, handled: Handled):
    """Nobody was told of it, and no other enqueue follows."""
    wire = Wire()
    await handled.define(wire.app(store)).enqueue("a")
    wire.is_cut = True

    app = App(store)
    handled.define(app)
    await burst(app)
    assert handled.ran == [("a", 1)]


async def test_w38_a_worker_that_dies_in_the_middle_of_a_job_has_it_run_again(
    store: Store, clock: VirtualClock, handled: Handled
):
    wire = Wire()
    doomed = wire.app(store)
    answers = await handled.define(doomed).enqueue_many([("slow",), ("next",)])
    async with worker(doomed) as working:
        await handled.started.wait()
        await crash(working, wire)

    app = App(store)
    again = handled.define(app)
    status = await again.pool.status()
    assert (status.state, status.lanes[0].current) == ("processing", answers[0].seq)  # as far as the store knows
    clock.advance(31)
    async with worker(app):
        await until(lambda: len(handled.ran) == 3)

    assert handled.ran == [("slow", 1), ("slow", 2), ("next", 1)]
    assert await kinds(app, answers[0]) == ["enqueued", "claimed", "reclaimed", "retried", "claimed", "completed"]


async def test_w38_a_killed_process_has_its_job_run_again_in_order(tmp_path):
    """A real process, a real SIGKILL, a real file; the lease is short."""
    program = tmp_path / "doomed.py"
    program.write_text(
        textwrap.dedent("""
            import os, signal, sys
            from millrace import App, Context

            app = App(f"sqlite:///{sys.argv[1]}")

            @app.pool("orders", lanes=1, lease="3s", retry=[0])
            async def handle(ctx: Context, name: str) -> None:
                print(name, ctx.attempt, flush=True)
                if name == "fatal" and ctx.attempt == 1:
                    os.kill(os.getpid(), signal.SIGKILL)

            async def main():
                async with app:
                    if sys.argv[2] == "produce":
                        await handle.enqueue_many([("first",), ("fatal",), ("last",)])
                    worker = app.worker(reap_interval=0.05, poll_max=0.1)
                    async with worker:
                        while (await handle.pool.status()).pending:
                            await asyncio.sleep(0.05)

            import asyncio
            asyncio.run(main())
        """)
    )

    def run(what):
        command = [sys.executable, str(program), str(tmp_path / "jobs.db"), what]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    died = run("produce")
    assert (died.returncode, died.stdout.split("\n")[:2]) == (-signal.SIGKILL, ["first 1", "fatal 1"])
    went_on = run("work")

    assert went_on.returncode == 0, went_on.stderr
    assert went_on.stdout.splitlines() == ["fatal 2", "last 1"]
    store = SqliteStore(tmp_path / "jobs.db")
    await store.connect()
    [lane] = await store.lanes("orders")
    await store.close()
    assert (lane.processed, lane.died, lane.waiting) == (3, 0, 0)


async def test_w39_a_crash_during_backoff_keeps_the_time_of_the_retry(
    store: Store, clock: VirtualClock, handled: Handled
):
    wire = Wire()
    doomed = wire.app(store)

    @doomed.pool("orders", lanes=1, retry=after(60), max_attempts=5)
    async def fails(name: str) -> None:
        raise RuntimeError("no")

    answer = await fails.enqueue("a")
    async with worker(doomed) as working:
        await until(lambda: working.stats.retried)
        await crash(working, wire)

    app = App(store)
    handled.define(app)
    clock.advance(59)
    await burst(app)
    assert handled.ran == []
    clock.advance(1)
    await burst(app)
    assert handled.ran == [("a", 2)]
    assert await states(app, [answer]) == ["completed"]


async def test_w40_a_settle_that_fails_is_repeated_and_the_handler_is_not(store: Store, handled: Handled):
    app = App(FaultyStore(store, scripted(("settle", 1, Fault.BEFORE), ("settle", 2, Fault.BEFORE))))
    handle = handled.define(app)
    answers = await handle.enqueue_many([("a",), ("b",)])
    await burst(app)

    assert handled.ran == [("a", 1), ("b", 1)]
    assert await states(app, answers) == ["completed", "completed"]


async def test_w40_w32_a_settle_whose_answer_was_lost_counts_once(store: Store, handled: Handled):
    app = App(FaultyStore(store, scripted(("settle", 1, Fault.AFTER))))
    handle = handled.define(app)
    await handle.enqueue_many([("a",), ("b",)])
    await burst(app)

    assert handled.ran == [("a", 1), ("b", 1)]
    assert (await handle.pool.status()).processed == 2


async def test_w41_a_worker_whose_wake_up_fails_finds_its_jobs_all_the_same(store: Store, handled: Handled):
    """W-07, W-15: the alarm is a hint; looking again is what makes it sure."""
    app = App(FaultyStore(store, lambda method, _: Fault.BEFORE if method == "wait" else None))
    handle = handled.define(app)
    async with worker(app) as working:
        await until(lambda: working.stats.errors)
        await handle.enqueue("a")
        await until(lambda: handled.ran)

    assert handled.ran == [("a", 1)]


async def test_w41_a_worker_starts_though_its_store_fails_for_a_moment(store: Store, handled: Handled):
    await handled.define(App(store)).enqueue("a")
    app = App(FaultyStore(store, scripted(("control", 1, Fault.BEFORE))))
    handled.define(app)
    await burst(app)

    assert handled.ran == [("a", 1)]


async def test_w41_claims_that_fail_are_repeated(store: Store, handled: Handled):
    app = App(FaultyStore(store, lambda method, n: Fault.BEFORE if method == "claim" and n <= 3 else None))
    handle = handled.define(app)
    await handle.enqueue("a")
    async with worker(app):
        await until(lambda: handled.ran)

    assert handled.ran == [("a", 1)]


async def test_w42_a_handler_that_raises_is_retried_and_then_buried(app: App, handled: Handled):
    told = []

    @app.pool("orders", lanes=1, retry=[0], max_attempts=2)
    async def handle(name: str) -> None:
        raise RuntimeError(name)

    @handle.pool.on_dead_letter
    async def mourn(job: DeadJob) -> None:
        told.append((job.error, job.attempts))

    answer = await handle.enqueue("a")
    await burst(app)

    assert await kinds(app, answer) == ["enqueued", "claimed", "retried", "claimed", "buried"]
    assert told == [("RuntimeError: a", 2)]


async def test_w43_a_handler_that_takes_too_long_has_failed(app: App):
    """W-30: counted, retried, and buried as `timeout` in the end."""
    ran = []

    @app.pool("orders", lanes=1, timeout="500ms", retry=[0], max_attempts=2)
    async def handle(name: str) -> None:
        ran.append(name)
        if name == "slow":
            await asyncio.sleep(30)

    answers = await handle.enqueue_many([("slow",), ("next",)])
    await burst(app)

    assert ran == ["slow", "slow", "next"]
    assert await states(app, answers) == ["dead", "completed"]
    assert the(await app.jobs.get(answers[0])).reason == "timeout"


async def test_w44_a_lane_that_is_held_by_nobody_is_set_right(store: Store, clock: VirtualClock, handled: Handled):
    """`processing` with nobody processing: the lease runs out, whether or not anybody enqueues."""
    app = App(store)
    handle = handled.define(app)
    await handle.enqueue_many([("a",), ("b",)])
    assert len(await store.claim(Claim(("orders",), "gone", limit=5))) == 1
    async with worker(app):
        await asyncio.sleep(0.1)
        assert handled.ran == []
        clock.advance(31)
        await until(lambda: len(handled.ran) == 2)

    assert handled.ran == [("a", 2), ("b", 1)]


async def test_w44_a_paused_lane_is_set_right_and_stays_paused(store: Store, clock: VirtualClock, handled: Handled):
    app = App(store)
    handle = handled.define(app)
    await handle.enqueue("a")
    [job] = await store.claim(Claim(("orders",), "gone"))
    await handle.pool.pause()
    clock.advance(31)
    async with worker(app) as working:
        await until(lambda: working.stats.reaped)
        await asyncio.sleep(0.05)

    status = await handle.pool.status()
    assert (status.state, status.waiting, status.running, handled.ran) == ("paused", 1, 0, [])
    assert the(await app.jobs.get(job.id)).failures == 1


async def test_w51_an_incomplete_job_is_run_again_before_the_next_of_its_lane(
    store: Store, clock: VirtualClock, handled: Handled
):
    """W-31, W-32: at least once, and in order, though the first run did all of its work."""
    app = App(store)
    handle = handled.define(app)
    await handle.enqueue_many([("a",), ("b",)])
    wire = Wire()
    doomed = wire.app(store)

    @doomed.pool("orders", lanes=1)
    async def works(ctx: Context, name: str) -> None:
        handled.ran.append((name, ctx.attempt))
        wire.is_cut = True  # it has done its work, and cannot say so any more

    async with worker(doomed) as working:
        await until(lambda: handled.ran)
        await crash(working, wire)
    clock.advance(31)
    async with worker(app):
        await until(lambda: len(handled.ran) == 3)

    assert handled.ran == [("a", 1), ("a", 2), ("b", 1)]


async def test_w51_a_worker_that_comes_later_finds_what_waits(store: Store, handled: Handled):
    app = App(store)
    handle = handled.define(app, lanes=2)
    await handle.enqueue_many([(str(n),) for n in range(4)])
    async with worker(app):
        await until(lambda: len(handled.ran) == 4)

    assert (await handle.pool.status()).processed == 4


async def test_w53_workers_that_keep_crashing_lose_nothing(store: Store, clock: VirtualClock):
    """Every job is run to its end; within a lane no job is overtaken."""
    done = []

    def define(app, hangs=None):
        @app.pool("orders", lanes=3, retry=[0], max_attempts=None, max_stalls=None)
        async def handle(ctx: Context, n: int) -> None:
            if hangs is not None and n % 3 == 2:
                hangs.set()
                await asyncio.sleep(60)
            done.append((ctx.lane, n))

        return handle

    answers = await define(App(store)).enqueue_many([(n,) for n in range(12)])
    for _ in range(2):
        wire, hangs = Wire(), asyncio.Event()
        doomed = wire.app(store)
        define(doomed, hangs)
        async with worker(doomed) as working:
            await asyncio.wait_for(hangs.wait(), 60)
            await crash(working, wire)
        clock.advance(31)
    app = App(store)
    define(app)
    async with worker(app):
        while set(await states(app, answers)) != {"completed"}:
            await asyncio.sleep(0.01)

    first = {lane: list(dict.fromkeys(n for at, n in done if at == lane)) for lane in range(3)}
    assert first == {lane: [n for n, a in enumerate(answers) if a.lane == lane] for lane in range(3)}


@pytest.mark.parametrize("seed", range(3))
async def test_w53_a_store_that_fails_now_and_then_loses_nothing(store: Store, clock: VirtualClock, seed):
    chances = {Fault.BEFORE: 0.1, Fault.AFTER: 0.05, Fault.TWICE: 0.05, Fault.DELAY: 0.1}
    faulty = FaultyStore(store, seeded(seed, chances, frozenset({"claim", "settle", "extend", "wait", "reclaim"})))
    app = App(faulty)
    done: dict[int | None, list[int]] = {}

    @app.pool("orders", lanes=4, retry=[0], max_attempts=None, max_stalls=None)
    async def handle(ctx: Context, n: int) -> None:
        done.setdefault(ctx.lane, []).append(n)
        await asyncio.sleep(0)

    answers = await handle.enqueue_many([(n,) for n in range(80)])
    async with worker(app, shutdown_deadline=1):
        while (await handle.pool.status()).pending:
            clock.advance(10)
            await asyncio.sleep(0.02)

    assert faulty.faults.total() > 5
    first = {lane: list(dict.fromkeys(ran)) for lane, ran in done.items()}
    assert first == {lane: [n for n, a in enumerate(answers) if a.lane == lane] for lane in range(4)}
    assert (await handle.pool.status()).processed == 80


async def test_w53_slow_handlers_keep_their_lane_and_hold_up_no_other(app: App):
    done, gate = [], asyncio.Event()

    @app.pool("orders", lanes=2)
    async def handle(ctx: Context, n: int) -> None:
        if n == 0:
            await gate.wait()
        done.append(n)

    await handle.enqueue_many([(n,) for n in range(6)])  # 0, 2, 4 in one lane, 1, 3, 5 in the other
    async with worker(app):
        await until(lambda: len(done) == 3)
        assert done == [1, 3, 5]
        gate.set()
        await until(lambda: len(done) == 6)

    assert done == [1, 3, 5, 0, 2, 4]


async def test_w53_a_failing_store_is_what_an_operator_is_told_of(store: Store, handled: Handled):
    app = App(FaultyStore(store, lambda method, _: Fault.BEFORE if method in ("lanes", "drain") else None))
    handle = handled.define(app)
    await handle.enqueue("a")

    with pytest.raises(InjectedFault):
        await handle.pool.status()
    with pytest.raises(InjectedFault):
        await handle.pool.drain()
