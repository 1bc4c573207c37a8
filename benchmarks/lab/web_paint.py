"""The dashboard in a real Chromium on a large store: when something is to be seen, and when the screen has its data.

Each round is a browser of its own, with nothing in its cache: `cold` is its first look, `warm` the reload after it.
`paint` is the browser's own first contentful paint, `data` the moment when the screen has been filled.
"""

from __future__ import annotations

import statistics
from time import monotonic, sleep
from typing import Any

from benchmarks.lab.web_filled import fill
from benchmarks.lab.web_served import place, server

SCREENS = ("#/", "#/jobs", "#/dead", "#/queues", "#/workers")
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
WATCH = """new MutationObserver((_, me) => {
  if (document.querySelector('main[aria-busy=false]') && !window.filled) { window.filled = performance.now(); }
}).observe(document, {subtree: true, childList: true, attributes: true});"""
PATIENCE = 15.0


async def paints(store: str, jobs: int, rounds: int) -> list[dict[str, Any]]:
    from tests.spark.report.browser import chromium

    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with place(store) as url:
        await fill(url, jobs)
        async with server(url, tokens=False) as served:
            for _ in range(rounds):
                for screen in SCREENS:
                    with chromium() as browser:
                        browser.do("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
                        browser.do("Page.navigate", url=f"{served.base}/{screen}")
                        times.setdefault((screen, "cold"), []).append(_seen(browser))
                        browser.do("Page.navigate", url="about:blank")
                        browser.do("Page.navigate", url=f"{served.base}/{screen}")
                        times.setdefault((screen, "warm"), []).append(_seen(browser))
    return [
        {
            "screen": screen,
            "look": look,
            "paint_p50_ms": statistics.median(paint for paint, _ in seen),
            "paint_worst_ms": max(paint for paint, _ in seen),
            "data_p50_ms": statistics.median(data for _, data in seen),
            "data_worst_ms": max(data for _, data in seen),
        }
        for (screen, look), seen in times.items()
    ]


def _seen(browser: Any) -> tuple[float, float]:
    ends = monotonic() + PATIENCE
    while True:
        paint, data = browser.ask(PAINT), browser.ask("window.filled ?? null")
        if paint is not None and data is not None:
            return paint, data
        assert monotonic() < ends, "the dashboard showed nothing"
        sleep(0.02)
