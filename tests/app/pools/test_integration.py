"""W-52: many jobs, many producers, many workers."""

import asyncio
import os
import subprocess
import sys

from millrace import App, Context
from millrace.domain.rules.lanes import lane_of
from millrace.store.protocol import Store
from tests.app.pools.scene import burst, spread, until, worker


async def test_w52_a_thousand_jobs_run_once_each(app: App):
    ran = []

    @app.pool("orders", lanes=8)
    async def handle(n: int) -> None:
        ran.append(n)

    await handle.enqueue_many([(n,) for n in range(1_000)])
    async with worker(app, slots=8), worker(app, slots=8):
        await until(lambda: len(ran) >= 1_000)

    assert sorted(ran) == list(range(1_000))
    status = await handle.pool.status()
    assert (status.processed, status.dead, status.pending) == (1_000, 0, 0)


async def test_w52_many_producers_at_once_lose_nothing_and_share_no_sequence(store: Store):
    def producer():
        app = App(store)

        @app.pool("orders", lanes=4)
        async def handle(n: int) -> None: ...

        return handle

    async def produce(handle, number):
        return [await handle.enqueue(number * 100 + n) for n in range(20)]

    handles = [producer() for _ in range(10)]
    each = await asyncio.gather(*(produce(handle, n) for n, handle in enumerate(handles)))
    answers = [answer for answers in each for answer in answers]

    assert len({answer.seq for answer in answers}) == 200
    assert spread(answers) == {0: 50, 1: 50, 2: 50, 3: 50}
    assert (await handles[0].pool.status()).waiting == 200


async def test_w52_order_within_a_partition_under_several_workers(app: App):
    ran: dict[str, list[int]] = {}

    @app.pool("orders", lanes=4, partition_by=lambda key, n: key, retry=[0], max_attempts=5)
    async def handle(ctx: Context, key: str, n: int) -> None:
        await asyncio.sleep(0)
        if ctx.attempt == 1 and n % 10 == 0:
            raise RuntimeError("once")
        ran.setdefault(key, []).append(n)

    await handle.enqueue_many([(f"k{n % 9}", n) for n in range(270)])
    async with worker(app), worker(app), worker(app):
        await until(lambda: sum(map(len, ran.values())) >= 270)

    assert ran == {f"k{k}": list(range(k, 270, 9)) for k in range(9)}


async def test_w52_jobs_without_a_key_are_spread_evenly(app: App):
    @app.pool("orders", lanes=7)
    async def handle(n: int) -> None: ...

    single = [await handle.enqueue(n) for n in range(10)]
    batches = [answer for size in (3, 1, 8, 6) for answer in await handle.enqueue_many([(n,) for n in range(size)])]

    assert set(spread(single + batches).values()) == {4}


async def test_w52_a_key_goes_to_the_same_lane_always(app: App):
    @app.pool("orders", lanes=16)
    async def handle(n: int) -> None: ...

    for n in range(3):
        answers = [await handle.options(partition=f"user-{key}").enqueue(n) for key in range(20)]
        assert [answer.lane for answer in answers] == [lane_of(f"user-{key}", 16) for key in range(20)]
    assert len(spread(answers)) > 8


def test_w52_a_key_goes_to_the_same_lane_in_every_process():
    """Whatever the seed of Python's own hash."""
    program = "from millrace.domain.rules.lanes import lane_of; print([lane_of(f'user-{n}', 16) for n in range(50)])"
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert printed == {f"{[lane_of(f'user-{n}', 16) for n in range(50)]}\n"}


async def test_a_chain_through_two_pools_ends_where_it_should(app: App):
    done = []

    @app.pool("second", lanes=2)
    async def second(n: int) -> None:
        done.append(n)

    @app.pool("first", lanes=2)
    async def first(ctx: Context, n: int) -> None:
        ctx.enqueue(second.options(partition=str(n % 2)), n)

    await first.enqueue_many([(n,) for n in range(20)])
    await burst(app)

    assert sorted(done) == list(range(20))
