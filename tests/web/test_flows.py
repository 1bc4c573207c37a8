"""Flows over HTTP: progress, cancel and replay, and the links between a job and its flow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from millrace.web.deadline import with_deadline
from tests.web.stage import Web

FLOW = "/api/flows/summer%2Fweek"


async def enqueue(web: Web, *numbers: int) -> None:
    """Enqueue a flow of one part for each number, which adds their results."""

    @web.app.task(name="part", max_attempts=1)
    async def part(number: int) -> int:
        if number == 13:
            raise ValueError("unlucky")
        return number

    @web.app.task(name="total")
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    await web.app.gather([part.spec(number) for number in numbers]).then(total).enqueue(id="summer/week")


async def test_a_flow_is_shown_with_its_progress_and_the_jobs_that_failed(web: Web):
    await enqueue(web, 1, 13)
    assert (await web.get(FLOW))["states"] == {"ready": 2, "blocked": 1}
    async with web.app.worker(), asyncio.timeout(60):
        while (await web.get(FLOW))["state"] == "running":
            await asyncio.sleep(0.01)

    flow = await web.get(FLOW)
    assert (flow["id"], flow["state"], flow["done"], flow["total"]) == ("summer/week", "failed", 1, 3)
    assert [(job["id"], job["error"]["message"]) for job in flow["failed"]] == [("summer/week/2", "unlucky")]
    job = await web.get(web.job("summer/week/2"))
    assert (job["flow"], job["enqueued_by"], job["continued_by"]) == ("summer/week", None, [])


async def test_a_flow_is_cancelled_and_replayed(web: Web):
    await enqueue(web, 1, 2)

    assert await web.post(f"{FLOW}/cancel") == {"id": "summer/week", "jobs": 3}
    assert (await web.get(FLOW))["state"] == "failed"
    assert await web.post(f"{FLOW}/replay") == {"id": "summer/week", "jobs": 3}
    assert (await web.get(FLOW))["state"] == "running"


async def test_a_change_of_a_large_flow_has_more_time(web: Web, monkeypatch: pytest.MonkeyPatch):
    await enqueue(web, 1, 2)
    granted: list[int] = []

    async def noted(writing: Awaitable[Any], jobs: int = 0) -> Any:
        granted.append(jobs)
        return await with_deadline(writing, jobs)

    monkeypatch.setattr("millrace.web.routes.flows.with_deadline", noted)
    await web.post(f"{FLOW}/cancel")
    await web.post(f"{FLOW}/replay")

    assert granted == [0, 3, 0, 3]


async def test_an_unknown_flow_is_not_found(web: Web):
    await web.get("/api/flows/nobody", 404)
