"""Numbers in JSON: none is larger than JavaScript holds exactly, whatever the store counts with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millrace import App
from tests.web.stage import opened

EXACT = 2**53


def whole_numbers(value: Any) -> list[int]:
    match value:
        case bool():
            return []
        case int():
            return [value]
        case list():
            return [number for one in value for number in whole_numbers(one)]
        case dict():
            return [number for one in value.values() for number in whole_numbers(one)]
        case _:
            return []


async def test_no_answer_holds_a_number_that_javascript_rounds(tmp_path: Path):
    app = App(f"file://{tmp_path}/store?durability=relaxed")

    @app.task(name="pack", queue="line", max_attempts=1)
    async def pack() -> None:
        raise ValueError("no")

    @app.pool("orders", lanes=2)
    async def take(order: int) -> None: ...

    async with opened(app) as web:
        await app.prepared()
        made = await web.post("/api/jobs", {"task": "pack", "id": "a"}, 201)
        assert made["seq"].isdigit() and int(made["seq"]) > EXACT  # the store does count that far
        await app.worker(["line"], burst=True).run(handle_signals=False)
        for order in range(4):
            await take.enqueue(order=order)
        answers = {
            path: await web.get(path)
            for path in (
                "/api/jobs",
                "/api/jobs/a",
                "/api/jobs/a/history",
                "/api/jobs/a/why",
                "/api/queues",
                "/api/queues/orders",
                "/api/pools",
                "/api/dead",
                "/api/workers",
                "/api/events?limit=100",
            )
        }

    wrong = {path: number for path, answer in answers.items() for number in whole_numbers(answer) if number >= EXACT}
    assert wrong == {}
    assert answers["/api/jobs/a"]["seq"] == made["seq"]
