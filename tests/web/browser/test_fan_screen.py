"""Work that fans out and in again, and what the pages say of its parts; and small promises that pages make."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace import App
from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.outcome import Failure
from millrace.domain.request import Claim
from millrace.store.sqlite import SqliteStore
from tests.spark.report.browser import Browser
from tests.web.browser.conftest import Opened
from tests.web.browser.page import Page
from tests.web.browser.served import served
from tests.web.browser.stored import states

PARTS = 50
EDGES = "document.querySelectorAll('#family .graph > svg path').length"
ROW = "document.querySelector('.jobs tbody tr')"


async def fill(path: Path) -> None:
    async with App(SqliteStore(path, durability="relaxed")) as app:
        store = await app.connected()
        parts = [f"part-{n:02d}" for n in range(PARTS)]
        await store.enqueue(
            [
                Spec("split", "split", "fan", b"{}", token="s"),
                *(Spec(part, "work", "fan", b"{}", token=part, after=("split",)) for part in parts),
                Spec("join", "join", "fan", b"{}", token="j", after=tuple(parts)),
                Spec("lonely", "work", "alone", b"{}", token="l", max_attempts=4),
                Spec("broken-part", "work", "broken", b"{}", token="b"),
                Spec("its-child", "join", "broken", b"{}", token="c", after=("broken-part",)),
            ]
        )
        [broken] = await store.claim(Claim(("broken",), "w", 1))
        await store.settle([(broken.lease, Change.bury(Failure("Broken", "no"), "explicit_fail"))])
        for change in (
            Change.release(),
            Change.release(),
            Change.release(),
            Change.retry(Failure("Broken", "once"), delay=0),
        ):
            [lonely] = await store.claim(Claim(("alone",), "w", 1))
            await store.settle([(lonely.lease, change)])


@pytest.fixture(scope="module")
def fan(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    path = tmp_path_factory.mktemp("fan") / "fan.db"
    asyncio.run(fill(path))
    with served(f"sqlite:///{path}") as base:
        page = Page(browser, base)
        page.size(1280)
        yield page


def test_all_parts_that_are_shown_are_joined_to_what_they_wait_for(fan: Page):
    fan.open("#/jobs/join")
    fan.sees("split", "26 more before it", within="#family")
    assert fan.ask(EDGES) == 24 + 24  # from the split to each part that is shown, and from there to the join


def test_parents_that_were_not_fetched_are_counted(fan: Page):
    fan.open("#/jobs/join")
    fan.sees("and 42 more", within="#why")


def test_a_failed_part_shows_what_died_with_it(fan: Page):
    fan.open("#/jobs/broken-part")
    fan.sees("its-child", within="#family")
    assert fan.ask(EDGES) == 1


def test_failures_are_compared_with_the_budget_and_not_claims(fan: Page):
    """One failure of four, after three runs that were given back."""
    fan.open("#/jobs?queue=alone")
    fan.until(f"{ROW}.innerText.includes('1/4')")
    fan.open("#/jobs/lonely")
    fan.sees("1 of at most 4", within="#facts")
    assert "4 of at most 4" not in fan.text("main")


def test_text_in_the_search_box_does_not_outlive_the_list_it_was_typed_for(looking: Page):
    looking.open("#/jobs")
    looking.write("[data-search]", "order-77-label")
    looking.click(".tabs a", "dead")
    looking.until("location.hash.includes('status=dead') && document.querySelector('[data-search]').value === ''")


def test_what_is_done_to_chosen_jobs_can_be_undone(opened: Opened, shop_url: str):
    page = opened("#/jobs?queue=images&status=ready&order=oldest")
    page.ask("window.setTimeout = () => 0")  # the time to undo does not run out
    page.ask("document.querySelectorAll('.jobs tbody tr input')[0].click()")
    chosen: str = page.ask("document.querySelector('.jobs tbody tr .ids a').title")
    page.click(".choice button", "Cancel")
    page.sees("you can undo it", within="dialog")
    page.click("dialog button", "Cancel 1 job")
    page.click("#notes button", "Undo")
    page.sees("Undone: nothing was changed", within="#notes")
    assert states(shop_url, [chosen]) == ["waiting"]


def test_a_page_that_is_not_connected_yet_does_not_say_quiet(browser: Browser, fan: Page):
    hanging = "const real = fetch; window.fetch = (url, ...more) =>"
    hanging += " String(url).includes('/events/stream') ? new Promise(() => {}) : real(url, ...more);"
    script = browser.do("Page.addScriptToEvaluateOnNewDocument", source=hanging)["identifier"]
    try:
        fan.open_again()
        fan.go("#/")
        fan.sees("Connecting", within="#now")
        assert "Quiet" not in fan.text("#now")
    finally:
        browser.do("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    fan.open_again()
    fan.sees("Quiet", within="#now")
