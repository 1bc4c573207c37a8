"""The page: everything is on it, nothing is loaded, nothing from outside becomes markup."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from millrace.spark.report import html
from millrace.spark.report.analytics_model import Analytics, CauseTrend, Cost, Forecast, TaskTrend
from millrace.spark.report.model import (
    Failures,
    Fairness,
    FeedGap,
    FigureGroup,
    QueueFlow,
    Report,
    Source,
    TaskFigures,
    Tasks,
    WorkerFigures,
    WorkerTable,
)
from millrace.spark.report.period import DAY
from tests.narrowing import the
from tests.spark.report.made import BEGIN, BROKEN, HOSTILE, PERIOD, STEPS, a_cause, a_report, an_analytics, nothing

ALWAYS = ["throughput", "waiting", "running", "failures", "workers", "tasks", "fairness", "audit"]
SECTIONS = [
    *("throughput", "backlog", "waiting", "running", "trends", "objectives", "failures", "causes"),
    *("workers", "tasks", "cost", "fairness", "audit"),
]
STYLE = (files("millrace.spark.report") / "style.css").read_text()


class Reader(HTMLParser):
    """The text and the elements of a page, as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data):
        self.text += data + " "


def text_of(report: Report) -> str:
    page = re.sub(r"<(style|script)>.*?</\1>", "", html(report), flags=re.DOTALL)
    return re.sub(r"\s+", " ", Reader(page).text)


def test_a_section_of_the_analytics_without_anything_to_say_is_left_out():
    for analytics in (None, Analytics(DAY, PERIOD)):
        page = html(a_report(analytics=analytics))
        assert re.findall(r'<section id="(\w+)"', page) == ALWAYS


def test_tasks_that_were_compared_and_did_not_change_are_counted():
    assert "No task became clearly slower or faster than in the day before; 6 tasks were compared." in text_of(
        a_report(analytics=an_analytics(trends=[]))
    )


def test_the_analytics_say_what_matters_in_a_sentence():
    text = text_of(a_report())

    for words in (
        "299 jobs are open at the end. The backlog grows in images.",
        "mail is empty in 2 h to 5 h.",
        "make_thumbnail became slower than in the day before.",
        "the new one takes longer in 83 of 100 cases, rather than in 50.",
        "1 of 2 objectives was missed over 28 days. send: 120 of 5,000 jobs were too late or died.",
        "In the last day: 1 new cause of failure, and 1 that is much more frequent than before.",
        "In the last day, make_thumbnail took 90 % of the time of all handlers. 4.5 % of the time went to runs that",
    ):
        assert words in text


def test_names_in_the_analytics_are_text():
    hostile = an_analytics(
        open_at=[(HOSTILE, [1] * 48)],
        forecasts=[Forecast(HOSTILE, 1, 1, 1, "growing")],
        trends=[TaskTrend(HOSTILE, "slower", 2, 1, 2, 1, 0.9)],
        task_costs=[Cost(HOSTILE, HOSTILE, 1, 1, 1, 1.0)],
        group_costs=[Cost(HOSTILE, None, 1, 1, 1, 1.0)],
        causes=[CauseTrend(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, "new", 1, 0, BEGIN, BEGIN)],
    )

    assert "<script>alert" not in html(a_report(analytics=hostile))


def test_every_section_is_there_in_order_with_its_figures():
    page = html(a_report())
    text = text_of(a_report())

    assert re.findall(r'<section id="(\w+)"', page) == SECTIONS
    for word in (
        "5,020",
        "95 % at most 900 ms",
        "Two days of a shop",
        "no answer from 10.0.0.7",
        "cc329050c5",
        "job-17",
    ):
        assert word in text
    assert "make_thumbnail took 98.8 % of all running time" in text
    assert "In mail, acme held 90 % of the time that its 2 groups got" in text
    assert "3 more causes, with 17 failures" in text and "2 more workers, with 12 s of work" in text
    assert page.count('class="wide"') == page.count('class="narrow"') == 7


def test_every_section_says_so_when_there_is_nothing_to_show():
    page, text = html(nothing()), text_of(nothing())

    assert re.findall(r'<section id="(\w+)"', page) == ALWAYS
    assert page.count('class="none"') == len(ALWAYS) and 'class="chart"' not in page and "<table" not in page
    for sentence in (
        "No job was completed in this period.",
        "Nothing failed in this period.",
        "No worker ended a run in this period.",
        "No run ended in this period.",
        "No job with a group ran in this period.",
        "The audit was left out.",
    ):
        assert sentence in text


def test_retries_without_deaths_and_a_lake_without_groups_are_told_apart_from_nothing():
    calm = a_report(
        failures=Failures([1] * len(STEPS), [0] * len(STEPS), [a_cause(deaths=0)]), fairness=[], groups_known=False
    )

    assert "No dead letters in this period." in text_of(calm)
    assert "run the pipeline with --groups" in text_of(calm)


def test_a_sound_audit_is_green_and_a_broken_one_is_red_and_names_the_jobs():
    assert 'class="banner good"' in html(a_report()) and "All guarantees hold" in text_of(a_report())

    page, text = html(a_report(audit=BROKEN)), text_of(a_report(audit=BROKEN))

    assert 'class="banner bad"' in page and 'class="banner good"' not in page
    assert "Conservation is broken: 3 findings, in 2 jobs." in text and "Jobs: job-17 , job-18" in text
    assert "claimed while running" in text and "1 more: millrace pipeline audit names them." in text
    assert 'class="banner unknown"' in html(a_report(audit=None))


def test_what_is_missing_is_said_before_the_figures():
    source = Source(
        "s", 3, BEGIN, 9, BEGIN, 41, whole=False, gaps=[FeedGap(2, 1_234)], dropped=[("events", "2026-11-01")]
    )
    text = text_of(a_report(source=source))

    assert "A gap: 1,234 events were removed by the store's retention before take 2." in text
    assert "does not begin with the store's first event" in text
    assert "Retention dropped the rows of events from before 2026-11-01." in text
    assert "41 events behind the store" in text
    assert 'class="notes"' not in html(a_report())


def test_the_page_needs_nothing_but_itself():
    page = html(a_report())
    reader = Reader(page)

    assert "http:" not in page and "https:" not in page and "url(" not in page and "@import" not in page
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(reader.tags)
    assert not [name for _, name, _ in reader.attributes if name in ("src", "style", "srcset") or name.startswith("on")]
    assert [value for _, name, value in reader.attributes if name == "href"] == ["#audit"]


def test_the_policy_allows_its_own_style_and_script_and_nothing_else():
    page = html(a_report())
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)

    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for tag in ("style", "script")
        for text in re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    ]
    assert policy == f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'"


def test_whatever_comes_from_outside_stays_text():
    hostile = a_report(
        title=HOSTILE,
        source=Source(HOSTILE, 1, BEGIN, 1),
        queues=[QueueFlow(HOSTILE, 1, 1, 0, 0, [1] * len(STEPS))],
        failures=Failures(
            [1] * len(STEPS),
            [1] * len(STEPS),
            [a_cause(task=HOSTILE, error_type=HOSTILE, cause=HOSTILE, sample=HOSTILE * 9, sample_job=HOSTILE)],
        ),
        workers=WorkerTable([WorkerFigures(HOSTILE, 1, 1, 1, 1.0, [1.0] * len(STEPS), BEGIN, BEGIN)]),
        tasks=Tasks([TaskFigures(HOSTILE, HOSTILE, 1, the(a_report().waits.in_all))]),
        fairness=[Fairness(HOSTILE, 0.1, [FigureGroup(HOSTILE, 1, 1, 0.9, 1, 1), FigureGroup("b", 1, 1, 0.1, 1, 1)])],
        audit=replace(
            BROKEN, findings=[replace(one, job=HOSTILE, text=HOSTILE, rule=HOSTILE) for one in BROKEN.findings]
        ),
    )
    page = html(hostile)
    page.encode()

    assert Reader(page).tags.count("script") == Reader(html(a_report())).tags.count("script") == 1
    assert "b" not in Reader(page).tags
    assert "\x1b" not in page and "\u202e" not in page
    assert Reader(page).text.count("<script>alert(1)</script>") >= 15


def test_a_long_message_is_cut():
    page = html(a_report(failures=Failures([1] * len(STEPS), [0] * len(STEPS), [a_cause(sample="x" * 5_000)])))

    assert "x" * 280 + "…" in page and "x" * 281 not in page


def test_it_is_made_without_spark():
    program = "import sys; import millrace.spark.report as r; r.html; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


# ── colours ───────────────────────────────────────────────────────────────────────────────────


def palette(dark: bool) -> dict[str, str]:
    light, night = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    return dict(re.findall(r"--([\w-]+): (#\w{6})", night if dark else light))


def contrast(one: str, other: str) -> float:
    """As WCAG 2 measures it."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        r, g, b = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_marks_have_the_contrast_that_aa_asks_for(dark: bool):
    of = palette(dark)
    text = [(name, back) for name in ("text", "soft", "link") for back in ("page", "card")]
    text += [("good", "good-back"), ("bad", "bad-back"), ("bad", "card"), ("note", "note-back"), ("text", "good-back")]
    marks = [*(f"s{n}" for n in range(7)), "retried", "died", "heat"]

    assert palette(True).keys() == palette(False).keys()
    assert {pair: ratio for pair in text if (ratio := contrast(of[pair[0]], of[pair[1]])) < 4.5} == {}
    assert {mark: ratio for mark in marks if (ratio := contrast(of[mark], of["card"])) < 3} == {}


def test_the_two_kinds_of_failure_differ_in_lightness_and_not_only_in_hue():
    for dark in (False, True):
        assert contrast(palette(dark)["retried"], palette(dark)["died"]) > 1.5


def test_paper_is_always_light():
    assert "@media screen and (prefers-color-scheme: dark)" in STYLE
