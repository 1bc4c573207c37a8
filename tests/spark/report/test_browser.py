"""The page in a real browser that has no network: nothing is asked for, everything is seen, nothing sticks out."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.spark.report import Report, html
from millrace.spark.report.model import QueueFlow, WorkerFigures, WorkerTable
from tests.narrowing import the
from tests.spark.report.browser import Browser, chromium
from tests.spark.report.made import BEGIN, BROKEN, STEPS, a_cause, a_report, an_analytics, nothing

VISIBLE = (
    "[...document.querySelectorAll('section')].filter(s => s.offsetHeight > 60 && s.offsetWidth > 200).map(s => s.id)"
)
SECTIONS = ["throughput", "waiting", "running", "failures", "workers", "tasks", "fairness", "audit"]
WITH_ANALYTICS = [
    *("throughput", "backlog", "waiting", "running", "trends", "objectives", "failures", "causes", "workers", "tasks"),
    *("cost", "fairness", "audit"),
]
CHARTS = 7


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        started.do(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )
        yield started


def show(browser: Browser, report: Report, folder: Path) -> None:
    page = folder / "report.html"
    page.write_text(html(report), "utf-8")
    browser.events.clear()
    browser.do("Page.navigate", url=page.as_uri())
    browser.until("Page.loadEventFired")


def with_long_names() -> Report:
    long = "a-name-without-any-place-to-break-" * 6
    usual = a_report()
    analytics = the(usual.analytics)
    return a_report(
        title=long,
        queues=[QueueFlow(long, 1, 1, 0, 0, [1] * len(STEPS))],
        failures=replace(usual.failures, causes=[a_cause(task=long, sample=long * 2, sample_job=long)]),
        workers=WorkerTable([WorkerFigures(long, 1, 1, 1, 1.0, [1.0] * len(STEPS), BEGIN, BEGIN)]),
        tasks=replace(usual.tasks, slowest=[replace(usual.tasks.slowest[0], task=long)]),
        analytics=an_analytics(
            open_at=[(long, [1] * 48)],
            forecasts=[replace(analytics.forecasts[0], queue=long)],
            objectives=[replace(analytics.objectives[0], task=long)],
            trends=[replace(analytics.trends[0], task=long)],
            task_costs=[replace(analytics.task_costs[0], name=long)],
            group_costs=[replace(analytics.group_costs[0], name=long)],
            causes=[replace(analytics.causes[0], task=long, sample=long, sample_job=long)],
        ),
        audit=replace(BROKEN, findings=[replace(one, job=long, text=long) for one in BROKEN.findings]),
    )


def test_it_asks_for_nothing_and_has_nothing_to_complain_about(browser: Browser, tmp_path: Path):
    browser.size(1200)
    show(browser, a_report(), tmp_path)
    browser.ask("document.querySelector('.hover rect').dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))")

    asked = [
        event["params"]["request"]["url"] for event in browser.events if event["method"] == "Network.requestWillBeSent"
    ]
    complaints = [
        event
        for event in browser.events
        if event["method"] in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    ]
    assert asked == [(tmp_path / "report.html").as_uri()]
    assert complaints == []
    assert browser.ask("document.querySelector('.tip').textContent").startswith("Mon 2 Nov, 00:00–00:30\n")
    assert browser.ask(VISIBLE) == WITH_ANALYTICS
    assert (
        browser.ask("getComputedStyle(document.querySelector('section')).borderRadius") == "10px"
    )  # the style is let in


def test_the_policy_would_stop_what_somebody_slipped_in(browser: Browser, tmp_path: Path):
    page = tmp_path / "report.html"
    evil = "<script>document.title = 'owned'</script><img src='https://millrace.invalid/x.png'>"
    page.write_text(html(a_report()).replace("<footer>", evil + "<footer>"), "utf-8")
    browser.events.clear()
    browser.do("Page.navigate", url=page.as_uri())
    browser.until("Page.loadEventFired")

    assert browser.ask("document.title") == "Two days of a shop"
    assert any("Content Security Policy" in str(event) for event in browser.events)


@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1440])
@pytest.mark.parametrize("made", [a_report, with_long_names, nothing])
def test_nothing_sticks_out_at_any_width(browser: Browser, tmp_path: Path, made, width: int):
    browser.size(width, phone=width < 700)
    show(browser, made(), tmp_path)

    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(VISIBLE) == (SECTIONS if made is nothing else WITH_ANALYTICS)


def test_letters_in_charts_are_readable_on_a_phone_and_on_a_desk(browser: Browser, tmp_path: Path):
    seen = "[...document.querySelectorAll('.chart text')].map(t => t.getBoundingClientRect().height).filter(h => h > 0)"
    for width in (390, 620, 640, 820, 1040, 1440):
        browser.size(width, phone=width < 700)
        show(browser, a_report(), tmp_path)
        heights = browser.ask(seen)
        shown = "[...document.querySelectorAll('.chart')].filter(c => c.getBoundingClientRect().height > 0).length"
        assert browser.ask(shown) == CHARTS, width
        assert len(heights) > 30 and min(heights) >= 10 and max(heights) <= 24, width


def test_it_is_dark_where_that_is_liked_and_light_on_paper(browser: Browser, tmp_path: Path):
    back = "getComputedStyle(document.body).backgroundColor"
    card = "getComputedStyle(document.querySelector('section')).backgroundColor"
    browser.size(1200)
    show(browser, a_report(), tmp_path)
    try:
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        browser.do("Emulation.setEmulatedMedia", media="screen", features=dark)
        assert browser.ask(back) == "rgb(14, 19, 24)"
        browser.do("Emulation.setEmulatedMedia", media="print", features=dark)
        assert browser.ask(card) == "rgb(255, 255, 255)"
    finally:
        browser.do(
            "Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": "light"}]
        )


def test_it_prints_on_a_few_pages_without_cutting_charts(browser: Browser, tmp_path: Path):
    browser.size(1200)
    show(browser, a_report(), tmp_path)
    browser.do("Emulation.setEmulatedMedia", media="print")
    try:
        kept = browser.ask("[...document.querySelectorAll('figure')].map(f => getComputedStyle(f).breakInside)")
        shown = browser.ask("[...document.querySelectorAll('.narrow')].filter(c => c.offsetHeight).length")
    finally:
        browser.do("Emulation.setEmulatedMedia", media="")
    paper = base64.b64decode(browser.do("Page.printToPDF", printBackground=True)["data"])

    assert kept == ["avoid"] * CHARTS and shown == 0
    assert paper.startswith(b"%PDF") and 2 <= paper.count(b"/Type /Page\n") <= 8
