"""The number of lanes is stored with the pool and guarded (part 2: group and lane)."""

import logging

import pytest

from millrace import App, InvalidInput, LanesInUse
from millrace.testing import FaultyStore
from tests.runtime.pool.scene import burst


def define(store, lanes, ran=None, **options):
    app = App(store)

    @app.pool("orders", lanes=lanes, **options)
    async def handle(n: int) -> None:
        if ran is not None:
            ran.append(n)

    return app, handle


async def test_another_number_is_refused_while_jobs_live(store):
    _, old = define(store, 2)
    await old.enqueue_many([(1,), (2,), (3,)])
    _, new = define(store, 4)

    with pytest.raises(LanesInUse, match="has 2 lanes and 3 live jobs. Drain it") as refusal:
        await new.enqueue(4)

    assert (refusal.value.queue, refusal.value.lanes, refusal.value.wanted, refusal.value.live) == ("orders", 2, 4, 3)
    assert isinstance(refusal.value, InvalidInput)
    assert "The code says lanes=4. Keep lanes=2 until the pool is empty" in refusal.value.__notes__[0]
    assert len(await store.lanes("orders")) == 2


async def test_every_way_to_enqueue_is_guarded(store):
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


async def test_a_worker_with_another_number_still_empties_the_pool(store, caplog):
    """Else new code could never get rid of the old jobs. The lanes change with the next use after that."""
    _, old = define(store, 2)
    await old.enqueue_many([(1,), (2,), (3,)])
    ran = []
    app, new = define(store, 4, ran)
    with caplog.at_level(logging.WARNING, logger="millrace.pool"):
        await burst(app)

    assert sorted(ran) == [1, 2, 3]
    assert "keeps its 2 lanes until its 3 live jobs have ended; the code says 4" in caplog.text
    assert {(await new.enqueue(n)).lane for n in range(4)} == {0, 1, 2, 3}


async def test_a_drained_pool_takes_another_number(store):
    _, old = define(store, 2)
    await old.enqueue_many([(1,), (2,)])
    _, new = define(store, 3)
    assert len((await new.pool.status()).lanes) == 2  # as it is, and can be drained
    assert await new.pool.drain() == 2

    await new.enqueue(1)
    assert len((await new.pool.status()).lanes) == 3


async def test_fewer_lanes_forget_the_pause_of_those_that_are_gone(store):
    _, old = define(store, 4)
    await old.pool.pause(lane=0)
    await old.pool.pause(lane=3)
    _, new = define(store, 2)
    await new.enqueue(1)

    assert [lane.state for lane in (await new.pool.status()).lanes] == ["paused", "idle"]


async def test_a_plain_queue_with_jobs_does_not_become_a_pool(store):
    app = App(store)

    @app.task(queue="orders")
    async def plain() -> None: ...

    await plain.enqueue()
    _, handle = define(store, 2)

    with pytest.raises(LanesInUse, match="has no lanes and 1 live jobs"):
        await handle.enqueue(1)


async def test_what_the_code_says_of_the_depth_is_written_again(store):
    _, old = define(store, 2, max_depth=5)
    await old.enqueue(1)
    _, new = define(store, 2, max_depth=7)
    await new.enqueue(1)

    assert (await new.pool.queue.settings()).max_depth == 7


async def test_the_settings_are_written_once_per_process(store):
    counting = FaultyStore(store)
    _, handle = define(counting, 2)
    for n in range(5):
        await handle.enqueue(n)

    assert counting.calls["control"] == 2  # what is there, and what is to be


async def test_an_app_that_is_given_another_store_writes_its_pools_there_too(store):
    app, handle = define("memory://", 2)
    await handle.enqueue(1)
    app.use(store)
    await handle.enqueue(1)

    assert len(await store.lanes("orders")) == 2
