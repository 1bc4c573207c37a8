"""One browser for all tests of a module; a shop of its own, and a server before it, for each test that changes it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.spark.report.browser import Browser, chromium
from tests.web.browser.page import Page
from tests.web.browser.served import served
from tests.web.browser.shop import fill

Opened = Callable[..., Page]
MOST_AGE = 60.0  # seconds
# Timers of about eight seconds end soon, so that no test waits for an undo that nobody wants; those of about six
# seconds do not, so that a note is still there for a test that is slow to look.
HASTY = """{
  const real = window.setTimeout;
  const instead = (ms) => (ms > 7000 && ms < 9000 ? 400 : ms > 5500 && ms < 6500 ? 3600000 : ms);
  window.setTimeout = (action, ms, ...more) => real(action, instead(ms), ...more);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


class Shops:
    """Makes the shop, and makes it anew when it is old: tests look for its ages, such as "runs for 15 min"."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[tuple[float, Path]] = []

    def latest(self) -> Path:
        if not self._made or monotonic() - self._made[-1][0] > MOST_AGE:
            path = self._folder / f"shop-{len(self._made)}.db"
            began = monotonic()
            asyncio.run(fill(path))
            self._made.append((began, path))
        return self._made[-1][1]


@pytest.fixture(scope="session")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Shops:
    return Shops(tmp_path_factory.mktemp("shop"))


@pytest.fixture
def made_shop(shops: Shops) -> Path:
    return shops.latest()


@pytest.fixture
def looking(browser: Browser, made_shop: Path) -> Iterator[Page]:
    """The shop, for tests that change nothing."""
    with served(f"sqlite:///{made_shop}") as base:
        page = Page(browser, base)
        page.size(1280)
        yield page
        browser.do("Page.navigate", url="about:blank")


@pytest.fixture
def shop_url(made_shop: Path, tmp_path: Path) -> str:
    shutil.copy(made_shop, tmp_path / "shop.db")
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def opened(browser: Browser, shop_url: str) -> Iterator[Opened]:
    """Opens the shop at an address: `opened("#/dead")`; options are those of the server."""
    with ExitStack() as stack:
        hasty = browser.do("Page.addScriptToEvaluateOnNewDocument", source=HASTY)["identifier"]
        stack.callback(lambda: browser.do("Page.removeScriptToEvaluateOnNewDocument", identifier=hasty))

        def show(where: str = "#/", **options: Any) -> Page:
            base = stack.enter_context(served(shop_url, **options))
            page = Page(browser, base)
            page.size(1280)
            page.colours("light")
            page.open(where) if "tokens" not in options else page.go(where)
            return page

        yield show
        browser.do("Page.navigate", url="about:blank")
