"""Every screen in a real browser: it is drawn, complains of nothing, asks nobody else, and can be read by everybody."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.web.browser.page import Page
from tests.web.browser.shop import HOSTILE, SILENT, STUCK

HOSTILE_ID = HOSTILE.replace("\x00", "")
SCREENS = {
    "overview": ("#/", ["Overview", "446", "Oldest due", "Throughput", "images", "Latest dead jobs", "3,"]),
    "jobs": ("#/jobs", ["order-77-tell", "take_order", "lane 1", "Older"]),
    "jobs by filter": (
        "#/jobs?status=dead&queue=money",
        ["charge-card-00001", "ConnectTimeout", "Replay 42 dead jobs that match"],
    ),
    "waiting job": (
        "#/jobs/order-77-pack",
        ["Why is it not running?", "It waits for 2 other jobs", "order-77-tell", "due in"],
    ),
    "running job": ("#/jobs/thumbnail-of-a-panorama", ["Runs for 1", "The lease expires in", STUCK]),
    "dead job": (
        "#/jobs/charge-card-00001",
        ["Why it is dead", "all its attempts failed", "no answer from payments.example", "shop/gateway.py"],
    ),
    "hostile job": (f"#/jobs/{quote(HOSTILE_ID, safe='')}", ["<script>document.title", "[redacted]"]),
    "huge job": (f"#/jobs/{quote('odd/with a slash?and#more', safe='')}", ["20,000 items", "more characters"]),
    "dead letters": ("#/dead", ["57 dead jobs of 4 causes", "42", "ConnectTimeout: no answer", "Replay 42"]),
    "queues": ("#/queues", ["reports", "paused", "Oldest due", "Workers"]),
    "queue": (
        "#/queues/money",
        ["No active worker serves it", "dead in total: 42", "Maximum running jobs", "Drain", "Obliterate"],
    ),
    "pool as queue": ("#/queues/orders", ["Lanes", "4 lanes"]),
    "pools": ("#/pools", ["orders", "13 waiting", "Lane"]),
    "workers": (
        "#/workers",
        [SILENT, "sent its last heartbeat", "still holds 2 jobs", "has been running make_thumbnail", "stale", "1,204"],
    ),
    "schedules": ("#/schedules", ["nightly-report", "0 3 * * *", "Resume", "*/15 * * * *"]),
    "health": ("#/health", ["The store responds", "Queue reports is paused", "57 dead jobs", "password"]),
    "nowhere": ("#/no-such-screen", ["Overview"]),
}
GROUNDS = {"light": "rgb(245, 246, 248)", "dark": "rgb(14, 19, 24)"}
CONTRAST = (Path(__file__).parent / "contrast.js").read_text("utf-8")
each = pytest.mark.parametrize("name", SCREENS)


@each
def test_a_screen_is_drawn_without_complaint_can_be_read_and_fits_a_phone(looking: Page, name: str):
    where, words = SCREENS[name]
    looking.colours("light")
    looking.open(where)
    looking.sees(*words, within="main")
    for scheme, ground in GROUNDS.items():
        looking.colours(scheme)
        looking.until(f"getComputedStyle(document.documentElement).backgroundColor === '{ground}'")
        seen, poor = looking.ask(CONTRAST)
        assert seen > 20 and poor == []
    looking.size(375)
    try:
        looking.until("innerWidth === 375")
        assert looking.ask("document.documentElement.scrollWidth") == 375
    finally:
        looking.size(1280)

    assert looking.complaints() == []
    assert {url for url in looking.asked() if not url.startswith(looking.base)} == set()
    assert looking.ask("document.title").endswith("Millrace")
    assert looking.count("nav a[aria-current=page]") == 1


def test_colours_are_switched_by_hand_and_stay_so(looking: Page):
    looking.colours("light")
    looking.open("#/queues")
    back = "getComputedStyle(document.documentElement).backgroundColor"
    looking.press("t", "t")
    looking.until(f"{back} === 'rgb(14, 19, 24)'")
    looking.open("#/queues")
    looking.until(f"{back} === 'rgb(14, 19, 24)'")
    looking.press("t")
    looking.until(f"{back} === 'rgb(245, 246, 248)'")


def test_what_an_attacker_put_into_a_job_is_only_text(looking: Page):
    for where in (f"#/jobs/{quote(HOSTILE_ID, safe='')}", "#/jobs?queue=odd", "#/dead", "#/"):
        looking.open(where)
        looking.sees("<script>document.title = 'owned'</script>", "⟨U+202E⟩gnp.exe", within="main")
        assert looking.count("main :is(script, img, iframe, object)") == 0
        assert "owned" not in looking.ask("document.title").replace(HOSTILE_ID, "") or where.startswith("#/jobs/")
        written = looking.ask("document.body.innerText")
        assert not set(written) & {"\u202e", "\u2066", "\x00", "\x1b"}
        assert looking.complaints() == []


def test_a_huge_payload_opens_a_page_at_a_time(looking: Page):
    looking.open(f"#/jobs/{quote('odd/with a slash?and#more', safe='')}")
    leaves = looking.count("#payload .leaf")
    assert leaves < 50
    looking.click("#payload summary", "many")
    looking.until(f"document.querySelectorAll('#payload .leaf').length === {leaves + 100}")
    looking.click("#payload button", "19,900 more")
    looking.until(f"document.querySelectorAll('#payload .leaf').length === {leaves + 600}")
    looking.click("#payload summary", "down")
    looking.sees("58", within="#payload")


def test_the_page_preloads_exactly_its_modules():
    static = Path(__file__).parents[3] / "src/millrace/web/static"
    named = set((static / "index.html").read_text("utf-8").split('rel="modulepreload" href="')[1:])
    named = {one.split('"')[0] for one in named} | {"app.js"}
    made = {str(path.relative_to(static)) for path in static.rglob("*.js") if "s3" not in path.parts}

    assert named == made


def test_text_is_never_handed_over_as_html():
    static = Path(__file__).parents[3] / "src/millrace/web/static"
    for path in static.rglob("*.js"):
        text = path.read_text("utf-8")
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "text/html",
            "eval(",
            "new Function",
        ):
            assert way not in text, (path, way)


# ── keys ──────────────────────────────────────────────────────────────────────────────────────


def test_everything_is_reached_by_keys(looking: Page):
    looking.open("#/")
    looking.press("Tab")
    assert looking.ask("document.activeElement.className") == "skip"
    looking.press("Enter")
    assert looking.ask("document.activeElement.id") == "main"
    looking.press("g", "j")
    looking.until("document.querySelector('[data-search]') !== null")
    looking.press("/")
    looking.until("document.activeElement.matches('[data-search]') && location.hash === '#/jobs'")
    looking.browser.do("Input.insertText", text="report-0")
    looking.press("Enter")
    looking.until("location.hash.includes('id=report-0') && document.querySelectorAll('[data-row]').length === 1")
    looking.press("Escape")
    looking.press("j")
    looking.until("document.activeElement.textContent === 'report-0'")
    outline = looking.ask("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    looking.press("Enter")
    looking.until("location.hash === '#/jobs/report-0'")


def test_a_search_keeps_the_filters_until_it_is_sent(looking: Page):
    looking.open("#/jobs?status=dead")
    looking.press("/")
    looking.until("document.activeElement.matches('[data-search]')")
    assert looking.ask("location.hash") == "#/jobs?status=dead"


def test_a_row_is_opened_by_keys_and_the_keys_are_listed(looking: Page):
    looking.open("#/queues")
    looking.press("j")
    looking.press("j")
    first = looking.ask("document.activeElement.textContent")
    looking.press("Enter")
    looking.until(f"location.hash === '#/queues/' + {json.dumps(first)}")
    looking.press("?")
    looking.sees("Next and previous row", within="dialog")
    looking.press("Escape")
    looking.until("document.querySelector('dialog') === null")
