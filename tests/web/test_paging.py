"""Pages of lists: full where they can be, short where that would take long, and never with a gap between them."""

from __future__ import annotations

import time

import pytest

from millrace import App
from millrace.web import paging
from millrace.web.deadline import TimeBudget
from tests.web.stage import Web, opened


async def all_pages(web: Web, limit: int, **query: str) -> list[str]:
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await web.get("/api/jobs", limit=limit, **query, **cursor)
        assert len(page["jobs"]) <= limit
        seen += [one["id"] for one in page["jobs"]]
        if page["cursor"] is None:
            return seen
        assert len(page["jobs"]) == limit, "there was time for a full page"
        cursor = {"cursor": page["cursor"]}


@pytest.mark.parametrize("wide", [1, 4, 7, 1_000])
async def test_what_no_store_knows_is_found_page_by_page_too(web: Web, monkeypatch: pytest.MonkeyPatch, wide: int):
    """`after`: every third job runs after the first one."""
    monkeypatch.setattr(paging, "WIDE", wide)
    monkeypatch.setattr(paging, "BUDGET", 60)
    await web.enqueue(id="parent")
    jobs = [{"task": "pack", "id": f"job-{n:02}", **({} if n % 3 else {"after": ["parent"]})} for n in range(30)]
    await web.post("/api/batch", {"jobs": jobs}, 201)
    children = [f"job-{n:02}" for n in range(0, 30, 3)]

    for limit in (1, 3, 10, 50):
        assert await all_pages(web, limit, after="parent", oldest="true") == children
        assert await all_pages(web, limit, after="parent") == children[::-1]


async def test_a_search_that_takes_long_answers_with_what_it_has_and_a_cursor(
    web: Web, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(paging, "WIDE", 2)
    monkeypatch.setattr(paging, "BUDGET", -1)
    jobs = [{"task": "pack", "id": f"job-{n}", **({"after": ["job-0"]} if n == 5 else {})} for n in range(6)]
    await web.post("/api/batch", {"jobs": jobs}, 201)

    answers: list[list[str]] = []
    cursor: dict[str, str] = {}
    while not answers or cursor:
        page = await web.get("/api/jobs", limit=2, after="job-0", oldest="true", **cursor)
        answers.append([one["id"] for one in page["jobs"]])
        cursor = {} if page["cursor"] is None else {"cursor": page["cursor"]}
    assert answers[:3] == [[], [], ["job-5"]] and not any(answers[3:])


def test_patience_ends_before_a_step_that_would_take_too_long(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    waiting = TimeBudget(1.0)
    now += 0.25
    assert not waiting.is_over()
    now += 0.4
    assert waiting.is_over()  # another 0.4 would end at 1.05

    waiting = TimeBudget(1.0)
    for _ in range(9):
        now += 0.1
        assert not waiting.is_over()
    now += 0.1
    assert waiting.is_over()


async def test_jobs_are_listed_by_their_last_change():
    """O-27"""
    app = App("memory://")

    @app.task(name="pack")
    async def pack() -> None: ...

    async with opened(app) as web:
        for job in ("a", "b", "c"):
            await web.enqueue("pack", id=job)
        await web.post("/api/jobs/a/cancel")

        page = await web.get("/api/jobs", sort="changed", limit=2)
        rest = await web.get("/api/jobs", sort="changed", cursor=page["cursor"])
        await web.get("/api/jobs", 400, sort="changed", oldest="true")
        await web.get("/api/jobs", 400, sort="size")

    assert [job["id"] for job in page["jobs"] + rest["jobs"]] == ["a", "c", "b"]
