"""Pages of lists: full where they can be, short where that would take long, and never with a gap between them."""

from __future__ import annotations

import pytest

from millrace.web import paging, patience
from millrace.web.patience import Patience
from tests.web.stage import Web


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
    monkeypatch.setattr(paging, "PATIENCE", 60)
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
    monkeypatch.setattr(paging, "PATIENCE", -1)
    jobs = [{"task": "pack", "id": f"job-{n}", **({"after": ["job-0"]} if n == 5 else {})} for n in range(6)]
    await web.post("/api/batch", {"jobs": jobs}, 201)

    answers = []
    cursor: dict[str, str] = {}
    while not answers or cursor:
        page = await web.get("/api/jobs", limit=2, after="job-0", oldest="true", **cursor)
        answers.append([one["id"] for one in page["jobs"]])
        cursor = {} if page["cursor"] is None else {"cursor": page["cursor"]}
    assert answers[:3] == [[], [], ["job-5"]] and not any(answers[3:])


def test_patience_ends_before_a_step_that_would_take_too_long(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr(patience.time, "monotonic", lambda: now)
    waiting = Patience(1.0)
    now += 0.25
    assert not waiting.is_over()
    now += 0.4
    assert waiting.is_over()  # another 0.4 would end at 1.05

    waiting = Patience(1.0)
    for _ in range(9):
        now += 0.1
        assert not waiting.is_over()
    now += 0.1
    assert waiting.is_over()
