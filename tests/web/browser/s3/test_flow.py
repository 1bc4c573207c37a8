"""How fast the jobs of a bucket went, told by the keys of its index."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from millrace.store.object.keys import Layout
from millrace.testing.builders import a_spec
from millrace.web import responses
from tests.web.browser.s3.stage import Page, Site, Visit, completed, died

STEP = 10_000


def told(page: Page) -> responses.Throughput:
    return msgspec.convert(page.get("/api/throughput"), responses.Throughput, strict=True)


async def test_ended_jobs_are_counted_by_the_step_in_which_they_ended(site: Site, opened: Any):
    async with site.store() as store:
        done = await completed(store, a_spec(id="done", queue="mail"))
        await died(store, a_spec(id="dead", queue="mail"))
        await store.enqueue([a_spec(id="waiting", queue="mail")])
        middle = (await store.now() - 450_000) // STEP * STEP  # the end of a step, some minutes ago
        ends = [middle, middle - STEP + 1, middle + 1, middle + STEP, middle - 900_000]  # the last one is too long ago
        old = [msgspec.structs.replace(done, finished_at=at, seq=n + 1) for n, at in enumerate(ends)]
        layout = Layout()
        await store.blobs.put_many({layout.state_key(job, 1, f"abc12{n}"): b"" for n, job in enumerate(old)})

        flow = told(opened())

        counted = {datetime.fromisoformat(one.at).timestamp() * 1000: one.completed for one in flow.points}
        assert (counted[middle], counted[middle + STEP]) == (2, 2)
        everything = [*flow.points, flow.unfinished]
        assert len(flow.points) == 90 and flow.unfinished.at == flow.now
        assert sum(point.completed for point in everything) == 5  # these four, and the one of just now
        assert sum(point.died for point in everything) == 1


async def test_the_overview_of_a_bucket_has_its_chart_at_once(site: Site, browser: Any):
    async with site.store() as store:
        for number in range(3):
            await completed(store, a_spec(id=f"done-{number}", queue="mail"))
        visit = Visit(browser, site, site.upload())
        visit.sign_in()
        visit.until("3 in the last minute", "Throughput")
        assert browser.ask("document.querySelectorAll('.chart .step').length") == 90
