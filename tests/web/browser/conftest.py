"""One browser for all tests of a module; a shop of its own, and a server before it, for each test that changes it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.spark.report.browser import Browser, chromium
from tests.web.browser.page import Page
from tests.web.browser.served import served
from tests.web.browser.shop import fill

Opened = Callable[..., Page]
# Timers of about eight seconds end soon, so that no test waits for an undo that nobody wants.
HASTY = """{
  const real = window.setTimeout;
  window.setTimeout = (deed, ms, ...more) => real(deed, ms > 7000 && ms < 9000 ? 400 : ms, ...more);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def made_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "shop.db"
    asyncio.run(fill(path))
    return path


@pytest.fixture(scope="module")
def looking(browser: Browser, made_shop: Path) -> Iterator[Page]:
    """The shop, for tests that change nothing."""
    with served(f"sqlite:///{made_shop}") as base:
        page = Page(browser, base)
        page.size(1280)
        yield page


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
