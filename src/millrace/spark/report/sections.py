"""The sections of a report page. Each has a heading, the main result, a chart, and a table of the exact figures. The
sections from the analytics views are in analytics_sections.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millrace.spark.report import charts, findings, formats, tables
from millrace.spark.report.charts import FULL, NARROW, WIDE, Series
from millrace.spark.report.formats import count, length
from millrace.spark.report.model import Lengths, QueueFlow, Report
from millrace.spark.report.period import Period
from millrace.spark.report.svg import Markup, join, tag

COLOURS = 6  # series with their own colour; the rest is combined


def throughput(report: Report) -> Markup:
    series, looks = by_queue(report.queues)
    finding = findings.throughput(report)
    chart = None
    if report.period is not None and any(any(one.values) for one in series):
        named = f"jobs completed per {formats.step_name(report.period.step)}"
        chart = draw_chart(charts.columns, report.period, series, finding, named)
    rows = tables.queues(report.queues, looks) if report.queues else None
    return section("throughput", "Throughput", finding, chart, rows)


def by_queue(queues: Sequence[QueueFlow]) -> tuple[list[Series], dict[str, str]]:
    """Return the series of the busiest queues, and one more series for all other queues. Also return the CSS class of
    each of the busiest queues. The combined series is the last, so it is on top of the stacked columns.
    """
    chosen = [queue for queue in queues if queue.completed][:COLOURS]
    looks = {queue.queue: f"s{n}" for n, queue in enumerate(chosen, 1)}
    series = [Series(queue.queue, queue.completed_at, looks[queue.queue]) for queue in chosen]
    rest = [queue for queue in queues if queue.queue not in looks and queue.completed]
    if rest:
        name = rest[0].queue if len(rest) == 1 else "other queues"
        sums = [sum(values) for values in zip(*(queue.completed_at for queue in rest), strict=True)]
        series.append(Series(name, sums, "s0"))
    return series, looks


def waits(report: Report) -> Markup:
    return _lengths(
        "waiting",
        "Waiting time",
        "from due to claimed",
        report.waits,
        report.period,
        "waited",
    )


def runs(report: Report) -> Markup:
    return _lengths(
        "running",
        "Running time",
        "from claimed to ended",
        report.runs,
        report.period,
        "took",
    )


def _lengths(name: str, title: str, what: str, found: Lengths, period: Period | None, verb: str) -> Markup:
    finding = findings.lengths(found, period, "ended a run" if verb == "took" and found.in_all is None else verb)
    chart = None
    if period is not None and any(found.over_time):
        series = [
            Series("p50", [None if one is None else one.p50 for one in found.over_time], "q50"),
            Series("p95", [None if one is None else one.p95 for one in found.over_time], "q95"),
            Series("p99", [None if one is None else one.p99 for one in found.over_time], "q99"),
        ]
        chart = draw_chart(charts.lines, period, series, finding, f"{what}; logarithmic")
    return section(name, title, finding, chart, tables.lengths(title, found) if found.in_all else None)


def failures(report: Report) -> Markup:
    found, period = report.failures, report.period
    finding = findings.failures(found, period)
    chart = None
    if period is not None and (any(found.retries_at) or any(found.deaths_at)):
        series = [Series("died", found.deaths_at, "died"), Series("tried again", found.retries_at, "retried")]
        unit = f"failures per {formats.step_name(period.step)}"
        chart = draw_chart(charts.columns, period, series, finding, unit, FULL)
    last = None
    if found.other_causes:
        last = f"{count(found.other_causes)} more causes, with {count(found.other_failures)} failures."
    rows = tables.causes(found.causes, last) if found.causes else None
    calm = None if chart is None or any(found.deaths_at) else tag("p", "No dead letters in this period.", class_="calm")
    return section("failures", "Retries and dead letters", finding, chart, rows, calm, stacked=True)


def workers(report: Report) -> Markup:
    found, period = report.workers, report.period
    finding = findings.workers(found)
    chart = None
    if period is not None and found.busiest:
        rows = [(worker.name, worker.held_at) for worker in found.busiest]
        greatest = max((value or 0 for _, values in rows for value in values), default=0)
        drawn = in_widths(lambda width: charts.heat(period, rows, width, finding))
        chart = join([_shades(greatest), drawn])
    last = f"{count(found.others)} more workers, with {length(found.others_busy)} of work." if found.others else None
    return section(
        "workers", "Worker use", finding, chart, tables.workers(found.busiest, last) if found.busiest else None
    )


def _shades(greatest: float) -> Markup:
    marks = [charts.swatch(f"h{level}") for level in range(1, charts.LEVELS + 1)]
    text = [tag("li", "0 ", *marks, f" {greatest:.3g}"), tag("li", "jobs held on average", class_="unit")]
    return tag("ul", *text, class_="legend")


def tasks(report: Report) -> Markup:
    found = report.tasks
    last = f"{count(found.others)} more tasks, with {length(found.others_total)} in all." if found.others else None
    rows = tables.tasks(found.slowest, last) if found.slowest else None
    return section("tasks", "Slowest tasks", findings.tasks(found), None, rows, stacked=True)


def fairness(report: Report) -> Markup:
    parts = [
        join(
            [
                tag("h3", queue.queue, " ", tag("small", f"evenness {queue.evenness:.2f}")),
                tables.groups(queue),
            ]
        )
        for queue in sorted(report.fairness, key=lambda queue: queue.evenness)
    ]
    note = tag(
        "p",
        "Evenness is 1 when all groups of a queue held workers for the same time, and 1/n when one of n did.",
        class_="rest",
    )
    rows = join([*parts, note]) if parts else None
    return section(
        "fairness",
        "Fairness over groups",
        findings.fairness(report.fairness, report.groups_known),
        None,
        rows,
        stacked=True,
    )


def audit(report: Report) -> Markup:
    found = report.audit
    rows = None
    if found is not None:
        parts = [tables.promises(found)]
        if found.findings:
            parts.append(tables.findings(found))
        rows = join(parts)
    return section("audit", "Audit", findings.audit(report), None, rows, stacked=True)


# ── parts ─────────────────────────────────────────────────────────────────────────────────────


def section(
    name: str,
    title: str,
    finding: str,
    chart: Markup | None,
    rows: Markup | None,
    more: Markup | None = None,
    stacked: bool = False,
) -> Markup:
    """Return a section: a heading, the sentence `finding`, then the chart and the table (`rows`). They are side by
    side, or below each other with `stacked`. Without chart and table, the sentence is styled as a note.
    """
    top = tag("h2", title, id=f"{name}-title")
    content: list[object] = [top, tag("p", finding, class_="finding" if chart or rows else "none")]
    figures = [tag("figure", chart)] if chart else []
    if rows:
        figures.append(tag("div", rows))
    if figures:
        content.append(tag("div", *figures, class_="stack" if stacked or len(figures) == 1 else "pair"))
    if more:
        content.append(more)
    return tag("section", *content, id=name, aria_labelledby=f"{name}-title")


Draw = Callable[[Period, Sequence[Series], int, str], Markup]


def draw_chart(draw: Draw, period: Period, series: Sequence[Series], label: str, unit: str, *more: int) -> Markup:
    marks = [tag("li", charts.swatch(one.look), " ", one.name) for one in series] if len(series) > 1 else []
    legend = tag("ul", *marks, tag("li", unit, class_="unit"), class_="legend")
    return join([legend, in_widths(lambda width: draw(period, series, width, label), *more)])


def in_widths(draw: Callable[[int], Markup], *more: int) -> Markup:
    """Return the chart drawn for a screen, for a phone, and in the widths in `more`. CSS shows one of these
    drawings.
    """
    sizes = {FULL: "full", WIDE: "wide", NARROW: "narrow"}
    return join(tag("div", draw(width), class_=sizes[width]) for width in (*more, WIDE, NARROW))
