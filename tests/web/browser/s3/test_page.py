"""The dashboard out of the bucket itself: what a person sees and does there, with no server but the bucket's."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.event import Kind
from millrace.domain.job import State
from millrace.testing.builders import a_spec
from tests.spark.report.browser import Browser
from tests.web.browser.s3.stage import Page, Site, Visit, assert_sound, completed, died, watching

STATIC = Path(__file__).resolve().parents[4] / "src/millrace/web/static"


@pytest.fixture
def visit(browser: Browser, site: Site) -> Visit:
    return Visit(browser, site, site.upload())


async def test_look_compare_replay_and_archive_with_no_server(site: Site, visit: Visit, browser: Browser):
    """O-27, O-28: the page, its modules and every answer come from the bucket, and nothing from anywhere else."""
    async with site.store() as store:
        await died(
            store, a_spec(id="first-job", queue="mail", payload=b'{"to":"<script>alert(1)</script>"}'), "host 1 is away"
        )
        await died(store, a_spec(id="second-job", queue="mail"), "host 2 is away")
        await completed(store, a_spec(id="fine", queue="mail"))
        with watching(browser) as complaints:
            visit.sign_in()
            visit.until("dead", "2")

            visit.go("jobs?status=dead")
            visit.until("first-job", "second-job", "host 1 is away")
            assert "fine" not in visit.text
            shards = [f"{n:x}" for n in range(16)]
            choices = browser.ask(
                "[...document.querySelectorAll('select')].map((one) => [...one.options].map((o) => o.value))"
            )
            assert ["", *shards] in choices
            there = store.engine.layout.job("first-job").split("/")[1]
            elsewhere = next(
                shard for shard in shards if shard not in (there, store.engine.layout.job("second-job").split("/")[1])
            )
            visit.go(f"jobs?shard={there}")
            visit.until("first-job")
            visit.go(f"jobs?shard={elsewhere}")
            visit.until_gone("first-job")

            visit.go("jobs/first-job")
            visit.until("<script>alert(1)</script>", "host 1 is away", "Replay")
            visit.press("Compare events")
            visit.until("Changed from")
            browser.ask("document.querySelector('input[type=radio][name=from]').click()")
            visit.until("Changed from event 1 (enqueued)", "started")
            visit.press("Replay …")
            visit.until("with 0 failures", "No worker is active")
            visit.press("Replay it")
            visit.until("ready")
            [job] = await store.get(["first-job"])
            assert job is not None and (job.state, job.replays) == (State.WAITING, 1)

            visit.go("jobs/second-job")
            visit.until("host 2 is away", "Archive")
            visit.press("Archive")
            visit.until("Unarchive")
            [job] = await store.get(["second-job"])
            assert job is not None and job.archived
        assert complaints == []
        assert (
            browser.ask("[localStorage, sessionStorage].map(s => JSON.stringify(s)).join().includes('test')") is False
        )
        asked = {
            event["params"]["request"]["url"].split("/ui")[0].split("/", 3)[2]
            for event in browser.events
            if event["method"] == "Network.requestWillBeSent"
        }
        assert asked == {site.address.endpoint.split("/")[2]}  # type: ignore[union-attr]
        assert [event.kind for event in await store.history("second-job")][-1] is Kind.ARCHIVED
    await assert_sound(site)


async def test_every_screen_opens_and_complains_of_nothing(site: Site, visit: Visit, browser: Browser):
    async with site.store() as store:
        await died(store, a_spec(id="one", queue="mail"))
        await store.control("queue", "pool", {"lanes": 2})
        await store.enqueue([a_spec(id="laned", queue="pool")])
        with watching(browser) as complaints:
            visit.sign_in()
            for screen, words in {
                "overview": "Overview",
                "jobs": "laned",
                "jobs/laned": "pool",
                "dead": "no route to host",
                "queues": "pool",
                "queues/pool": "pool",
                "pools": "pool",
                "workers": "orkers",
                "schedules": "chedules",
                "health": "The store responds",
            }.items():
                visit.go(screen)
                visit.until(words)
                assert "alert" not in visit.roles, visit.text
        assert complaints == []


async def test_wrong_answers_are_told_and_asked_again(site: Site, visit: Visit, browser: Browser):
    async with site.store():
        browser.do("Page.navigate", url=visit.url)
        visit.until("Open s3://")
        browser.ask(
            "globalThis.plain = fetch; globalThis.fetch = () => Promise.resolve(new Response("
            "'<Error><Code>InvalidAccessKeyId</Code></Error>', {status: 403})); 1"
        )
        visit.fill_in(accessKey="nobody", secretKey="x")
        visit.until("The server does not know this access key")
        browser.ask("globalThis.fetch = plain; 1")
        server = site.bucket.server
        visit.fill_in(accessKey=server.access_key, secretKey=server.secret_key)
        visit.until("Overview", "without a server")


# ── errors, in words ──────────────────────────────────────────────────────────────────────────

ANSWERS = {
    "InvalidAccessKeyId": (403, "does not know this access key"),
    "SignatureDoesNotMatch": (403, "secret key or the region"),
    "ExpiredToken": (400, "session token has expired"),
    "AccessDenied": (403, "Access was denied"),
    "NoSuchBucket": (404, "millrace init"),
    "RequestTimeTooSkewed": (403, "clock is too far"),
}


def connecting(page: Page, site: Site, **changes: Any) -> str:
    """What a page is told that tries to open this."""
    config = {**site.config, **changes}
    told: str = page.run(
        f"const {{connect}} = {page.module('driver.js')};"
        f"try {{ await connect({json.dumps(config)}, {json.dumps(site.keys)}); return 'opened' }}"
        " catch (error) { return error.detail ?? String(error) }"
    )
    return told


async def test_what_goes_wrong_is_said_in_words(site: Site, opened: Any):
    async with site.store():
        page = opened()
    assert connecting(page, site) == "opened"
    assert "There is no store at" in connecting(page, site, prefix="nowhere/")
    if site.bucket.server.ours:
        assert "The bucket does not exist" in connecting(page, site, bucket="there-is-none")
    nobody = connecting(page, site, endpoint="http://127.0.0.1:9")
    assert "could not be reached" in nobody and "CORS" in nobody and "millrace init --origin http" in nobody
    for code, (status, words) in ANSWERS.items():
        page.run(
            "globalThis.plain ??= fetch; globalThis.fetch = () => Promise.resolve(new Response("
            f"'<Error><Code>{code}</Code><Message>m</Message></Error>', {{status: {status}}}))"
        )
        assert words in connecting(page, site), code


async def test_a_machine_whose_clock_is_off_signs_by_the_servers(site: Site, opened: Any):
    """A refusal tells the server's time: with that the request is signed anew, and goes through."""
    async with site.store():
        page = opened()
    off = 3_600_000
    page.run(
        f"const real = Date.now; Date.now = () => real() - {off}; const plain = fetch; globalThis.signed = [];"
        "globalThis.fetch = (url, options) => { const at = options.headers['x-amz-date']; signed.push(at);"
        "  const sent = Date.parse(at.replace(/(....)(..)(..T..)(..)(..)/, '$1-$2-$3:$4:$5'));"
        "  if (Math.abs(sent - real()) < 900000) return plain(url, options);"
        "  const told = {status: 403, headers: {date: new Date(real()).toUTCString()}};"
        "  return Promise.resolve(new Response('<Error><Code>RequestTimeTooSkewed</Code></Error>', told)) }"
    )
    assert connecting(page, site) == "opened"
    page.connect(site)
    health = page.get("/health")
    assert -3_602 < health["clock_off"] < -3_597 and any("clock" in note for note in health["notes"])
    page.run("location.reload()")


async def test_keys_that_may_only_look_change_nothing(site: Site, opened: Any):
    async with site.store() as store:
        await died(store, a_spec(id="a"))
        page = opened()
        page.run(
            "const plain = fetch; globalThis.fetch = (url, options) =>"
            " options.method === 'GET' ? plain(url, options) : Promise.resolve("
            "new Response('<Error><Code>AccessDenied</Code></Error>', {status: 403}))"
        )

        refused = page.post("/api/jobs/a/replay")["refused"]

        assert refused["status"] == 403 and "also to put them" in refused["detail"]
        [job] = await store.get(["a"])
        assert job is not None and job.state is State.DEAD
    await assert_sound(site)


async def test_a_bucket_with_a_host_name_of_its_own_is_opened_there(site: Site, browser: Browser):
    """Virtual-host style, as AWS has it: browsers take every name below localhost for this machine."""
    if not site.bucket.server.ours:
        assert site.bucket.server.given_bucket  # names below localhost are not known there
        return
    async with site.store() as store:
        await died(store, a_spec(id="a"), "host 1 is away")
        site.upload()
        host = f"{site.config['bucket']}.s3.localhost:{site.config['endpoint'].rsplit(':', 1)[1]}"
        visit = Visit(browser, site, f"http://{host}/{site.config['prefix']}ui/index.html")
        with watching(browser) as complaints:
            visit.sign_in()
            visit.go("jobs/a")
            visit.until("host 1 is away", "Replay")
            visit.press("Replay …")
            visit.until("with 0 failures")
            visit.press("Replay it")
            visit.until("ready")
        assert complaints == []
        asked = [
            one["params"]["request"]["url"] for one in browser.events if one["method"] == "Network.requestWillBeSent"
        ]
        assert asked and all(url.startswith(f"http://{host}/") for url in asked)
    await assert_sound(site)


async def test_a_bucket_without_versions_is_told(site: Site, opened: Any):
    async with site.store():
        page = opened()
    assert page.get("/health")["versioning"] == ("Enabled" if site.bucket.findings.versioned else "")
    page.run(
        "const plain = fetch; globalThis.fetch = (url, options) => url.includes('versioning') ? "
        "Promise.resolve(new Response('<VersioningConfiguration/>')) : plain(url, options)"
    )
    assert "keeps no versions" in page.get("/health")["notes"][0]


@contextmanager
def elsewhere() -> Iterator[str]:
    """The same files on another origin."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(STATIC))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/drivers/"
        server.shutdown()


HIDING = """
    globalThis.plain = fetch;
    globalThis.fetch = async (url, options) => {
      const reply = await plain(url, options);
      const headers = new Headers(reply.headers);
      for (const name of HIDDEN) headers.delete(name);
      return new Response(reply.status === 204 ? null : await reply.arrayBuffer(), { status: reply.status, headers });
    }
"""


async def test_a_page_of_another_origin_must_be_let_in_and_see_tags(site: Site, browser: Browser):
    """BO-10: without the ETag it could only overwrite, and without the Date it does not know what time it is.

    MiniStack lets every page see everything; a bucket shows what its CORS rule names, and `init --origin` makes one.
    """
    async with site.store() as store:
        await died(store, a_spec(id="a"))
        with elsewhere() as url:
            browser.events.clear()
            browser.do("Page.navigate", url=url + "problem.js")
            browser.until("Page.loadEventFired")
            page = Page(browser, url + "s3")
            for hidden in (["etag"], ["etag", "date"]):
                page.run(HIDING.replace("HIDDEN", json.dumps(hidden)))
                page.connect(site)
                assert [job["id"] for job in page.get("/api/jobs")["jobs"]] == ["a"]
                assert page.get("/api/jobs/a")["state"] == "dead"
                told = page.post("/api/jobs/a/replay")["refused"]["detail"]
                assert "millrace init --origin http://127.0.0.1:" in told
                [job] = await store.get(["a"])
                assert job is not None and job.state is State.DEAD
                page.run("globalThis.fetch = plain")
            page.connect(site)
            assert page.post("/api/jobs/a/replay")["done"]
    await assert_sound(site)


@pytest.mark.parametrize(
    ("page_url", "wanted"),
    [
        ("https://s3.example.com/jobs/team/ui/", {"endpoint": "https://s3.example.com", "addressing": "path"}),
        (
            "https://jobs.s3.eu-west-3.amazonaws.com/team/ui/",
            {"endpoint": "https://s3.eu-west-3.amazonaws.com", "addressing": "virtual"},
        ),
        ("http://jobs.s3-website-us-east-1.amazonaws.com/team/ui/", {}),
        ("https://jobs.example.com/team/ui/index", {}),
        ("http://127.0.0.1:8000/", {}),
    ],
)
def test_a_page_out_of_the_bucket_asks_where_it_came_from(site: Site, opened: Any, page_url: str, wanted: Any):
    asyncio.run(_made(site))
    page = opened()
    found = page.run(
        f"return {page.module('driver.js')}.from({json.dumps(page_url)}, {{bucket: 'jobs', prefix: 'team/'}})"
    )
    assert found == wanted


async def _made(site: Site) -> None:
    async with site.store():
        pass
