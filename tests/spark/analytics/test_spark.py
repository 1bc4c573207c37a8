"""The views over a real lake: Spark and DuckDB agree on every row, and the report shows what has changed."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from millrace.domain.errors import InvalidInput
from millrace.domain.event import Event, Kind
from millrace.spark.analytics import Objective, register_views
from millrace.spark.analytics.views import TABLES, VIEWS, script
from millrace.spark.lake import Lake
from millrace.spark.report import Report, Wanted, html, report_of
from tests.spark.analytics.history import BROKEN, BURST, DONE, END, LATELY, RISING, SLOWER, WAITING
from tests.spark.report.week import DAY

START = Objective("charge_card", "start", 60_000, 0.95)
FINISH = Objective("send_receipt", "finish", 3_600_000, 0.9)
UNTIL = datetime.fromtimestamp(END / 1000, UTC)


@pytest.fixture(scope="module")
def report(lake_of_two_weeks: Lake) -> Report:
    return report_of(lake_of_two_weeks, Wanted(audit=False, objectives=[START, FINISH]))


def comparable(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """In one order, with instants as text and numbers to nine digits: sums of floats depend on their order."""
    cells = [tuple(_cell(value) for value in row.values()) for row in rows]
    return sorted(cells, key=str)


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    return None if value is None else value if isinstance(value, str) else f"{float(value):.9g}"


def test_spark_and_duckdb_have_the_same_rows_in_every_view(spark: SparkSession, lake_of_two_weeks: Lake) -> None:
    register_views(lake_of_two_weeks, [START, FINISH], until=UNTIL, prefix="two_weeks_")
    with duckdb.connect() as other:
        other.execute("SET threads = 1")
        for name in TABLES:
            other.register(name, spark.table(f"two_weeks_{name}").toArrow())
        other.execute(script("duckdb", [START, FINISH]))
        period = spark.table("two_weeks_analytics_period").toArrow()
        other.execute("DROP VIEW analytics_period")
        other.register("analytics_period", period)
        for name in VIEWS:
            expected = other.sql(f"SELECT * FROM {name}").to_arrow_table()
            found = spark.table(f"two_weeks_{name}").toArrow()
            assert found.column_names == expected.column_names, name
            assert found.num_rows > 0, name
            assert comparable(found.to_pylist()) == comparable(expected.to_pylist()), name


def test_the_report_names_what_changed(report: Report) -> None:
    found = report.analytics
    assert found is not None and found.length == 7 * DAY and found.compared == 5  # RISING has completed too few runs
    slower = {one.task: one for one in found.trends if one.trend == "slower"}
    assert slower.keys() == {SLOWER} and slower[SLOWER].p50 > 1.5 * slower[SLOWER].previous_p50
    causes = {(one.task, one.error_type): one.trend for one in found.causes}
    assert causes[BROKEN, "DecoderError"] == "new" and causes[RISING, "VersionConflict"] == "rising"


def test_the_report_forecasts_the_backlog(report: Report, events: list[Event]) -> None:
    found = report.analytics
    assert found is not None
    [mail] = [one for one in found.forecasts if one.queue == "mail"]
    series = dict(found.open_at)["mail"]
    ended = {event.seq for event in events if event.kind in (Kind.COMPLETED, Kind.BURIED, Kind.CANCELLED)}
    waiting = {event.seq for event in events if event.queue == "mail"} - ended

    assert mail.open_jobs == series[-1] == len(waiting) >= BURST - DONE
    assert mail.trend == "draining" and mail.empty_at is not None
    assert mail.empty_at - END == pytest.approx((BURST - DONE) / DONE * LATELY, rel=0.3)
    assert max(series) >= BURST * 0.8 and len(series) == len(found.period.starts)


def test_the_report_shows_the_objectives_and_their_budget(report: Report, events: list[Event]) -> None:
    found = report.analytics
    assert found is not None
    states = {one.task: one for one in found.objectives}
    enqueued = sum(event.kind is Kind.ENQUEUED and event.task == WAITING for event in events)

    assert states["charge_card"].missed == sum(states["charge_card"].missed_by_day) > 0  # during its incidents
    receipts = states[WAITING]
    assert 0.9 * enqueued < receipts.jobs <= enqueued and receipts.missed >= BURST - DONE
    assert receipts.budget_left == pytest.approx(1 - receipts.missed / (0.1 * receipts.jobs))
    assert found.objectives[0] is receipts and receipts.burn[2] and receipts.burn[2] > 1
    assert receipts.alert is None  # the hours in which jobs became late are over


def test_the_cost_is_the_time_of_the_handlers(report: Report, events: list[Event]) -> None:
    found = report.analytics
    assert found is not None
    first = report.period.until - 7 * DAY if report.period else 0
    busy = sum(event.duration or 0 for event in events if event.at >= first)

    assert sum(one.busy for one in found.task_costs) == busy
    assert sum(one.share for one in found.task_costs) == pytest.approx(1)
    groups = {one.name: one.busy for one in found.group_costs}
    assert len(groups) == 8 and groups["no group"] > busy / 2 > sum(groups.values()) - groups["no group"]
    assert re.search(r"Others took [\d.]+ % of the time", html(report))  # there are nine
    assert found.task_costs[0].name == "sales_report"


def test_the_page_has_the_sections_and_leaves_no_view_behind(report: Report, spark: SparkSession) -> None:
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", html(report))

    assert {"Backlog", "Slower and faster tasks", "Objectives", "New and rising causes", "Cost"} <= set(titles)
    assert not [table.name for table in spark.catalog.listTables() if table.name.startswith("millrace_report_")]


def test_views_end_at_the_newest_event_if_nothing_else_is_said(spark: SparkSession, lake_of_two_weeks: Lake) -> None:
    register_views(lake_of_two_weeks, length=timedelta(days=1), prefix="now_")

    [period] = spark.table("now_analytics_period").collect()
    assert 0 <= period["until_ms"] - END <= 60_000 and period["length_ms"] == DAY
    assert spark.table("now_slo_status").count() == 0


def test_a_period_of_less_than_an_hour_is_refused(lake_of_two_weeks: Lake) -> None:
    with pytest.raises(InvalidInput, match="length must be an hour or more, not 0:59:00"):
        register_views(lake_of_two_weeks, length=timedelta(minutes=59))
