"""Make the picture of docs/report.md: a made-up week, its lake, its report, and photographs of that.

python -m tests.spark.report.picture DIRECTORY [JOBS]     the lake and report.html are kept there, with the pictures
pngquant --quality 70-95 --strip --output docs/images/report.png DIRECTORY/report.png
"""

from __future__ import annotations

import base64
import sys
from dataclasses import replace
from pathlib import Path

from millrace.spark.lake import Lake, LakePlace, TakeRequest, take
from millrace.spark.report import Wanted, html, report_of
from millrace.spark.session import QUICK, session
from tests.spark.report.browser import Browser, chromium
from tests.spark.report.week import WeekFeed, a_week


def main(directory: Path, jobs: int) -> None:
    page = directory / "report.html"
    if not page.exists():
        page.write_text(_report(directory / "lake", jobs), "utf-8")
    with chromium() as browser:
        browser.size(1240)
        browser.do("Page.navigate", url=page.absolute().as_uri())
        browser.until("Page.loadEventFired")
        _photograph(browser, directory / "report.png", 1240)
        _photograph(browser, directory / "report-tablet.png", 820)
        _in_the_dark(browser, True)
        _photograph(browser, directory / "report-dark.png", 1240)
        _photograph(browser, directory / "report-phone-dark.png", 390)
        _in_the_dark(browser, False)
        _photograph(browser, directory / "report-phone.png", 390)
        browser.size(1240)
        paper = browser.do("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)
        (directory / "report.pdf").write_bytes(base64.b64decode(paper["data"]))


def _report(lake: Path, jobs: int) -> str:
    spark = session("picture", "local[2]", java_options=QUICK, settings={"spark.sql.shuffle.partitions": "2"})
    try:
        if not lake.exists():
            take(LakePlace(lake), spark, WeekFeed(spark, a_week(jobs)), TakeRequest(groups=True), print)
        found = report_of(Lake(lake, spark), Wanted(title="The shop’s week"))
        return html(replace(found, made_at=(found.source.newest_at or 0) + 42_000))  # as if the week had just ended
    finally:
        spark.stop()


def _photograph(browser: Browser, file: Path, width: int) -> None:
    browser.size(width)
    high = browser.ask("document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": high, "scale": 1}
    shot = browser.do("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    file.write_bytes(base64.b64decode(shot["data"]))


def _in_the_dark(browser: Browser, dark: bool) -> None:
    value = "dark" if dark else "light"
    browser.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])


if __name__ == "__main__":
    where = Path(sys.argv[1])
    where.mkdir(parents=True, exist_ok=True)
    main(where, int(sys.argv[2]) if len(sys.argv) > 2 else 60_000)
