"""At one glance: does anything need attention, what becomes of it, and what would an action do?"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from millrace import App
from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.request import Claim, WorkerInfo
from millrace.store.sqlite import SqliteStore
from tests.spark.report.browser import Browser
from tests.web.browser.conftest import Opened
from tests.web.browser.page import Page
from tests.web.browser.served import served
from tests.web.browser.shop import SILENT, STUCK
from tests.web.browser.stored import asked, job, settings

FINDINGS = "[...document.querySelectorAll('{} li')].map((one) => one.innerText)"
ALARM = "document.querySelector('nav a[href=\"#/health\"] .alarm')?.innerText"


async def _well(path: Path) -> None:
    async with App(SqliteStore(path, durability="relaxed")) as app:
        store = await app.connected()
        await store.beat(WorkerInfo("w", ("mail",), ("work",), 4), 86_400_000)
        await store.enqueue([Spec("fine", "work", "mail", b"{}", token="t")])
        [job] = await store.claim(Claim(("mail",), "w", 1))
        await store.settle([(job.lease, Change.completed())])


# ── the verdict ───────────────────────────────────────────────────────────────────────────────


def test_what_needs_somebody_stands_at_the_top_the_worst_first(looking: Page):
    looking.open("#/")
    found = looking.ask(FINDINGS.format(".verdict"))

    words = " ".join(found)
    assert "No active worker serves orders" in words and "13 due jobs wait" in words
    assert f"{SILENT} is stale and holds 2 jobs" in words and "No other active worker serves money." in words
    assert "57 jobs died in the last hour" in words
    assert "57 jobs died in the last hour 42 charge_card, 11 make_thumbnail, 3 send_mail and 1 odd; the last " in words
    assert "Queue reports is paused" in found[-1]
    assert looking.count(".verdict.is-bad") == 1
    looking.until(f"{ALARM} === '{len(found)}'")


def test_the_alarm_is_beside_health_on_every_screen_and_on_a_phone(looking: Page):
    looking.open("#/schedules")
    looking.until(f"Number({ALARM}) >= 3")
    looking.size(375)
    try:
        looking.until("document.querySelector('.menu .alarm')?.getClientRects().length === 1")
    finally:
        looking.size(1280)
    looking.click("nav a", "Health")
    looking.sees("No active worker serves orders", "The store responds", within="#checks")


def test_where_nothing_is_wrong_that_is_said(browser: Browser, tmp_path: Path):
    asyncio.run(_well(tmp_path / "well.db"))
    with served(f"sqlite:///{tmp_path}/well.db") as base:
        page = Page(browser, base)
        page.size(1280)
        page.open("#/")
        words = ("Nothing needs attention", "1 worker is active", "no job died in the last hour")
        page.sees(*words, within=".verdict.is-good")
        page.sees("1 in the last minute", within=".vitals")
        assert page.count(".alarm") == 0


def test_what_is_mended_is_no_longer_told_of(opened: Opened, shop_url: str):
    page = opened("#/")
    page.sees("Queue reports is paused", within=".verdict")
    asked(shop_url, lambda app: app.queue("reports").resume())
    assert not settings(shop_url, "reports").paused
    page.press("r")
    page.until("!document.querySelector('.verdict').innerText.includes('reports is paused')")
    page.sees("No active worker serves orders and reports", within=".verdict")


def test_queues_tell_who_serves_them(looking: Page):
    looking.open("#/queues")
    cells = "Object.fromEntries([...document.querySelectorAll('tbody tr')].map((row) => [row.cells[0].innerText.trim(),"
    cells += " row.querySelector('[data-name=Workers]').innerText.trim()]))"
    served_by = looking.ask(cells)

    assert served_by["images"] == "2" and served_by["mail"] == "1"
    assert served_by["orders"] == "none"  # jobs are due
    assert served_by["money"] == "none"  # who ran its jobs went silent


# ── workers ───────────────────────────────────────────────────────────────────────────────────


def test_a_silent_worker_is_told_of_with_all_its_jobs_and_what_becomes_of_them(looking: Page):
    looking.open("#/workers")
    [lost, slow] = looking.ask(FINDINGS.format(".warnings"))

    assert "still holds 2 jobs: charge-in-limbo-0, charge-in-limbo-1." in lost
    assert (
        "Their leases expire in" in lost
        and "any active worker reclaims them, and a worker that serves money runs them again" in lost
    )
    assert "No other active worker serves money." in lost
    assert f"{STUCK} has been running make_thumbnail thumbnail-of-a-panorama for 1" in slow
    assert "(it has no timeout)" in slow
    rows = looking.ask(
        "[...document.querySelectorAll('tbody tr')].map((row) => row.cells[0].innerText.split('\\n')[0])"
    )
    assert rows[:2] == [SILENT, STUCK]


# ── before an action ─────────────────────────────────────────────────────────────────────────────


def test_a_replay_says_what_it_does_and_that_nobody_serves_the_queue(opened: Opened, shop_url: str):
    page = opened("#/jobs/charge-card-00001")
    page.click(".title button", "Replay …")
    page.sees("Replay charge-card-00001?", "It keeps its id", "with 0 failures", within="dialog")
    page.sees("can happen again", "No active worker serves money: it waits until there is one.", within="dialog")
    page.press("Escape")
    page.until("document.querySelector('dialog') === null")
    assert job(shop_url, "charge-card-00001").state == "dead"
    page.open("#/dead")
    page.click(".causes > li:nth-child(2) button", "Replay 11")
    page.sees("Replay 11 jobs?", "All are due at once", "They can happen again.", within="dialog")
    assert "No active worker" not in page.text("dialog")  # two serve images


def test_a_job_that_is_dead_leads_to_the_others_of_its_cause(opened: Opened):
    page = opened("#/jobs/charge-card-00001")
    page.click("#error a", "41 other jobs died for the same cause")
    page.until("location.hash.startsWith('#/jobs?status=dead&error=')")
    page.until("document.querySelectorAll('.jobs tbody tr').length === 42")
    page.open("#/jobs/send-mail-00056")
    page.sees("2 other jobs died for the same cause", within="#error")


# ── what a blocked job waits for ──────────────────────────────────────────────────────────────


def test_a_blocked_job_tells_its_rule_and_how_each_parent_stands(opened: Opened, shop_url: str):
    page = opened("#/jobs/order-77-pack")
    page.sees("If one of them is dead or cancelled, this job becomes dead as well.", within=".standing")
    parents = "[...document.querySelectorAll('.parents li')].map((one) => one.innerText.split(/\\s+/).join(' '))"
    [charge, label] = page.ask(parents)
    assert charge.startswith("scheduled order-77-charge due in ")
    assert label == "ready order-77-label queue reports is paused"
    for rule, words in {"run": "runs anyway", "wait": "keeps waiting"}.items():
        spec = Spec(f"by-rule-{rule}", "send_mail", "mail", b"{}", token=rule, after=("report-0",), on_dependency=rule)  # type: ignore[arg-type]
        asked(shop_url, lambda app, spec=spec: app.enqueue([spec]))  # type: ignore[misc]
        page.open(f"#/jobs/by-rule-{rule}")
        page.sees("If that one is dead or cancelled", words, within=".standing")
    page.open("#/jobs?status=blocked")
    page.sees("waits for 2 jobs", "waits for 1 job", within="main")


# ── words and figures ─────────────────────────────────────────────────────────────────────────


def test_dead_letters_are_shares_of_all_and_mark_what_varies(looking: Page):
    looking.open("#/dead")
    first = ".causes > li:first-child"
    looking.sees("payments.example:‹…› within ‹…› s", within=f"{first} .error-text")
    looking.sees("All 42 jobs", "Archive 42 …", within=first)
    share = float(looking.ask(f"document.querySelector('{first} .bar > span').style.width").rstrip("%"))
    assert 70 < share < 75  # 42 of 57
    places = "[...one.children].map((button) => Math.round(button.getBoundingClientRect().x)).join()"
    edges = f"[...document.querySelectorAll('.causes .actions')].map((one) => {places})"
    assert len(set(looking.ask(edges))) == 1  # buttons stand in columns


def test_the_axis_of_the_chart_has_one_unit(looking: Page):
    looking.open("#/")
    looking.until("document.querySelectorAll('.chart .marks span').length === 3")
    marks = looking.ask("[...document.querySelectorAll('.chart .marks span')].map((one) => one.innerText)")

    assert marks[-1] == "0" and {mark.split("/")[1] for mark in marks[:-1]} == {"min"}


def test_integers_are_shown_and_copied_as_they_are_stored(opened: Opened, shop_url: str):
    large = {"id": 9_007_199_254_740_993, "list": [-12_345_678_901_234_567_890, 1.5, 42], "text": "9007199254740993"}
    spec = Spec("large", "send_mail", "mail", json.dumps(large).encode(), token="large")
    asked(shop_url, lambda app: app.enqueue([spec]))
    page = opened("#/jobs/large")
    page.sees("9007199254740993", "-12345678901234567890", "1.5", '"9007199254740993"', within="#payload")
    page.ask("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    page.click("#payload button.bare")
    assert json.loads(page.until("window.copied")) == large
    assert page.complaints() == []


def test_causes_that_were_not_all_looked_at_are_told_and_looked_for_further(opened: Opened):
    """A server that tells one cause at a time, and where to go on: after some of them the page asks before more."""
    page = opened("#/queues")
    page.ask(
        """{
          const real = window.fetch;
          window.fetch = async (url, wanted) => {
            const address = new URL(url, location.href);
            if (!address.pathname.endsWith("/api/dead")) return real(url, wanted);
            const at = Number(address.searchParams.get("cursor") ?? 0);
            address.searchParams.delete("cursor");
            const { causes } = await (await real(address, wanted)).json();
            const one = { ...causes[at % causes.length], count: 2, queues: { money: 2 } };
            const cursor = at + 1 < 28 ? String(at + 1) : null;
            return new Response(JSON.stringify({ total: 2, complete: cursor === null, causes: [one], cursor }));
          };
        }"""
    )
    page.ask("location.hash = '#/dead'")
    page.sees("More than 50 dead jobs of 4 causes", "the newest 50 are counted")
    page.sees("Replay 14+ …", within=".causes")
    page.click(".part button", "Search further")
    page.sees("56 dead jobs of 4 causes")
    page.until("document.querySelector('.part') === null")
    counts = "[...document.querySelectorAll('.causes .how-many strong')].map((one) => one.innerText)"
    assert page.ask(counts) == ["14"] * 4
    assert page.complaints() == []


def test_lists_and_counts_that_are_a_part_are_told_as_one(opened: Opened):
    page = opened("#/schedules")
    page.ask(
        """{
          const real = window.fetch;
          window.fetch = async (url, wanted) => {
            const answer = await real(url, wanted);
            if (!/[/]api[/](jobs|queues|overview)([?]|$)/.test(String(url))) return answer;
            return new Response(JSON.stringify({ ...(await answer.json()), complete: false }));
          };
        }"""
    )
    for where, words in {
        "#/queues": "the newest are counted",
        "#/": "the newest are counted",
        "#/jobs?status=completed": "these are among the newest",
    }.items():
        page.ask(f"location.hash = {where!r}")
        page.sees("Not all finished jobs were examined", words, within=".part")
        assert page.count(".part button") == 0  # a server has no such bound that could be moved
