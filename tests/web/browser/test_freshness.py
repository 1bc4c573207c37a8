"""The page stays fresh at a steady price: one timer, one request of a kind at a time, none while nobody looks."""

from __future__ import annotations

from statistics import median
from time import monotonic, sleep

import pytest

from tests.spark.report.browser import Browser
from tests.web.browser.conftest import Opened
from tests.web.browser.page import Page
from tests.web.browser.stored import put

HIDE = """(hidden) => { Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
  document.dispatchEvent(new Event("visibilitychange")); }"""


# Requests are counted as they begin, so that it does not matter when they end; a load that was aborted sends none.
WATCH = """{
  const real = window.fetch;
  window.begun = 0;
  window.pending = 0;
  window.fetch = async (url, wanted) => {
    if (String(url).includes("/api/queues") && !wanted?.signal?.aborted) window.begun += 1;
    if (String(url).includes("/events/stream")) return real(url, wanted);
    window.pending += 1;
    try {
      return await real(url, wanted);
    } finally {
      window.pending -= 1;
    }
  };
}"""
LOADS = "window.begun"


def loads(page: Page) -> int:
    """How often the screen was loaded so far, by a request that each load makes once."""
    return int(page.ask(LOADS))


def at_rest(page: Page) -> None:
    """Wait until the page has read all answers."""
    page.until("window.pending === 0")


def measured(browser: Browser) -> dict[str, float]:
    browser.do("HeapProfiler.collectGarbage")
    return {one["name"]: one["value"] for one in browser.do("Performance.getMetrics")["metrics"]}


def test_it_rests_while_nobody_looks_and_looks_at_once_when_somebody_does(opened: Opened, shop_url: str):
    page = opened("#/jobs?queue=mail")
    page.ask(WATCH)
    page.choose(".fresh select", "1")
    page.until(f"{LOADS} > 2")
    rested = int(page.ask(f"(({HIDE})(true), {LOADS})"))
    put(shop_url, "came-while-nobody-looked")
    sleep(2.5)
    assert loads(page) == rested
    assert "came-while-nobody-looked" not in page.text("main")
    page.ask(f"({HIDE})(false)")
    page.sees("came-while-nobody-looked", within="main")


def test_nothing_gathers_however_often_it_refreshes(opened: Opened, browser: Browser):
    page = opened("#/")
    page.ask(WATCH)
    browser.do("Performance.enable")
    again = "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'r', bubbles: true}))"
    rest = "await new Promise((go) => setTimeout(go, 15))"
    rounds = f"(async () => {{ for (let n = 0; n < 30; n += 1) {{ {again}; {rest}; }} }})()"
    answers: list[dict[str, float]] = []
    for where in ("#/", "#/jobs", "#/workers") * 3:
        page.ask(f"location.hash = '{where}'")
        page.loaded()
        browser.do("Runtime.evaluate", expression=rounds, awaitPromise=True)
        at_rest(page)
        sleep(0.3)  # what was read last is drawn
        browser.events.clear()
        if where == "#/":
            answers.append(measured(browser))
    _, first, last = answers  # by the second time, all code has been run
    assert last["Nodes"] <= first["Nodes"] * 1.1
    assert last["JSEventListeners"] <= first["JSEventListeners"] * 1.1
    assert last["JSHeapUsedSize"] <= first["JSHeapUsedSize"] * 1.1


def test_a_server_that_is_gone_is_told_of_and_found_again(opened: Opened, browser: Browser):
    page = opened("#/queues")
    try:
        browser.do(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )
        page.press("r")
        page.sees("the server does not respond", within=".problem")
        page.sees("reports", within="main")  # what was seen last stays
    finally:
        browser.do(
            "Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )
    page.click(".problem button", "Try again")
    page.until("document.querySelector('.problem') === null")


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_twenty_minutes_at_a_refresh_a_second_cost_what_one_does(opened: Opened, browser: Browser, shop_url: str):
    page = opened("#/")
    page.ask(WATCH)
    browser.do("Performance.enable")
    page.choose(".fresh select", "1")
    heaps: list[float] = []
    minutes: list[int] = []
    for minute in range(20):
        page.ask("window.begun = 0")
        ends = monotonic() + 60
        while monotonic() < ends:
            put(shop_url, *(f"load-{minute}-{monotonic()}-{n}" for n in range(20)))
            sleep(1)
        minutes.append(loads(page))
        # An answer that is just being read is no leak: it is gone at the next look.
        heaps.append(median(measured(browser)["JSHeapUsedSize"] for _ in range(3)))
        browser.events.clear()
    print(heaps, minutes)
    assert max(heaps[2:]) <= heaps[2] * 1.1
    assert max(minutes[1:]) - min(minutes[1:]) <= max(minutes[1:]) * 0.1
