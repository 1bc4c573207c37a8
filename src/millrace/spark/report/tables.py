"""The tables of a page, which show the exact figures of the charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.spark.report import charts, formats
from millrace.spark.report.analytics_model import CauseTrend
from millrace.spark.report.formats import count, length, percent
from millrace.spark.report.model import (
    AuditFigures,
    CauseFigures,
    Fairness,
    Lengths,
    QueueFlow,
    TaskFigures,
    WorkerFigures,
)
from millrace.spark.report.svg import Markup, join, tag

LONGEST_MESSAGE = 280
SHOWN_FINDINGS = 50


@dataclass(frozen=True)
class ReportColumn:
    name: str
    look: str = "number"


NAME = "name"


def table(label: str, columns: Sequence[ReportColumn], rows: Sequence[Sequence[object]], last: object = None) -> Markup:
    """Return a table in a box that scrolls. `last` is the text of a line below the table, such as how many rows were
    left out.
    """
    head = tag("tr", *(tag("th", column.name, scope="col", class_=column.look) for column in columns))
    body = [
        tag("tr", *(tag("td", cell, class_=column.look) for cell, column in zip(row, columns, strict=True)))
        for row in rows
    ]
    drawn = tag("table", tag("thead", head), tag("tbody", *body))
    box = tag("div", drawn, class_="scroll", role="region", aria_label=label, tabindex=0)
    return join([box, tag("p", last, class_="rest")]) if last else box


def queues(found: Sequence[QueueFlow], looks: dict[str, str], most: int = 15) -> Markup:
    columns = [ReportColumn("queue", NAME), *map(ReportColumn, ("accepted", "completed", "died", "retries"))]
    rows = [
        [
            join([charts.swatch(looks.get(one.queue, "s0")), " ", one.queue]),
            *map(count, (one.accepted, one.completed, one.died, one.retries)),
        ]
        for one in found[:most]
    ]
    return table("Queues", columns, rows, _more(len(found) - most, "queue"))


def lengths(label: str, found: Lengths, most: int = 12) -> Markup:
    columns = [ReportColumn("queue", NAME), *map(ReportColumn, ("runs", "p50", "p95", "p99", "longest"))]
    every = [] if found.in_all is None else [("all", found.in_all)]
    rows = [
        [name, count(one.runs), length(one.p50), length(one.p95), length(one.p99), length(one.longest)]
        for name, one in [*every, *found.by_queue[:most]]
    ]
    return table(label, columns, rows, _more(len(found.by_queue) - most, "queue"))


def causes(found: Sequence[CauseFigures], last: str | None) -> Markup:
    columns = [
        ReportColumn("cause", NAME),
        ReportColumn("over time", "over"),
        ReportColumn("retries"),
        ReportColumn("died"),
    ]
    rows = [
        [
            cause_cell(one, one.cause if one.sample is None else one.sample, one.error_type or one.cause or "no error"),
            charts.spark(one.failures_at, "died" if one.deaths else "retried") if one.failures_at else "",
            count(one.retries),
            tag("strong", count(one.deaths)) if one.deaths else "0",
        ]
        for one in found
    ]
    return tag("div", table("Causes of failure", columns, rows, last), class_="causes")


def cause_cell(one: CauseFigures | CauseTrend, sample: str, name: str) -> Markup:
    sample = sample if len(sample) <= LONGEST_MESSAGE else sample[:LONGEST_MESSAGE] + "…"
    title = join([tag("strong", name), " in ", one.task])
    seen = f"{formats.stamp(one.first_at)} to {formats.stamp(one.last_at)}"
    where = join([seen, " · job ", tag("code", one.sample_job), " · ", tag("code", one.fingerprint)])
    return join([tag("div", title), tag("div", sample, class_="message"), tag("div", where, class_="where")])


def workers(found: Sequence[WorkerFigures], last: str | None) -> Markup:
    columns = [ReportColumn("worker", NAME), *map(ReportColumn, ("runs", "failed", "held jobs for", "share"))]
    rows = [[one.name, count(one.runs), count(one.failed), length(one.busy), percent(one.share)] for one in found]
    return table("Workers", columns, rows, last)


def tasks(found: Sequence[TaskFigures], last: str | None) -> Markup:
    most = max((task.total for task in found), default=0) or 1
    columns = [
        ReportColumn("task", NAME),
        ReportColumn("", "over"),
        *map(ReportColumn, ("total", "runs", "p50", "p95", "p99", "longest")),
    ]
    rows = [
        [
            join([one.task, " ", tag("span", one.queue, class_="where")]),
            charts.bar(one.total / most, "s1"),
            tag("strong", length(one.total)),
            count(one.times.runs),
            *map(length, (one.times.p50, one.times.p95, one.times.p99, one.times.longest)),
        ]
        for one in found
    ]
    return table("Tasks by total running time", columns, rows, last)


def groups(found: Fairness) -> Markup:
    columns = [
        ReportColumn("group", NAME),
        ReportColumn("", "over"),
        *map(ReportColumn, ("share", "runs", "time held", "mean wait", "p95 wait")),
    ]
    most = max((group.share for group in found.groups), default=0.0) or 1.0
    rows = [
        [
            one.name,
            charts.bar(one.share / most, "s3"),
            tag("strong", percent(one.share)),
            count(one.runs),
            length(one.busy),
            *("–" if value is None else length(value) for value in (one.mean_wait, one.p95_wait)),
        ]
        for one in found.groups
    ]
    last = (
        f"{count(found.others)} more groups with {percent(found.others_share)} of the time." if found.others else None
    )
    return table(f"Groups of {found.queue}", columns, rows, last)


def promises(found: AuditFigures) -> Markup:
    rows = [
        [_mark(promise.kept), promise.name, tag("span", promise.figures, class_="where")] for promise in found.promises
    ]
    return table(
        "Promises", [ReportColumn("", "mark"), ReportColumn("promise", NAME), ReportColumn("figures", NAME)], rows
    )


def findings(found: AuditFigures) -> Markup:
    rows = [[one.rule, tag("code", one.job), one.text] for one in found.findings[:SHOWN_FINDINGS]]
    left = found.broken - len(rows)
    last = f"{count(left)} more: millrace pipeline audit names them." if left > 0 else None
    columns = [ReportColumn("rule", NAME), ReportColumn("job", NAME), ReportColumn("what was found", NAME)]
    return table("Findings", columns, rows, last)


def _mark(kept: bool) -> Markup:
    return tag("span", "kept" if kept else "broken", class_="pill good" if kept else "pill bad")


def _more(number: int, noun: str) -> str | None:
    return f"{count(number)} more {noun}{'s' if number > 1 else ''} not listed." if number > 0 else None
