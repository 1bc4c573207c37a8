"""Which jobs of a bucket are meant: by when they ended, by shard, and further than a first look goes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from millrace.domain.job import State
from millrace.store.object.keys import Layout
from millrace.testing.builders import a_spec
from tests.spark.report.browser import Browser
from tests.web.browser.s3.stage import Page, Site, Visit, assert_sound, completed, died, watching


def iso(at: int, later: int = 0) -> str:
    return (datetime.fromtimestamp(at / 1000, UTC) + timedelta(milliseconds=later)).isoformat().replace("+00:00", "Z")


def found(page: Page, **query: Any) -> list[str]:
    return sorted(job["id"] for job in page.get("/api/jobs", **query)["jobs"])


async def test_jobs_are_found_by_when_they_ended(site: Site, opened: Any):
    async with site.store() as store:
        first = await died(store, a_spec(id="first", queue="mail"))
        second = await died(store, a_spec(id="second", queue="mail"))
        await completed(store, a_spec(id="done", queue="mail"))
        await store.enqueue([a_spec(id="waiting", queue="mail")])
        page = opened()
        assert first.finished_at is not None and second.finished_at is not None

        assert found(page, finished_from="1h") == ["done", "first", "second"]
        assert found(page, finished_from="1h", status="dead") == ["first", "second"]
        assert found(page, finished_from=iso(second.finished_at), status="dead") == ["second"]
        assert found(page, finished_to=iso(first.finished_at)) == []
        assert found(page, finished_to=iso(first.finished_at, 1)) == ["first"]
        assert [one["count"] for one in page.get("/api/dead", finished_from=iso(second.finished_at))["causes"]] == [1]
        counted = page.post("/api/bulk", {"action": "replay", "filter": {"finished_from": iso(second.finished_at)}})
        assert counted["sample"] == ["second"]


async def test_jobs_are_found_by_tag(site: Site, opened: Any):
    async with site.store() as store:
        await store.enqueue(
            [a_spec(id="one", tags=("eu", "import")), a_spec(id="two", tags=("us",)), a_spec(id="three")]
        )
        page = opened()
        assert found(page, tag="eu") == ["one"]
        assert found(page, tag="e") == []
        tags = {job["id"]: job["tags"] for job in page.get("/api/jobs")["jobs"]}
        assert tags == {"one": ["eu", "import"], "two": ["us"], "three": []}


async def test_what_ended_at_another_time_is_not_read(site: Site, opened: Any):
    """The index tells when a job ended, so a question about the last hour costs what the last hour holds."""
    async with site.store() as store:
        for number in range(12):
            await died(store, a_spec(id=f"job-{number}", queue="mail"))
        page = opened()
        page.get("/api/jobs", finished_to="1h")
        before = page.run("return driver.requests.GET")
        page.get("/api/jobs", finished_to="1h", status="dead")
        nothing = page.run("return driver.requests.GET") - before
        page.get("/api/jobs", finished_from="1h", status="dead")
        assert page.run("return driver.requests.GET") - before - nothing >= 12 > nothing


async def test_a_look_that_is_bounded_goes_further_when_it_is_asked_to(site: Site, opened: Any):
    async with site.store() as store:
        await completed(store, a_spec(id="new", queue="mail"))
        [pattern] = await store.get(["new"])
        assert pattern is not None
        old = [msgspec.structs.replace(pattern, finished_at=60_000 * n + 1, seq=n + 1) for n in range(30)]
        layout = Layout()
        await store.blobs.put_many({layout.state_key(job, 1, "abc123"): b"" for job in old})
        page = opened()

        seen = page.run(
            f"const {{Store}} = {page.module('store.js')}; const {{Index}} = {page.module('index_keys.js')};"
            f"const store = await Store.open({json.dumps(site.config)}, {json.dumps(site.keys)});"
            "store.index = new Index(store.bucket, store.layout, {pages: 1, size: 8, enough: 1});"
            "const look = async () => { const {entries, complete} = await store.index.entries({state: 'completed'});"
            " return [entries.length, complete] };"
            "const first = await look(); store.index.widen(); return [first, await look()]"
        )

        assert seen[0][1] is False and seen[0][0] < 31
        assert seen[1] == [31, True]
        assert page.run("return typeof driver.further") == "function"


LARGE = b'{"id":9007199254740993,"token":12345678901234567890,"down":{"list":[-98765432109876543210]}}'


async def test_integers_of_any_size_are_exact_and_hidden_ones_stay_hidden(site: Site, opened: Any):
    async with site.store() as store:
        await died(store, a_spec(id="large", payload=LARGE), "token 12345678901234567890 was refused")
        page = opened()

        shown = json.loads(page.run("return JSON.stringify(await driver.request('GET', '/api/jobs/large'))"))

        assert shown["payload"]["id"] == 9007199254740993
        assert shown["payload"]["down"] == {"list": [-98765432109876543210]}
        assert shown["payload"]["token"] == "[redacted]"
        assert shown["error"]["message"] == "token [redacted] was refused"


@pytest.fixture
def visit(browser: Browser, site: Site) -> Visit:
    return Visit(browser, site, site.upload())


async def test_a_shard_is_a_filter_like_any_other(site: Site, visit: Visit, browser: Browser):
    """What is done to all that match is done in that shard only."""
    async with site.store() as store:
        ids = [f"job-{number}" for number in range(12)]
        for job_id in ids:
            await died(store, a_spec(id=job_id, queue="mail", payload=LARGE))
        shards = {job_id: store.engine.layout.job(job_id).split("/")[1] for job_id in ids}
        here = shards["job-0"]
        mine = sorted(job_id for job_id in ids if shards[job_id] == here)
        empty = next(f"{n:x}" for n in range(16) if f"{n:x}" not in shards.values())
        assert 0 < len(mine) < len(ids)
        with watching(browser) as complaints:
            visit.sign_in()
            visit.until("12 jobs died in the last hour")  # what needs somebody is told without a server too
            visit.go(f"jobs?shard={empty}")
            visit.until("No job matches", "Only one shard was examined", "Clear all filters")
            visit.go(f"jobs?shard={here}")
            many = f"{len(mine)} dead job{'' if len(mine) == 1 else 's'} that match{'es' if len(mine) == 1 else ''}"
            visit.until(f"Archive {many.replace('dead', 'ended')} …")
            visit.press(f"Replay {many} …")
            label = f"{len(mine)} job{'' if len(mine) == 1 else 's'}"
            visit.until(f"Replay {label}?", "No worker is active", *mine[:5])
            visit.press(f"Replay {label}")
            visit.until(f"Replayed {label}")
            visit.go("jobs/job-0")
            visit.until("9007199254740993")
        assert complaints == []
        states = [job.state if job else None for job in await store.get(ids)]
        assert states == [State.WAITING if shards[job_id] == here else State.DEAD for job_id in ids]
    await assert_sound(site)


async def test_ended_since_is_chosen_in_the_list(site: Site, visit: Visit, browser: Browser):
    async with site.store() as store:
        await died(store, a_spec(id="just-now", queue="mail"))
        await store.enqueue([a_spec(id="waiting", queue="mail")])
        visit.sign_in()
        visit.go("jobs")
        visit.until("just-now", "waiting")
        choose = (
            "(() => {{ const one = document.querySelector('[data-since]'); one.value = {};"
            " one.dispatchEvent(new Event('change', {{bubbles: true}})); return location.hash }})()"
        )
        assert browser.ask(choose.format("'midnight'")) == "#/jobs?finished_from=midnight"
        visit.until_gone("due now")
        browser.ask(choose.format("'other'"))
        visit.until("Date and time, in your time zone")
        visit.fill_in(at="2199-01-31T14:30")
        visit.until("No job matches", "since 2199-01-31 14:30:00")
        browser.ask(choose.format("'1h'"))
        visit.until("just-now")
        assert browser.ask("[...document.querySelectorAll('.jobs tbody tr')].length") == 1
