"""Renders a report as one self-contained HTML document, for screen, phone and paper."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from millrace.spark.report import analytics_sections, findings, formats, sections
from millrace.spark.report.formats import count, length
from millrace.spark.report.model import Quantiles, Report
from millrace.spark.report.svg import Markup, tag

SECTIONS = (
    sections.throughput,
    analytics_sections.backlog,
    sections.waits,
    sections.runs,
    analytics_sections.trends,
    analytics_sections.objectives,
    sections.failures,
    analytics_sections.causes,
    sections.workers,
    sections.tasks,
    analytics_sections.cost,
    sections.fairness,
    sections.audit,
)


def html(report: Report) -> str:
    """Return the report as an HTML page. The page loads no other files, and its content security policy forbids
    this.
    """
    style, script = _file("style.css"), _file("hover.js")
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=Markup(policy)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content="Millrace"),
        tag("title", report.title),
        tag("style", Markup(style)),
    )
    parts = [_header(report), _banner(report), _tiles(report), _notes(report), *(part(report) for part in SECTIONS)]
    body = tag("body", tag("main", *parts, _footer(report)), tag("script", Markup(script)))
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def _file(name: str) -> str:
    return (files("millrace.spark.report") / name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# ── the top ───────────────────────────────────────────────────────────────────────────────────


def _header(report: Report) -> Markup:
    period = report.period
    when = "No events" if period is None else formats.between(period.since, period.until)
    step = "" if period is None else f" · {length(period.length)}, by {formats.step_name(period.step)}"
    return tag(
        "header",
        tag("p", "Millrace", class_="brand"),
        tag("h1", report.title),
        tag("p", when, step, class_="when"),
    )


def _banner(report: Report) -> Markup:
    audit = report.audit
    look = "unknown" if audit is None else "good" if audit.sound else "bad"
    word = {"unknown": "Not audited", "good": "Conserved", "bad": "Broken"}[look]
    text = [tag("strong", word), tag("span", findings.audit(report))]
    if audit is not None and not audit.sound and audit.jobs:
        named = audit.jobs[:5]
        more = f" and {count(len(audit.jobs) - 5)} more" if len(audit.jobs) > 5 else ""
        text.append(tag("span", "Jobs: ", *_separated([tag("code", job) for job in named]), more))
    return tag("a", *text, href="#audit", class_=f"banner {look}")


def _tiles(report: Report) -> Markup:
    of, source = report.totals, report.source
    wait = report.waits.in_all
    finished = of.completed + of.died
    share = f"{formats.percent(of.completed / finished)} of those that ended" if finished else "none ended"
    behind = "" if source.behind is None else f"{count(source.behind)} events behind the store"
    lag = "no events" if source.newest_at is None else formats.ago(source.newest_at, report.made_at)
    facts = [
        ("Jobs accepted", count(of.accepted), f"{count(of.cancelled)} cancelled"),
        ("Completed", count(of.completed), share),
        ("Died", count(of.died), f"{count(of.dead_now)} dead at the end", "bad" if of.died else ""),
        ("Retries", count(of.retries), f"{count(of.reclaimed)} runs were taken over"),
        ("Median wait", "–" if wait is None else length(wait.p50), "" if wait is None else f"p95 {length(wait.p95)}"),
        _tile_of_runs(report.runs.in_all),
        (
            "Open at the end",
            count(of.waiting + of.running),
            f"{count(of.waiting)} waiting, {count(of.running)} running",
        ),
        ("Lag of the lake", lag, behind or "since its newest event"),
    ]
    return tag("dl", *(_tile(*fact) for fact in facts), class_="tiles")


def _tile_of_runs(runs: Quantiles | None) -> tuple[str, str, str]:
    return ("Median run", "–", "") if runs is None else ("Median run", length(runs.p50), f"p95 {length(runs.p95)}")


def _tile(name: str, value: str, more: str, look: str = "") -> Markup:
    return tag("div", tag("dt", name), tag("dd", value, class_=f"value {look}".strip()), tag("dd", more, class_="more"))


def _notes(report: Report) -> Markup:
    """Return the limitations of the figures as a list on the page, so that readers do not misunderstand them; empty if
    there are none.
    """
    source = report.source
    said = [
        f"A gap: {count(gap.lost)} events were removed by the store's retention before take {gap.take}. "
        "What happened in them is missing everywhere on this page."
        for gap in source.gaps
    ]
    if not source.whole:
        said.append("The lake does not begin with the store's first event: jobs that were older are known in part.")
    said += [f"Retention dropped the rows of {table} from before {day}." for table, day in source.dropped]
    return tag("ul", *(tag("li", text) for text in said), class_="notes") if said else Markup("")


def _footer(report: Report) -> Markup:
    source = report.source
    return tag(
        "footer",
        f"Made {formats.stamp(report.made_at)} UTC from the lake of ",
        tag("code", source.store),
        f": {count(source.events)} events, take {count(source.take)}, written {formats.stamp(source.written_at)} UTC. ",
        "All times are UTC. Percentiles are within 2 %.",
    )


def _separated(parts: Sequence[Markup]) -> list[str]:
    return [piece for part in parts for piece in (part, ", ")][:-1]
