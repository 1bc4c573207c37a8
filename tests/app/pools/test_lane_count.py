"""The number of lanes is stored with the pool and guarded (part 2: group and lane)."""

import logging

import pytest

from millrace import App, InvalidInput, LanesInUse
from millrace.domain.rules.lanes import lane_of
from millrace.store.protocol import Store
from millrace.testing import FaultyStore
from millrace.testing.clock import VirtualClock
from tests.app.pools.scene import burst


def define(store, lanes, ran=None, **options):
    app = App(store)

    @app.pool("orders", lanes=lanes, **options)
    async def handle(n: int) -> None:
        if ran is not None:
            ran.append(n)

    return app, handle


async def test_another_number_is_refused_while_jobs_live(store: Store):
    _, old = define(store, 2)
    await old.enqueue_many([(1,), (2,), (3,)])
    _, new = define(store, 4)

    with pytest.raises(LanesInUse, match="has 2 lanes and 3 live jobs. Drain the queue") as refusal:
        await new.enqueue(4)

    assert (refusal.value.queue, refusal.value.lanes, refusal.value.wanted, refusal.value.live) == ("orders", 2, 4, 3)
    assert isinstance(refusal.value, InvalidInput)
    assert "The code has lanes=4. Keep lanes=2 until the pool is empty" in refusal.value.__notes__[0]
    assert len(await store.lanes("orders")) == 2


async def test_every_way_to_enqueue_is_guarded(store: Store):
    _, old = define(store, 2)
    await old.enqueue(1)
    app, new = define(store, 4)

    with pytest.raises(LanesInUse):
        await new.enqueue_many([(1,)])
    with pytest.raises(LanesInUse):
        await new.call(1)
    with pytest.raises(LanesInUse):
        await app.enqueue([new.spec(1)])
    assert (await old.pool.status()).pending == 1


async def test_a_worker_with_another_number_still_empties_the_pool(store: Store, caplog):
    """Else new code could never get rid of the old jobs. The lanes change with the next use after that."""
    _, old = define(store, 2)
    await old.enqueue_many([(1,), (2,), (3,)])
    ran: list[int] = []
    app, new = define(store, 4, ran)
    with caplog.at_level(logging.WARNING, logger="millrace.pool"):
        await burst(app)

    assert sorted(ran) == [1, 2, 3]
    assert "keeps its 2 lanes until its 3 live jobs have finished; the code has 4" in caplog.text
    assert {(await new.enqueue(n)).lane for n in range(4)} == {0, 1, 2, 3}


async def test_a_drained_pool_takes_another_number(store: Store):
    _, old = define(store, 2)
    await old.enqueue_many([(1,), (2,)])
    _, new = define(store, 3)
    assert len((await new.pool.status()).lanes) == 2  # as it is, and can be drained
    assert await new.pool.drain() == 2

    await new.enqueue(1)
    assert len((await new.pool.status()).lanes) == 3


async def test_fewer_lanes_forget_the_pause_of_those_that_are_gone(store: Store):
    _, old = define(store, 4)
    await old.pool.pause(lane=0)
    await old.pool.pause(lane=3)
    _, new = define(store, 2)
    await new.enqueue(1)

    assert [lane.state for lane in (await new.pool.status()).lanes] == ["paused", "idle"]


async def test_a_plain_queue_with_jobs_does_not_become_a_pool(store: Store):
    app = App(store)

    @app.task(queue="orders")
    async def plain() -> None: ...

    await plain.enqueue()
    _, handle = define(store, 2)

    with pytest.raises(LanesInUse, match="has no lanes and 1 live jobs"):
        await handle.enqueue(1)


async def test_what_the_code_says_of_the_depth_is_written_again(store: Store):
    _, old = define(store, 2, max_depth=5)
    await old.enqueue(1)
    _, new = define(store, 2, max_depth=7)
    await new.enqueue(1)

    assert (await new.pool.queue.settings()).max_depth == 7


async def test_the_settings_are_written_once_per_process(store: Store):
    counting = FaultyStore(store)
    _, handle = define(counting, 2)
    for n in range(5):
        await handle.enqueue(n)

    assert counting.calls["control"] == 2  # what is there, and what is to be


async def test_an_app_that_is_given_another_store_writes_its_pools_there_too(store: Store):
    app, handle = define("memory://", 2)
    await handle.enqueue(1)
    app.use(store)
    await handle.enqueue(1)

    assert len(await store.lanes("orders")) == 2


async def test_a_scheduler_alone_writes_the_pool_down_before_its_first_tick(store: Store, clock: VirtualClock):
    app, handle = define(store, 4)
    app.cron(handle.options(partition="ada"), every="1m", kwargs={"n": 1})
    scheduler = app.scheduler()
    await scheduler.look()
    clock.advance(60_000)
    await scheduler.look()

    [job] = [job async for job in app.jobs.find(queue="orders")]
    assert (job.lane, len(await store.lanes("orders"))) == (lane_of("ada", 4), 4)


async def test_the_warning_that_a_pool_keeps_its_lanes_comes_once(store: Store, caplog):
    caplog.set_level(logging.WARNING, "millrace.pool")
    _, old = define(store, 2)
    await old.enqueue(1)
    _, new = define(store, 4)
    for _ in range(3):
        await new.pool.status()

    assert [record.message for record in caplog.records if "keeps its 2 lanes" in record.message] == [
        "pool orders keeps its 2 lanes until its 1 live jobs have finished; the code has 4"
    ]


async def test_a_pool_whose_queue_has_no_lanes_yet_says_so(store: Store):
    app = App(store)

    @app.task(queue="orders")
    async def earlier() -> None: ...

    await earlier.enqueue()
    _, handle = define(store, 2)
    with pytest.raises(InvalidInput, match="has no lane 0: it has none until its live jobs have finished"):
        await handle.pool.pause(lane=0)
