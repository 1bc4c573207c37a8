"""A flow of 1,000 parts over three virtual days: every result is handed on, although retention is a day."""

from __future__ import annotations

from datetime import timedelta

from millrace import App, Context
from millrace.testing import on_memory

PARTS = 1_000
SPAN = timedelta(days=3)

app = App("memory://")


@app.task
async def measure(number: int) -> int:
    return number * number


@app.task
async def measure_twice(ctx: Context, number: int) -> int:
    if ctx.attempt == 1:
        raise ConnectionError("try again")
    return number * number


@app.task
async def total(squares: list[int]) -> tuple[int, int]:
    return len(squares), sum(squares)


async def test_a_flow_of_a_thousand_parts_over_three_days_hands_every_result_on():
    with on_memory(app) as mill:
        parts = [
            (measure_twice if number % 10 == 0 else measure).options(delay=SPAN * number / PARTS).spec(number)
            for number in range(PARTS)
        ]
        flow = await app.gather(parts).then(total).enqueue(id="survey")
        await mill.advance("1d12h", failures="dead", slots=10)
        halfway = await flow.status()
        await mill.advance("1d12h", failures="dead", slots=10)

        assert (halfway.total, halfway.state) == (PARTS + 1, "running")
        assert 490 < halfway.done < 510
        assert halfway.states.get("removed") is None, "a part that a child needs is not removed after a day"
        assert await flow.result() == (PARTS, sum(number * number for number in range(PARTS)))
        assert repr(await app.flows.handle("survey").status()) == "<FlowStatus 'survey': 1001 of 1001 done, completed>"


async def test_parts_of_a_finished_flow_are_removed_by_retention_and_count_as_done():
    with on_memory(app) as mill:
        flow = await app.gather([measure.spec(number) for number in range(3)]).then(total).enqueue()
        await mill.drain()
        result = await flow.result()
        parts = [job.id async for job in flow.jobs()][:-1]
        await app.jobs.delete(parts)
        status = await flow.status()

        assert result == (3, 5)
        assert (status.total, status.done, status.states) == (4, 4, {"completed": 1, "removed": 3})
