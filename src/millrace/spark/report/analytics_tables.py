"""The tables of the sections from the analytics views."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.spark.report import charts, formats
from millrace.spark.report.analytics_model import CauseTrend, Cost, Forecast, ObjectiveFigures, TaskTrend
from millrace.spark.report.findings import empty_in
from millrace.spark.report.formats import count, length, percent
from millrace.spark.report.svg import Markup, join, tag
from millrace.spark.report.tables import NAME, ReportColumn, cause_cell, table

LOOKS = {"page": "bad", "ticket": "note", "growing": "bad", "draining": "good", "new": "bad", "rising": "note"}
BURNS = ("burn 1 h", "6 h", "3 d")


def forecasts(found: Sequence[Forecast], looks: dict[str, str], end: int) -> Markup:
    """Return the table of the open jobs at `end`, the end of the period."""
    columns = [
        ReportColumn("queue", NAME),
        *map(ReportColumn, ("open", "in / h", "out / h")),
        ReportColumn("", "mark"),
        ReportColumn("empty in"),
    ]
    rows = [
        [
            join([charts.swatch(looks.get(one.queue, "s0")), " ", one.queue]),
            tag("strong", count(one.open_jobs)),
            formats.short(one.arrived_per_hour),
            formats.short(one.finished_per_hour),
            _pill(one.trend),
            empty_in(one, end) or "–",
        ]
        for one in found
    ]
    return table("Open jobs by queue", columns, rows)


def trends(found: Sequence[TaskTrend]) -> Markup:
    columns = [
        ReportColumn("task", NAME),
        *map(ReportColumn, ("p50 before", "p50 now", "change", "p95 before", "p95 now", "change")),
    ]
    rows = [
        [
            one.task,
            length(one.previous_p50),
            tag("strong", length(one.p50)),
            _change(one.p50, one.previous_p50),
            length(one.previous_p95),
            tag("strong", length(one.p95)),
            _change(one.p95, one.previous_p95),
        ]
        for one in found
    ]
    return table("Tasks that became slower or faster", columns, rows)


def _change(now: float, before: float) -> str:
    change = now / max(before, 0.5) - 1
    return f"× {now / max(before, 0.5):.1f}" if change >= 1 else f"{change * 100:+.0f} %"


def objectives(found: Sequence[ObjectiveFigures]) -> Markup:
    columns = [
        ReportColumn("objective", NAME),
        ReportColumn("missed per day", "over"),
        *map(ReportColumn, ("kept", "budget left", *BURNS)),
        ReportColumn("", "mark"),
    ]
    rows = [
        [
            join([tag("strong", one.task), " ", tag("span", _promise(one), class_="where")]),
            charts.spark(one.missed_by_day, "died"),
            percent(one.kept),
            tag("span", _budget(one.budget_left), class_="low" if one.budget_left < 0 else None),
            *("–" if burn is None else f"{burn:.1f}" for burn in one.burn),
            _pill(one.alert) if one.alert else "",
        ]
        for one in found
    ]
    last = (
        "The error budget is the number of jobs of 28 days that may be late or dead. A burn rate of 1 uses exactly all "
        "of it; 14.4 uses half of it in a day."
    )
    return table("Objectives", columns, rows, last)


def _promise(one: ObjectiveFigures) -> str:
    return f"{percent(one.target)} {one.measure} within {length(one.within)}"


def _budget(left: float) -> str:
    return percent(left) if left >= 0 else f"overspent × {1 - left:.1f}"


def causes(found: Sequence[CauseTrend]) -> Markup:
    columns = [ReportColumn("", "mark"), ReportColumn("cause", NAME), *map(ReportColumn, ("jobs", "expected"))]
    rows = [
        [
            _pill(one.trend),
            cause_cell(one, one.sample or "", one.error_type or "no error"),
            tag("strong", count(one.jobs)),
            "none" if one.trend == "new" else formats.short(one.expected),
        ]
        for one in found
    ]
    return tag("div", table("New and rising causes", columns, rows), class_="causes")


def costs(label: str, found: Sequence[Cost], look: str) -> Markup:
    most = max((one.busy for one in found), default=0) or 1
    columns = [
        ReportColumn(label, NAME),
        ReportColumn("", "over"),
        *map(ReportColumn, ("share", "busy", "runs", "failed runs took")),
    ]
    rows = [
        [
            one.name if one.queue is None else join([one.name, " ", tag("span", one.queue, class_="where")]),
            charts.bar(one.busy / most, look),
            tag("strong", percent(one.share)),
            length(one.busy),
            count(one.runs),
            length(one.failed) if one.failed else "–",
        ]
        for one in found
    ]
    rest = 1 - sum(one.share for one in found)
    return table(
        f"Cost by {label}", columns, rows, f"Others took {percent(rest)} of the time." if rest > 5e-4 else None
    )


def _pill(word: str) -> Markup:
    return tag("span", word, class_=f"pill {LOOKS.get(word, 'plain')}")
