"""From a lake to figures: compared with what plain Python counts in the same events."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from millrace.domain.errors import InvalidInput
from millrace.domain.event import Event, Kind
from millrace.domain.outcome import Failure
from millrace.spark.lake import Lake
from millrace.spark.report import Report, Wanted, html, report_of
from millrace.spark.report.period import HOUR, MINUTE
from tests.spark.lake.history import BEGIN as THEN
from tests.spark.lake.history import an_event
from tests.spark.report.conftest import LakeOf
from tests.spark.report.week import BEGIN, GROUPS, INCIDENT, WORKERS
from tests.spark.report.week import DAY as A_DAY


@pytest.fixture(scope="module")
def report(lake_of_a_week: Lake) -> Report:
    return report_of(lake_of_a_week, Wanted(title="A week"))


def number(events: Sequence[Event], kind: Kind, **facts: str) -> int:
    return sum(
        event.kind is kind and all(getattr(event, name) == value for name, value in facts.items()) for event in events
    )


# ── a week, from the lake's own series ────────────────────────────────────────────────────────


def test_totals_are_those_of_the_events(report: Report, week: list[Event]):
    totals = report.totals

    assert (totals.accepted, totals.completed) == (1_200, number(week, Kind.COMPLETED))
    assert (totals.died, totals.retries) == (number(week, Kind.BURIED), number(week, Kind.RETRIED))
    assert totals.dead_now == totals.died > 0 and totals.retries > 5 and totals.waiting == totals.running == 0
    assert report.source.events == len(week) and report.source.newest_at == week[-1].at


def test_throughput_over_time_adds_up_by_queue(report: Report, week: list[Event]):
    period = report.period
    assert period is not None and period.step == 2 * HOUR and period.since == week[0].at - week[0].at % MINUTE
    for queue in report.queues:
        assert queue.completed == sum(queue.completed_at) == number(week, Kind.COMPLETED, queue=queue.queue)
        assert queue.accepted == number(week, Kind.ENQUEUED, queue=queue.queue)
    expected = Counter(period.place_of(event.at) for event in week if event.kind is Kind.COMPLETED)
    sums = [sum(values) for values in zip(*(queue.completed_at for queue in report.queues), strict=True)]
    assert sums == [expected[n] for n in range(len(period.starts))]
    assert report.queues[0].queue == "mail"


def test_percentiles_are_close_to_the_true_ones(report: Report, week: list[Event]):
    claimed = {(event.seq, event.attempt): event.at for event in week if event.kind is Kind.CLAIMED}
    ends = [event for event in week if event.kind in (Kind.COMPLETED, Kind.RETRIED, Kind.BURIED)]
    ran = sorted(event.at - claimed[event.seq, event.attempt] for event in ends)
    found = report.runs.in_all

    assert found is not None and found.runs == len(ran) and found.longest == ran[-1]
    assert found.p50 == pytest.approx(statistics.median(ran), rel=0.03)
    assert found.p95 == pytest.approx(ran[round(len(ran) * 0.95)], rel=0.05)
    assert (
        sum(one.runs for one in report.runs.over_time if one)
        == sum(one.runs for _, one in report.runs.by_queue)
        == len(ran)
    )
    assert report.waits.in_all is not None and report.waits.in_all.runs == len(ran)


def test_causes_have_a_message_as_it_was_written_and_an_incident_shows_when_it_was(report: Report, week: list[Event]):
    period, failures = report.period, report.failures
    assert period is not None
    [timeouts] = [cause for cause in failures.causes if cause.error_type == "ConnectTimeout"]
    said = {event.error.message for event in week if event.error is not None and event.error.type == "ConnectTimeout"}

    assert timeouts.sample in said and timeouts.task == "charge_card"
    assert INCIDENT <= timeouts.first_at <= timeouts.last_at <= INCIDENT + 3 * HOUR
    assert next(n for n, value in enumerate(timeouts.failures_at) if value) == period.place_of(INCIDENT)
    assert (
        sum(timeouts.failures_at)
        == timeouts.retries + timeouts.deaths
        == sum(event.error is not None and event.error.type == "ConnectTimeout" for event in week)
    )
    assert sum(failures.retries_at) == report.totals.retries and sum(failures.deaths_at) == report.totals.died


def test_workers_held_what_their_runs_took(report: Report, week: list[Event]):
    period = report.period
    assert period is not None
    held = sum(event.at for event in week if event.kind in (Kind.COMPLETED, Kind.RETRIED, Kind.BURIED))
    held -= sum(event.at for event in week if event.kind is Kind.CLAIMED)

    assert {worker.name for worker in report.workers.busiest} == set(WORKERS) and report.workers.others == 0
    assert sum(worker.busy for worker in report.workers.busiest) == held
    assert sum(worker.share for worker in report.workers.busiest) == pytest.approx(1)
    assert max(value or 0 for worker in report.workers.busiest for value in worker.held_at) <= 2.0
    [spot] = [worker for worker in report.workers.busiest if worker.name == "worker-spot-1"]
    assert not spot.held_at[period.place_of(BEGIN + A_DAY + 4 * HOUR)]  # it works by day


def test_the_slowest_task_comes_first_and_all_are_there(report: Report):
    tasks = report.tasks.slowest

    assert tasks[0].task == "sales_report" and len(tasks) == 6 and report.tasks.others == 0
    assert [task.total for task in tasks] == sorted((task.total for task in tasks), reverse=True)


def test_a_customer_with_half_of_the_mails_shows(report: Report):
    queues = {queue.queue: queue for queue in report.fairness}

    assert queues.keys() == {"mail", "images"} and report.groups_known
    assert queues["mail"].groups[0].name == GROUPS[0] and queues["mail"].groups[0].share > 0.4
    assert queues["mail"].evenness < 0.6 < queues["images"].evenness
    assert sum(group.share for group in queues["images"].groups) == pytest.approx(1)


def test_the_audit_of_a_week_that_could_have_been_is_sound(report: Report):
    assert report.audit is not None and report.audit.sound and len(report.audit.promises) == 5
    assert "All guarantees hold" in html(report)


def test_a_period_in_which_nothing_happened_is_an_empty_page_and_one_upside_down_is_refused(lake_of_a_week: Lake):
    long_ago, longer_ago = datetime(2001, 1, 2, tzinfo=UTC), datetime(2001, 1, 1, tzinfo=UTC)

    empty = report_of(lake_of_a_week, Wanted(longer_ago, long_ago, audit=False))
    assert empty.period is None and empty.queues == () and "No job was completed in this period." in html(empty)
    with pytest.raises(InvalidInput, match="earlier than --until"):
        report_of(lake_of_a_week, Wanted(long_ago, longer_ago))


# ── seconds, from events and attempts ─────────────────────────────────────────────────────────


def a_short_history() -> list[Event]:
    """Two jobs: one fails once, with a pause of two seconds; the other stays with its worker for 1.5 s."""
    error = Failure("Boom", "no <answer> from 10.0.0.7")
    first = {"seq": 1, "worker": "w1"}
    other = {"seq": 2, "worker": "w2", "queue": "images", "task": "resize"}
    told = [
        an_event(1, Kind.ENQUEUED, at=THEN, seq=1),
        an_event(2, Kind.CLAIMED, at=THEN + 300, lease="a", attempt=1, **first),
        an_event(3, Kind.RETRIED, at=THEN + 700, lease="a", attempt=1, failures=1, delay=2_000, error=error, **first),
        an_event(4, Kind.CLAIMED, at=THEN + 2_800, lease="b", attempt=2, failures=1, **first),
        an_event(5, Kind.COMPLETED, at=THEN + 3_000, lease="b", attempt=2, failures=1, **first),
        an_event(1, Kind.ENQUEUED, at=THEN + 100, seq=2, queue="images", task="resize"),
        an_event(2, Kind.CLAIMED, at=THEN + 1_000, lease="c", attempt=1, **other),
        an_event(3, Kind.COMPLETED, at=THEN + 2_500, lease="c", attempt=1, **other),
    ]
    return sorted(told, key=lambda event: event.at)


@pytest.mark.nightly
def test_a_history_of_seconds_is_shown_by_parts_of_a_second(lake_of: LakeOf):
    report = report_of(lake_of(a_short_history()))
    period = report.period

    assert period is not None and (period.since, period.until, period.step) == (THEN, THEN + 3_001, 100)
    assert [(queue.queue, queue.accepted, queue.completed, queue.retries) for queue in report.queues] == [
        *(("images", 1, 1, 0), ("mail", 1, 1, 1)),
    ]
    assert [n for n, value in enumerate(report.queues[0].completed_at) if value] == [25]
    assert report.waits.in_all is not None and report.waits.in_all.longest == 900 and report.waits.in_all.runs == 3
    assert report.runs.in_all is not None and report.runs.in_all.longest == 1_500
    assert [one.p50 for one in report.runs.over_time if one] == pytest.approx([400, 1_500, 200], rel=0.02)
    second, first = report.workers.busiest
    assert (second.name, second.busy, first.name, first.busy, first.failed) == ("w2", 1_500, "w1", 600, 1)
    assert [round(value or 0, 6) for value in second.held_at[9:26]] == [0.0, *[1.0] * 15, 0.0]
    [cause] = report.failures.causes
    assert (cause.sample, cause.retries, cause.deaths) == ("no <answer> from 10.0.0.7", 1, 0)
    assert list(cause.failures_at).index(1) == 7 and cause.first_at == THEN + 700
    assert report.fairness == [] and not report.groups_known
    assert report.audit is not None and report.audit.sound


def test_a_broken_history_is_red_and_names_the_job(lake_of: LakeOf):
    events = [event for event in a_short_history() if (event.seq, event.n) != (2, 2)]
    at = datetime(2001, 1, 1, tzinfo=UTC)
    report = report_of(lake_of(events), Wanted(until=at))  # the audit is about the whole lake, whatever is shown

    assert report.period is None and report.audit is not None and not report.audit.sound
    assert report.audit.jobs == ["job-2"] and report.audit.broken >= 1
    assert "Conservation is broken" in html(report)
