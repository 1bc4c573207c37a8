"""W-50 and W-45: pause, resume, status and drain, of a pool and of one lane."""

import asyncio
from typing import Any

import pytest

from millrace import App, DeadJob, Emptied, InvalidInput
from millrace.app.pools.task import PoolTask
from millrace.store.protocol import Store
from tests.app.pools.scene import a_key, burst, states, until, worker

Handle = PoolTask[[str], None, [str], Any]


@pytest.fixture
def ran():
    return []


@pytest.fixture
def handle(app: App, ran: list[str]):
    @app.pool("orders", lanes=2, max_attempts=1)
    async def handle(name: str) -> None:
        ran.append(name)
        if name == "bad":
            raise RuntimeError("bad")

    return handle


async def test_w50_a_paused_pool_stands_still_and_takes_enqueues(app: App, handle: Handle, ran: list[str]):
    await handle.enqueue("a")
    status = await handle.pool.pause()
    assert (status.paused, status.state) == (True, "paused")
    assert {lane.state for lane in status.lanes} == {"paused"}
    answer = await handle.enqueue("b")
    await burst(app)

    assert (answer.is_duplicate, ran) == (False, [])
    assert (await handle.pool.status()).waiting == 2


async def test_w50_a_resumed_pool_goes_on(app: App, handle: Handle, ran: list[str]):
    await handle.pool.pause()
    await handle.options(partition="ada").enqueue_many([("a",), ("b",)])
    status = await handle.pool.resume()
    assert (status.paused, status.state, status.waiting) == (False, "idle", 2)
    await burst(app)

    assert ran == ["a", "b"]


async def test_w50_a_worker_that_waits_is_woken_by_a_resume(app: App, handle: Handle, ran: list[str]):
    await handle.pool.pause()
    await handle.enqueue("a")
    async with worker(app, poll_min=600, poll_max=600) as working:
        await until(lambda: working.stats.claims)
        await handle.pool.resume()
        await until(lambda: ran)

    assert ran == ["a"]


async def test_w50_what_runs_when_a_pool_is_paused_goes_on_to_its_end(app: App):
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.pool("orders", lanes=1)
    async def handle(name: str) -> None:
        started.set()
        await go_on.wait()

    answers = await handle.enqueue_many([("a",), ("b",)])
    async with worker(app) as working:
        await started.wait()
        status = await handle.pool.pause()
        assert (status.state, status.running) == ("paused", 1)
        go_on.set()
        await until(lambda: working.stats.completed)
        await asyncio.sleep(0.05)

    assert await states(app, answers) == ["completed", "ready"]


async def test_one_lane_is_paused_and_the_others_go_on(app: App, handle: Handle, ran: list[str]):
    here, there = handle.options(partition=a_key(0, 2)), handle.options(partition=a_key(1, 2))
    status = await handle.pool.pause(lane=0)
    assert [lane.state for lane in status.lanes] == ["paused", "idle"]
    assert (status.paused, status.state) == (False, "idle")
    await here.enqueue("here")
    await there.enqueue("there")
    await burst(app)
    assert ran == ["there"]

    await handle.pool.resume(lane=0)
    await burst(app)
    assert ran == ["there", "here"]


async def test_a_pause_is_kept_for_other_processes(app: App, store: Store, handle: Handle, ran: list[str]):
    await handle.pool.pause(lane=1)
    await handle.pool.pause()

    elsewhere = await App(store).pool("orders", lanes=2).status()
    assert elsewhere.paused
    assert [lane.state for lane in elsewhere.lanes] == ["paused", "paused"]


async def test_w45_the_status_tells_what_waits_runs_and_is_done(app: App):
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.pool("orders", lanes=2, max_attempts=1)
    async def handle(name: str) -> None:
        if name == "bad":
            raise RuntimeError("bad")
        if name == "slow":
            started.set()
            await go_on.wait()

    here = handle.options(partition=a_key(1, 2))
    _, _, slow, _ = await here.enqueue_many([("good",), ("bad",), ("slow",), ("next",)])
    async with worker(app):
        await started.wait()
        status = await handle.pool.status()
        go_on.set()

    lane = status.lanes[1]
    assert (lane.state, lane.waiting, lane.running, lane.pending) == ("processing", 1, 1, 2)
    assert (lane.processed, lane.dead, lane.current, lane.retrying) == (1, 1, slow.seq, None)
    assert (lane.lane, lane.instance) == (1, "workerPool:orders:1")
    assert status.lanes[0].state == "idle"
    totals = (status.state, status.pending, status.waiting, status.running, status.processed, status.dead)
    assert totals == ("processing", 2, 1, 1, 1, 1)


async def test_w45_the_status_of_an_unused_pool_is_idle(handle: Handle):
    status = await handle.pool.status()

    assert (status.state, status.pending, status.processed, status.dead, len(status.lanes)) == ("idle", 0, 0, 0, 2)


async def test_w45_drain_cancels_what_waits_and_says_how_many(app: App, handle: Handle, ran: list[str]):
    answers = await handle.enqueue_many([(str(n),) for n in range(5)])
    heard: list[int] = []
    assert await handle.pool.drain(progress=heard.append) == 5
    await burst(app)

    assert (ran, heard) == ([], [5])
    assert await states(app, answers) == ["cancelled"] * 5
    assert await handle.pool.drain() == 0


async def test_one_lane_is_drained_and_the_others_keep_their_jobs(app: App, handle: Handle, ran: list[str]):
    here, there = handle.options(partition=a_key(0, 2)), handle.options(partition=a_key(1, 2))
    await here.enqueue_many([("a",), ("b",), ("c",)])
    await there.enqueue_many([("d",), ("e",)])

    assert await handle.pool.drain(lane=0) == 3
    await burst(app)
    assert ran == ["d", "e"]


async def test_a_drain_in_many_steps_counts_every_job(handle: Handle):
    await handle.enqueue_many([(str(n),) for n in range(2_500)])
    heard: list[int] = []

    assert await handle.pool.drain(lane=1, progress=heard.append) == 1_250
    assert await handle.pool.drain(progress=heard.append) == 1_250
    assert heard == [1_000, 1_250, 1_000, 1_250]


async def test_a_drain_is_told_as_empty_lanes_and_loses_no_dead_letter(app: App, handle: Handle):
    told = []

    @handle.pool.on_empty
    async def empty(lane: Emptied) -> None:
        told.append(("empty", lane.lane))

    @handle.pool.on_dead_letter
    async def mourn(job: DeadJob) -> None:
        told.append(("dead", job.args["name"]))

    here = handle.options(partition=a_key(0, 2))
    await here.enqueue("bad")
    await burst(app, tasks=[handle])  # a worker that does not take hooks
    await here.enqueue_many([("a",), ("b",)])
    assert await handle.pool.drain() == 2
    await burst(app)

    assert sorted(told) == [("dead", "bad"), ("empty", 0), ("empty", 0)]


@pytest.mark.parametrize("lane", [2, -1, True, "0"])
async def test_a_lane_that_does_not_exist_is_an_error(handle: Handle, lane):
    for act in (handle.pool.pause, handle.pool.resume, handle.pool.drain):
        with pytest.raises(InvalidInput, match=f"'orders' has no lane {lane!r}: its lanes are 0 to 1"):
            await act(lane)
