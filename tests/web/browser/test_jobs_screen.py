"""The list of jobs: filters in the address, pages, and actions for those that are chosen or for all that fit."""

from __future__ import annotations

from tests.web.browser.conftest import Opened
from tests.web.browser.page import Page
from tests.web.browser.stored import jobs_of, put, states

ROWS = "[...document.querySelectorAll('.jobs tbody tr')]"


def test_filters_stand_in_the_address_and_the_way_back_works(looking: Page):
    looking.open("#/jobs")
    looking.click(".tabs a", "dead")
    looking.until(f"location.hash === '#/jobs?status=dead' && {ROWS}.length === 50")
    looking.choose(".fields select", "images")
    looking.until(f"location.hash === '#/jobs?status=dead&queue=images' && {ROWS}.length === 11")
    assert looking.ask(f"{ROWS}.every((row) => row.innerText.includes('UnidentifiedImageError'))")
    looking.ask("history.back()")
    looking.until(f"location.hash === '#/jobs?status=dead' && {ROWS}.length === 50")
    looking.open("#/jobs?status=scheduled&queue=mail")
    assert looking.ask(f"{ROWS}.length") == 5


def test_what_ended_lately_is_asked_for(looking: Page):
    """The shop's cards failed more than half an hour ago, its pictures and letters later."""
    looking.open("#/jobs?status=dead&finished_from=35m")
    looking.until(f"{ROWS}.length === 15 && {ROWS}.every((row) => !row.innerText.includes('charge_card'))")
    looking.sees("Replay 15 dead jobs that match", "since 35m ago", within="main")
    looking.choose("[data-since]", "1h")
    looking.until(f"location.hash === '#/jobs?status=dead&finished_from=1h' && {ROWS}.length === 50")
    looking.choose("[data-since]", "")
    looking.until("location.hash === '#/jobs?status=dead'")
    looking.choose("[data-since]", "other")
    looking.write("dialog [name=at]", "")
    looking.ask("document.querySelector('dialog [name=at]').value = '2199-01-31T14:30'")
    looking.click("dialog button[type=submit]")
    looking.sees("No job matches", "since 2199-01-31 14:30:00", within="main")
    looking.open("#/dead?finished_from=35m")
    looking.sees("15 dead jobs of 3 causes")
    assert looking.complaints() == []


def test_since_midnight_is_that_of_whoever_looks(looking: Page):
    looking.open("#/jobs?finished_from=midnight")
    [asked] = {url.split("finished_from=")[1].split("&")[0] for url in looking.asked() if "finished_from=2" in url}
    told = looking.ask(f"new Date(decodeURIComponent({asked!r})).toString()")
    assert " 00:00:00 " in told


def test_a_search_understands_ids_and_filters(looking: Page):
    looking.open("#/jobs")
    looking.write("[data-search]", "order-77-label")
    looking.press("Enter")
    looking.until(f"{ROWS}.length === 1")
    looking.write("[data-search]", "task:build_report queue:reports")
    looking.press("Enter")
    looking.until(f"location.hash.includes('task=build_report') && {ROWS}.length === 4")


def test_tags_are_shown_and_filter_the_list(opened: Opened, shop_url: str):
    put(shop_url, "tagged", queue="reports", tags=("import-7", "eu"))
    page = opened("#/jobs/tagged")
    page.sees("import-7", "eu", within="#facts")
    page.click("#facts a", "import-7")
    page.until(f"location.hash === '#/jobs?tag=import-7' && {ROWS}.length === 1")
    assert "import-7" in page.ask(f"{ROWS}[0].innerText")


def test_pages_follow_each_other_without_gap_or_repeat(looking: Page):
    ids = f"{ROWS}.map((row) => row.querySelector('.ids a').title)"
    looking.open("#/jobs?queue=images")
    seen: list[str] = looking.ask(ids)
    while looking.count("[data-next]"):
        last = seen[-1]
        looking.click("[data-next]")
        looking.until(f"!{ids}.includes({last!r}) && document.querySelector('main[aria-busy=false]') !== null")
        seen += looking.ask(ids)
    assert len(seen) == len(set(seen)) == 72


def test_what_does_not_fit_is_said_in_words(looking: Page):
    looking.open("#/jobs?task=no_such_task")
    looking.sees("No job matches", "Clear all filters")
    looking.open("#/jobs?since=yesterday")
    looking.sees("since", within=".problem")
    assert looking.count(".problem button") == 1


def test_chosen_jobs_are_cancelled_and_only_they(opened: Opened, shop_url: str):
    page = opened("#/jobs?queue=images&status=ready&order=oldest")
    chosen: list[str] = page.ask(f"{ROWS}.slice(0, 3).map((row) => row.querySelector('.ids a').title)")
    for n in range(3):
        page.ask(f"{ROWS}[{n}].querySelector('input').click()")
    page.sees("3 jobs chosen")
    page.click(".choice button", "Cancel")
    page.sees("Cancel 3 jobs?", within="dialog")
    page.click("dialog button", "Cancel 3 jobs")
    page.sees("Cancelled 3 jobs", within="#notes")

    assert states(shop_url, chosen) == ["cancelled"] * 3
    assert jobs_of(shop_url, queue="images", state="cancelled") == sorted(chosen)


def test_all_that_fit_are_counted_agreed_to_and_done_after_a_while(opened: Opened, shop_url: str):
    page = opened("#/jobs?queue=images&status=dead")
    page.click(".choice button", "Archive 11 dead jobs that match")
    page.sees("Archive 11 jobs?", "and 6 more", within="dialog")
    page.click("dialog button", "Archive 11 jobs")
    page.sees("Archived 11 jobs", within="#notes")

    assert jobs_of(shop_url, queue="images", state="dead") == []
    page.sees("No job matches")
    page.click(".tabs a", "archived")
    page.until(f"{ROWS}.length === 11")
    page.click(".choice button", "Unarchive 11 archived jobs that match")
    page.click("dialog button", "Unarchive 11 jobs")
    page.sees("Unarchived 11 jobs", within="#notes")
    assert len(jobs_of(shop_url, queue="images", state="dead")) == 11


def test_jobs_that_come_after_the_count_are_left_alone(opened: Opened, shop_url: str):
    page = opened("#/jobs?queue=reports&status=ready")
    page.click(".choice button", "Cancel 5 ready jobs that match")
    page.sees("Cancel 5 jobs?", within="dialog")
    put(shop_url, "one-more", queue="reports")
    page.click("dialog button", "Cancel 5 jobs")
    page.sees("Cancelled 5 jobs", within="#notes")

    assert len(jobs_of(shop_url, queue="reports", state="cancelled")) == 5
    assert states(shop_url, ["one-more"]) == ["waiting"]


def test_a_list_follows_what_happens(opened: Opened, shop_url: str):
    page = opened("#/jobs?queue=mail")
    assert "put-in-just-now" not in page.text("main")
    put(shop_url, "put-in-just-now")
    page.sees("put-in-just-now", within="main")
    page.choose(".fresh select", "off")
    page.until("document.querySelector('.fresh.is-off') !== null")
    put(shop_url, "put-in-later")
    page.press("r")
    page.sees("put-in-later", within="main")
