"""Where something is not as it should be: data that poses as a page, a server that is away, an answer that refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from millrace import App
from tests.spark.report.browser import Browser
from tests.web.browser.conftest import Opened
from tests.web.browser.page import Page
from tests.web.browser.served import running
from tests.web.browser.stored import jobs_of, put, settings

STATIC = Path(__file__).resolve().parents[3] / "src/millrace/web/static"
HOSTILE = {"tag": "iframe", "props": {"srcdoc": "<script>parent.ran = true</script>"}, "children": []}


def drawn(page: Page, *rounds: str) -> list[str]:
    """What stands in a node after each round of drawing."""
    steps = "".join(f"dom.draw(node, {one}); seen.push(node.textContent);" for one in rounds)
    page.ask(
        "window.seen = null; import('./core/dom.js').then((dom) => { const {h} = dom; const seen = [];"
        f" const node = document.createElement('div'); document.body.append(node); {steps} window.seen = seen; }})"
    )
    found: list[str] = page.until("window.seen")
    return found


# ── drawing ───────────────────────────────────────────────────────────────────────────────────


def test_data_that_looks_like_a_part_of_the_page_is_text(opened: Opened):
    page = opened()
    assert (
        drawn(page, json.dumps(HOSTILE), f"h('p', null, [{json.dumps(HOSTILE)}])")
        == [json.dumps(HOSTILE, separators=(",", ":"))] * 2
    )
    assert page.count("iframe") == 0 and page.ask("window.ran === undefined")


def test_two_rows_of_one_key_leave_nothing_behind(opened: Opened):
    rows = [f"h('p', {{key: '{key}'}}, '{text}')" for key, text in (("a", "one "), ("a", "two "), ("b", "three"))]
    assert drawn(opened(), ", ".join(rows), rows[0], rows[2]) == ["one two three", "one ", "three"]


def test_the_page_itself_says_what_it_may_load():
    """In a bucket nobody sends a header that does."""
    [policy] = [line for line in (STATIC / "index.html").read_text().splitlines() if "Content-Security-Policy" in line]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy


# ── a server that is away ─────────────────────────────────────────────────────────────────────


@contextmanager
def a_site(health: Response, *more: Route) -> Iterator[str]:
    """The page's files, and something else where the server should say how it is."""

    async def answer(_: object) -> Response:
        return health

    with running(
        Starlette(routes=[Route("/health", answer), *more, Mount("/", StaticFiles(directory=STATIC))])
    ) as base:
        yield base + "index.html"


@pytest.mark.parametrize("status", [404, 500, 502])
def test_nobody_is_asked_for_keys_of_a_bucket_because_a_server_is_away(browser: Browser, status: int):
    with a_site(HTMLResponse("<html>no upstream</html>", status)) as base:
        page = Page(browser, base)
        page.go("#/")
        page.sees("unexpected response from the server")
        assert page.count("dialog") == 0


def test_a_bucket_says_that_it_has_nothing_of_that_name(browser: Browser):
    refusal = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>NoSuchKey</Code></Error>'
    with a_site(Response(refusal, 404, media_type="application/xml")) as base:
        page = Page(browser, base)
        page.go("#/")
        page.sees("Open a bucket", within="dialog")


def test_a_page_beside_a_config_is_one_of_a_bucket_wherever_it_is_served(browser: Browser):
    async def config(_: object) -> Response:
        return Response('{"bucket": "jobs", "region": "us-east-1"}', media_type="application/json")

    with a_site(HTMLResponse("nothing here", 404), Route("/config.json", config)) as base:
        page = Page(browser, base)
        page.go("#/")
        page.sees("Open s3://jobs", within="dialog")
        page.write("#ask-accessKey", "AKIAIOSFODNN7EXAMPLE")
        page.write("#ask-secretKey", "secret")
        page.click("dialog button", "Open")
        page.sees("valid until they are revoked", "aws sts get-session-token", within="dialog")
        keys = "[...document.querySelectorAll('dialog input[type=password]')].map((one) => one.autocomplete)"
        assert page.ask(keys) == ["one-time-code", "one-time-code"]


def test_a_store_that_is_down_is_told_on_the_health_screen(opened: Opened):
    page = opened("#/queues")
    page.ask(
        "(() => { const real = fetch; window.fetch = (url, ...more) => String(url).endsWith('/health')"
        ' ? Promise.resolve(new Response(\'{"status": "down", "version": "1"}\', {status: 503}))'
        " : String(url).includes('/api/overview') ? Promise.resolve(new Response("
        '\'{"detail": "the store is away", "code": "store"}\', {status: 503})) : real(url, ...more); })()'
    )
    page.ask("location.hash = '#/health'")
    page.sees("The store does not respond", within="#checks")


# ── refusals ──────────────────────────────────────────────────────────────────────────────────


def test_settings_that_were_refused_are_corrected_and_all_of_them_saved(opened: Opened, shop_url: str):
    page = opened("#/queues/money")
    page.click("#settings button", "Change")
    page.write("#ask-max_running", "5")
    page.write("#ask-rate", "0")
    page.write("#ask-keep_completed", "7d")
    page.click("dialog button", "Save")
    page.until("document.querySelector('dialog .wrong') !== null")
    assert page.ask(
        "['max_running', 'rate', 'keep_completed'].map((one) => document.getElementById(`ask-${one}`).value)"
    ) == ["5", "0", "7d"]
    page.write("#ask-rate", "1")
    page.click("dialog button", "Save")
    page.sees("Saved", within="#notes")

    now = settings(shop_url, "money")
    assert (now.max_running, now.rate, now.keep_completed) == (5, 1.0, 7 * 24 * 3_600_000)


def test_a_cause_whose_jobs_were_archived_is_gone_at_once(opened: Opened, shop_url: str):
    page = opened("#/dead")
    page.choose(".fresh select", "off")  # so that no refresh by time comes first
    first = page.text(".causes > li:first-child .error-text")
    page.click(".causes > li:first-child button", "Archive")
    page.click("dialog button", "Archive 42 jobs")
    page.sees("Archived 42 jobs", within="#notes")
    page.until(f"!document.querySelector('.causes').innerText.includes({json.dumps(first)})")
    assert jobs_of(shop_url, queue="money", state="dead") == []


# ── what does not fit ─────────────────────────────────────────────────────────────────────────


async def archived_and_back(url: str, job_id: str, times: int) -> None:
    async with App(url) as app:
        await app.jobs.cancel(job_id)
        for _ in range(times):
            await app.jobs.archive(job_id)
            await app.jobs.unarchive(job_id)


def test_the_end_of_a_long_history_is_shown(opened: Opened, shop_url: str):
    put(shop_url, "much-happened")
    asyncio.run(archived_and_back(shop_url, "much-happened", 260))
    page = opened("#/jobs/much-happened")
    page.sees("322 earlier events are not shown", within=".timeline")
    assert page.count(".timeline > li") == 201
    assert "kind-unarchived" in page.ask("document.querySelector('.timeline').lastElementChild.className")


def test_a_queue_named_by_dots_is_shown_and_paused(opened: Opened, shop_url: str):
    put(shop_url, "in-dots", queue="..")
    page = opened(f"#/queues/{quote('..', safe='')}")
    page.sees("..", within="h1")
    page.click(".title button", "Pause")
    page.until("document.querySelector('main').innerText.includes('paused')")
    assert settings(shop_url, "..").paused
