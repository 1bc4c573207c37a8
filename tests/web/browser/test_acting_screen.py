"""What a person does in the dashboard is done in the store, and nothing else."""

from __future__ import annotations

import json

import pytest

from millrace import App, Context, ScheduleDefinition, Spec
from tests.web.browser.conftest import Opened
from tests.web.browser.page import Page
from tests.web.browser.stored import asked, job, jobs_of, settings, states
from tests.web.stage import TOKENS

ACTING = (
    "main :is(.actions, .choice, .help) button:not(.plain, .bare), main input[type=checkbox], main :is(.main, .danger)"
)


# ── dead letters ──────────────────────────────────────────────────────────────────────────────


def test_the_dead_of_the_most_frequent_error_are_replayed_after_an_undo_window(opened: Opened, shop_url: str):
    page = opened("#/dead")
    page.click(".causes > li:first-child button", "Newest job")
    page.sees("shop/gateway.py", "[redacted]", within=".sampled")
    page.click(".causes > li:first-child button", "Replay 42")
    page.sees("Replay 42 jobs?", "no answer from payments.example", "and 37 more", within="dialog")
    page.click("dialog button", "Replay 42 jobs")
    page.sees("Replayed 42 jobs", "15 dead jobs of 3 causes")

    assert jobs_of(shop_url, queue="money", state="dead") == []
    assert len(jobs_of(shop_url, queue="money", state="ready")) == 42
    assert len(jobs_of(shop_url, queue="images", state="dead")) == 11


def test_undone_in_time_nothing_happens(opened: Opened, shop_url: str):
    page = opened("#/dead")
    page.ask("window.setTimeout = ((real) => (f, ms) => real(f, ms > 7000 ? 600000 : ms))(window.setTimeout)")
    page.click(".causes > li:first-child button", "Replay 42")
    page.click("dialog button", "Replay 42 jobs")
    page.sees("Replay 42 jobs in ", within="#notes")
    page.click("#notes button", "Undo")
    page.sees("Undone: nothing was changed", within="#notes")

    assert len(jobs_of(shop_url, queue="money", state="dead")) == 42


def test_a_question_that_is_left_changes_nothing(opened: Opened, shop_url: str):
    page = opened("#/dead")
    page.click(".causes > li:first-child button", "Replay 42")
    page.sees("Replay 42 jobs?", within="dialog")
    page.press("Escape")
    page.until("document.querySelector('dialog') === null")
    assert "Replay 42 jobs in" not in page.text("#notes")
    assert len(jobs_of(shop_url, queue="money", state="dead")) == 42


# ── one job ───────────────────────────────────────────────────────────────────────────────────


def test_a_job_is_replayed_cancelled_and_archived(opened: Opened, shop_url: str):
    page = opened("#/jobs/charge-card-00001")
    page.click(".title button", "Replay …")
    page.sees("keeps its id", "with 0 failures", "They can happen again.", within="dialog")
    page.click("dialog button", "Replay it")
    page.sees("Waits for a worker", "Why is it not running?", "replayed")
    assert job(shop_url, "charge-card-00001").state == "waiting"
    page.click(".title button", "Cancel …")
    page.sees("It will not run", within="dialog")
    page.click("dialog button", "Cancel the job")
    page.sees("Was cancelled")
    assert job(shop_url, "charge-card-00001").state == "cancelled"
    page.click(".title button", "Archive")
    page.sees("archived", within=".head-state")
    assert job(shop_url, "charge-card-00001").archived
    page.click(".title button", "Unarchive")
    page.until("!document.querySelector('.head-state').innerText.includes('archived')")
    assert not job(shop_url, "charge-card-00001").archived
    assert page.complaints() == []


def test_a_running_job_is_asked_to_end(opened: Opened, shop_url: str):
    page = opened("#/jobs/thumbnail-of-a-panorama")
    page.click(".title button", "Stop this run …")
    page.sees("with its next heartbeat", within="dialog")
    page.click("dialog button[type=submit]")
    page.sees("stop requested", within=".head-state")
    assert job(shop_url, "thumbnail-of-a-panorama").cancel_requested


def test_why_a_job_does_not_run_is_told_and_mended(opened: Opened, shop_url: str):
    page = opened("#/jobs/report-0")
    page.sees("Queue reports is paused", "millrace resume reports", within="#why")
    page.click("#why button", "Resume queue reports")
    page.until("!document.querySelector('#why').innerText.includes('is paused')")
    assert not settings(shop_url, "reports").paused


def test_any_two_steps_of_a_job_are_compared(opened: Opened):
    page = opened("#/jobs/mail-that-fails")
    page.sees("7 events", within="#timeline")
    assert page.count("#timeline :is(input, .diff)") == 0  # nothing is compared before somebody asks
    page.click("#timeline button", "Compare events")
    page.sees("from", "to", within="#timeline li.head")
    page.sees("Changed from event 6 (started) to event 7 (failed, will retry)", within=".diff")
    marks = "document.querySelectorAll('#timeline input[name={}]')[{}].click()"
    page.ask(marks.format("from", 0))
    page.sees("Changed from event 1 (enqueued) to event 7 (failed, will retry)", within=".diff")
    page.ask(marks.format("to", 2))
    page.sees(
        "Changed from event 1 (enqueued) to event 3 (failed, will retry)", "SMTPRecipientsRefused: 550", within=".diff"
    )
    rows = page.ask(
        "[...document.querySelectorAll('.diff tbody tr')].map((row) => [...row.cells].map((c) => c.innerText))"
    )
    assert ["failures", "0", "1"] in rows and ["attempt", "0", "1"] in rows


def test_a_lease_counts_down_and_the_family_is_linked(opened: Opened):  # O-28
    page = opened("#/jobs/thumbnail-of-a-panorama")
    lease = "document.querySelector('.lease span').innerText"
    before = page.ask(lease)
    page.until(f"{lease} !== {json.dumps(before)}")
    page = opened("#/jobs/order-77-tell")
    page.sees("charge_card", "order-77-pack", "order-77-charge", within="#family")  # two generations back
    page.click("#family a", "order-77-pack")
    page.until("document.querySelector('h1').innerText.includes('order-77-pack')")
    page.sees("order-77-ask-for", "order-77-label", within="#family")


def test_a_job_that_is_not_there_is_said_to_be_missing(opened: Opened):
    page = opened("#/queues")
    page.go("#/jobs/never-was")
    page.sees("there is no job never-was")
    page.go("#/jobs/..")
    page.sees("millrace status ..")


# ── queues, pools, schedules ──────────────────────────────────────────────────────────────────


def test_a_queue_is_paused_and_resumed(opened: Opened, shop_url: str):
    page = opened("#/queues")
    page.click("button[aria-label='Pause queue mail']")
    page.until("document.querySelector(\"button[aria-label='Resume queue mail']\") !== null")
    assert settings(shop_url, "mail").paused
    page.click("button[aria-label='Resume queue mail']")
    page.until("document.querySelector(\"button[aria-label='Pause queue mail']\") !== null")
    assert not settings(shop_url, "mail").paused


def test_limits_are_changed_and_taken_away(opened: Opened, shop_url: str):
    page = opened("#/queues/money")
    page.click("#settings button", "Change")
    page.write("dialog [name=max_running]", "9")
    page.write("dialog [name=keep_dead]", "30d")
    page.ask("document.querySelector('dialog [name=rate]').value = ''")
    page.click("dialog button[type=submit]")
    page.sees("30 d", within="#settings")
    now = settings(shop_url, "money")
    assert (now.max_running, now.rate, now.keep_dead) == (9, None, 30 * 86_400_000)
    page.click("#settings button", "Change")
    page.write("dialog [name=fair_share]", "7")
    page.click("dialog button[type=submit]")
    page.sees("fair_share", within="dialog .wrong")
    page.press("Escape")
    assert settings(shop_url, "money").fair_share == 0


def test_a_queue_is_drained_and_obliterated_only_by_its_name(opened: Opened, shop_url: str):
    page = opened("#/queues/images")
    page.click(".title button", "Drain")
    page.sees("Cancel 57 jobs that wait?", within="dialog")
    page.click("dialog button", "Cancel 57 jobs")
    page.sees("Cancelled 57 jobs", within="#notes")
    assert jobs_of(shop_url, queue="images", state="ready") == []
    page.click(".title button", "Obliterate")
    page.write("dialog [name=name]", "image")
    page.click("dialog button", "Delete them")
    assert page.ask("document.querySelector('dialog').open && !document.querySelector('dialog form').checkValidity()")
    page.write("dialog [name=name]", "images")
    page.click("dialog button", "Delete them")
    page.sees("Deleted 72 jobs", within="#notes")
    assert states(shop_url, ["thumbnail-of-a-panorama"]) == []


def test_a_lane_is_paused(opened: Opened, shop_url: str):
    page = opened("#/pools")
    page.click("button[aria-label='Pause lane 2']")
    page.until("document.querySelector(\"button[aria-label='Resume lane 2']\") !== null")
    assert settings(shop_url, "orders").paused_lanes == (2,)


def test_a_schedule_is_resumed_and_forgotten(opened: Opened, shop_url: str):
    page = opened("#/schedules")
    page.click("button[aria-label='Resume nightly-report']")
    page.until("document.querySelector(\"button[aria-label='Pause nightly-report']\") !== null")
    page.click("button[aria-label='Remove stock-check']")
    page.click("dialog button", "Remove it")
    page.until("!document.querySelector('main').innerText.includes('stock-check')")
    [left] = asked(shop_url, lambda app: app.schedules.page())
    assert (left.name, left.paused) == ("nightly-report", False)


def test_many_schedules_are_shown_in_pages(opened: Opened, shop_url: str):
    spec = Spec("tick", "report")
    many = [ScheduleDefinition(f"report.{number:03}", spec, every="1h") for number in range(150)]
    asked(shop_url, lambda app: app.schedules.put_many(many))
    page = opened("#/schedules")
    page.sees("report.000", "nightly-report", "in code")
    assert "report.149" not in page.text("main")
    page.click(".pager a", "Next")
    page.sees("report.149", "every 1h")
    page.click("button[aria-label='Remove report.149']")
    page.sees("Jobs that are already enqueued still run", within="dialog")
    page.click("dialog button", "Remove it")
    page.until("!document.querySelector('main').innerText.includes('report.149')")
    page.click(".pager a", "First page")
    page.sees("report.000")
    assert page.complaints() == []


def test_the_page_of_a_job_shows_its_log(opened: Opened, shop_url: str):
    async def work(app: App) -> None:
        @app.task(queue="logged", keep_log=True)
        async def resize(ctx: Context, password: str) -> None:
            ctx.log(f"using {password}", width=200)
            ctx.log.error("<b>no thumbnail</b>")

        await resize.options(id="logged").enqueue("hunter22-very-secret")
        await app.worker("logged", burst=True, scheduler=False).run(handle_signals=False)

    asked(shop_url, work)
    page = opened("#/jobs/logged")
    page.sees("using [redacted] width=200", "<b>no thumbnail</b>", "2 lines", within="#log")
    assert page.complaints() == []


def test_what_was_changed_is_listed(opened: Opened):
    page = opened("#/queues")
    page.click("button[aria-label='Pause queue mail']")
    page.until("document.querySelector(\"button[aria-label='Resume queue mail']\") !== null")
    page.press("g", "h")
    page.sees("pauseQueue", within="#audit")


# ── who may do what ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "where", ["#/jobs", "#/dead", "#/queues", "#/queues/money", "#/pools", "#/schedules", "#/jobs/report-0"]
)
def test_whoever_may_only_look_is_shown_no_buttons(opened: Opened, where: str):
    page = opened(where, local="viewer")
    assert page.count(ACTING) == 0
    assert not {"Replay", "Pause", "Archive", "Cancel"} & set(page.text("main").split())
    assert page.complaints() == []


def test_it_works_inside_a_site_of_ones_own_behind_its_login(opened: Opened, shop_url: str):
    page = opened("#/queues", under="/tools/jobs", role_of=lambda scope: "operator")
    page.sees("operator", within="nav")
    page.click("button[aria-label='Pause queue mail']")
    page.until("document.querySelector(\"button[aria-label='Resume queue mail']\") !== null")
    assert settings(shop_url, "mail").paused
    assert {url for url in page.asked() if not url.startswith(page.base)} == set()
    page.base = page.base.rstrip("/")
    page.open("#/dead")  # without the slash at the end, it is found too
    page.sees("57 dead jobs")


def sign_in(page: Page, token: str) -> None:
    page.write("dialog [name=token]", token)
    page.click("dialog button[type=submit]")


def test_a_token_is_asked_for_and_held_in_memory(opened: Opened):
    page = opened("#/queues", tokens=TOKENS)
    page.sees("This server requires a token", within="dialog")
    sign_in(page, "not-a-token-of-this-server")
    page.sees("The server does not accept this token", within="dialog")
    sign_in(page, TOKENS["operator"])
    page.sees("reports", "Pause", within="main")
    page.sees("operator", within="nav")
    assert (
        page.ask("sessionStorage.length + Object.values(localStorage).filter((v) => v.includes('token')).length") == 0
    )
    page.open_again()
    page.sees("This server requires a token", within="dialog")


def test_a_token_is_kept_in_the_tab_only_when_that_is_wanted(opened: Opened):
    page = opened("#/queues/money", tokens=TOKENS)
    page.sees("This server requires a token", within="dialog")
    page.click("dialog [name=keep]")
    sign_in(page, TOKENS["viewer"])
    page.sees("Limits and settings", within="main")
    page.open_again()
    page.sees("Limits and settings", within="main")
    assert "Change" not in page.text("#settings")
    page.click("nav button", "Sign out")
    page.sees("This server requires a token", within="dialog")
    assert page.ask("sessionStorage.length") == 0
