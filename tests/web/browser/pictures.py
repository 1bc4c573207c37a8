"""The pictures of the dashboard in the docs, made anew: python -m tests.web.browser.pictures"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from time import sleep

from tests.spark.report.browser import chromium
from tests.web.browser.page import Page
from tests.web.browser.served import served
from tests.web.browser.shop import fill, moment

IMAGES = Path(__file__).parents[3] / "docs" / "images"
AGREE = "dialog button[type=submit]"
REPLAY = ".causes > li:first-child button"
PICTURES: tuple[tuple[str, str, str, int, int, tuple[str, ...]], ...] = (
    # name, address, colours, width, height (0: all of the page), what is clicked before
    ("overview", "#/", "light", 1200, 0, ()),
    ("overview-dark", "#/", "dark", 1200, 0, ()),
    ("jobs", "#/jobs?queue=mail", "light", 1200, 620, ()),
    ("job", "#/jobs/charge-card-00001", "light", 1200, 0, ()),
    ("why", "#/jobs/order-77-pack", "light", 1200, 0, ()),
    ("dead", "#/dead", "light", 1200, 520, ()),
    ("replay", "#/dead", "light", 1200, 620, (REPLAY,)),
    ("undo", "#/dead", "light", 1200, 420, (REPLAY, AGREE)),
    ("workers", "#/workers", "light", 1200, 520, ()),
    ("phone", "#/", "dark", 375, 760, ()),
)


def make(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="millrace-pictures-") as made:
        path = Path(made) / "shop.db"
        asyncio.run(fill(path, odd=False))
        with served(f"sqlite:///{path}") as base, chromium() as browser:
            page = Page(browser, base)
            for name, where, colours, width, height, clicked in PICTURES:
                page.size(width, height or 700)
                page.colours(colours)
                page.open(where)
                if where == "#/":
                    _happen(page, path)
                for selector in clicked:
                    page.click(selector)
                sleep(0.3)  # for fonts and the last layout
                page.picture(folder / f"dashboard-{name}.png", whole=not height)
                print(folder / f"dashboard-{name}.png")


def _happen(page: Page, path: Path) -> None:
    """Things happen until the page has heard of some: it begins to listen a while after it is drawn."""
    heard = "document.querySelectorAll('.feed li').length > 11"
    for _ in range(10):
        asyncio.run(moment(path))
        for _ in range(20):
            if page.ask(heard):
                return
            sleep(0.1)
    raise AssertionError("the page never heard of what happens")


if __name__ == "__main__":
    make(IMAGES)
