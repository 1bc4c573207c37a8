"""The dashboard over a store with 100,000 jobs of all states, and the pictures of the docs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace import App
from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.outcome import Failure
from millrace.domain.request import Claim
from millrace.store.sqlite import SqliteStore
from tests.spark.report.browser import Browser
from tests.web.browser import pictures
from tests.web.browser.page import Page
from tests.web.browser.served import served

WHERE = (
    "#/",
    "#/jobs",
    "#/jobs?status=dead",
    "#/jobs?status=ready&queue=q-3",
    "#/jobs/job-99999",
    "#/dead",
    "#/queues",
)
CHANGES = (
    Change.completed(b"{}"),
    Change.bury(Failure("Broken", "the first way"), "max_attempts"),
    Change.bury(Failure("Broken", "the other way"), "max_attempts"),
    Change.retry(Failure("Broken", "for now"), delay=3_600_000),
)


async def crowd(path: Path, many: int) -> None:
    """A fifth each has completed, died of one thing, of another, failed for now, and still waits."""
    async with App(SqliteStore(path, durability="relaxed")) as app:
        store = await app.connected()
        for start in range(0, many, 1_000):
            queue = f"q-{start // 1_000 % 10}"
            numbers = range(start, start + 1_000)
            specs = [Spec(f"job-{n}", "work", queue, b'{"n": 1}', token=str(n), max_attempts=9) for n in numbers]
            await store.enqueue(specs)
            for change in CHANGES:
                claimed = await store.claim(Claim((queue,), "w", 200))
                await store.settle([(job.lease, change) for job in claimed])


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_every_screen_is_drawn_over_a_hundred_thousand_jobs(browser: Browser, tmp_path: Path):
    asyncio.run(crowd(tmp_path / "jobs.db", 100_000))
    with served(f"sqlite:///{tmp_path}/jobs.db") as base:
        page = Page(browser, base)
        page.size(1280)
        for where in WHERE:
            page.open(where)
            assert page.complaints() == []
            assert page.count("main [data-row], main .panel") > 0
        page.open("#/jobs?status=dead")
        page.sees("40,000", within=".tabs")
        page.open("#/dead")
        page.sees("40,000 dead jobs of 2 causes")


def test_the_pictures_of_the_docs_can_be_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pictures, "PICTURES", pictures.PICTURES[-2:])
    pictures.make(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["dashboard-phone.png", "dashboard-workers.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000 for path in tmp_path.iterdir())
