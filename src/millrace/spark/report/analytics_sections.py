"""The sections of a page that show rows of the analytics views. A section with nothing to say is left out."""

from __future__ import annotations

from millrace.spark.report import analytics_tables, charts, findings
from millrace.spark.report.charts import FULL, Series
from millrace.spark.report.model import Report
from millrace.spark.report.sections import COLOURS, by_queue, draw_chart, in_widths, section
from millrace.spark.report.svg import Markup, join, tag

NOTHING = Markup("")


def backlog(report: Report) -> Markup:
    found = report.analytics
    if found is None or not any(any(values) for _, values in found.open_at):
        return NOTHING
    _, looks = by_queue(report.queues)
    series = [Series(queue, values, looks[queue]) for queue, values in found.open_at if queue in looks and any(values)]
    rest = [values for queue, values in found.open_at if queue not in looks and any(values)]
    if rest:
        series.append(Series("other queues", [sum(values) for values in zip(*rest, strict=True)], "s0"))
    finding = findings.backlog(found)
    chart = draw_chart(charts.columns, found.period, series, finding, "open jobs: due, and not finished")
    rows = None
    if found.forecasts:
        rows = analytics_tables.forecasts(found.forecasts[: 2 * COLOURS], looks, found.period.until)
    return section("backlog", "Backlog", finding, chart, rows)


def trends(report: Report) -> Markup:
    found = report.analytics
    if found is None or not found.compared:
        return NOTHING
    finding = findings.trends(found)
    if not found.trends:
        return section("trends", "Slower and faster tasks", finding, None, None)
    rows = [(one.task, one.previous_p50, one.p50, one.trend) for one in found.trends]
    legend = tag(
        "ul",
        tag("li", charts.swatch("s0"), " before"),
        tag("li", charts.swatch("slower"), " slower"),
        tag("li", charts.swatch("faster"), " faster"),
        tag("li", "median running time; logarithmic", class_="unit"),
        class_="legend",
    )
    drawn = in_widths(lambda width: charts.shifts(rows, width, finding), FULL)
    note = tag(
        "p",
        "Named are changes that chance and the usual differences between days do not explain, of at least 10 %.",
        class_="rest",
    )
    table = join([analytics_tables.trends(found.trends), note])
    return section("trends", "Slower and faster tasks", finding, join([legend, drawn]), table, stacked=True)


def objectives(report: Report) -> Markup:
    found = report.analytics
    if found is None or not found.objectives:
        return NOTHING
    rows = analytics_tables.objectives(found.objectives)
    return section("objectives", "Objectives", findings.objectives(found.objectives), None, rows, stacked=True)


def causes(report: Report) -> Markup:
    found = report.analytics
    if found is None or not found.causes:
        return NOTHING
    rows = analytics_tables.causes(found.causes)
    return section("causes", "New and rising causes", findings.causes(found), None, rows, stacked=True)


def cost(report: Report) -> Markup:
    found = report.analytics
    if found is None or not found.task_costs:
        return NOTHING
    rows = analytics_tables.costs("task", found.task_costs, "s1")
    if any(one.name != "no group" for one in found.group_costs):
        rows = join([rows, tag("h3", "By group"), analytics_tables.costs("group", found.group_costs, "s3")])
    return section("cost", "Cost", findings.cost(found), None, rows, stacked=True)
