"""Flows on every store: concurrent enqueues of one id store the jobs of one flow."""

from __future__ import annotations

import asyncio

from millrace import App, Flow, FlowHandle, InvalidInput
from millrace.store.protocol import Store
from tests.narrowing import checked_cast

MANY = 8


async def waiting(store: Store) -> int:
    return sum(counts.waiting for counts in await store.count())


async def test_concurrent_enqueues_of_a_named_flow_store_it_once(store: Store):
    app = App(store)

    @app.task
    async def part(n: int) -> int:
        return n

    @app.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    flow = app.gather([part.spec(n) for n in range(3)]).then(total)

    handles = await asyncio.gather(*(flow.enqueue(id="f") for _ in range(MANY)))

    assert sorted(handle.is_duplicate for handle in handles) == [False] + [True] * (MANY - 1)
    assert await waiting(store) == 4


async def test_of_concurrent_flows_with_one_id_only_the_jobs_of_one_are_left(store: Store):
    app = App(store)

    @app.task
    async def part(n: int) -> int:
        return n

    @app.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    def a_flow(parts: int) -> Flow[int]:
        return app.gather([part.spec(n) for n in range(parts)]).then(total)

    answers = await asyncio.gather(
        *(a_flow(2 + number % 2).enqueue(id="f") for number in range(MANY)), return_exceptions=True
    )

    handles = [checked_cast(FlowHandle, answer) for answer in answers if not isinstance(answer, BaseException)]
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    assert len(handles) == len(errors) == MANY // 2, answers  # of one number of parts
    assert [handle.is_duplicate for handle in handles].count(False) == 1
    assert {type(error) for error in errors} == {InvalidInput}
    assert all(str(error).endswith("Enqueue a changed flow with another id") for error in errors)
    status = await handles[0].status()
    assert await waiting(store) == status.total
