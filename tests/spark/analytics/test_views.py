"""The rows of the views, counted by hand in small tables."""

from __future__ import annotations

import pytest

from millrace.spark.analytics import Objective
from tests.spark.analytics.tables import BEGIN, DAY, HOUR, MINUTE, SECOND, Tables, after_begin

START = Objective("send", "start", 30 * SECOND, 0.9)
FINISH = Objective("send", "finish", 60 * SECOND, 0.9)


# ── objectives ────────────────────────────────────────────────────────────────────────────────


def decided(tables: Tables, objective: Objective, until: int = DAY) -> dict[int, tuple[int, int]]:
    rows = tables.view("slo_jobs", until=until, objectives=[objective])
    return {row["seq"]: (row["kept"], row["decided_ms"] - BEGIN) for row in rows}


def test_a_job_keeps_an_objective_when_it_starts_and_misses_it_when_the_time_is_over(tables: Tables) -> None:
    tables.job(1, started=30 * SECOND, finished=HOUR)
    tables.job(2, started=30 * SECOND + 1, finished=HOUR)
    tables.job(3)  # still waits
    tables.job(4, at=DAY - 10 * SECOND)  # still has time
    tables.job(5, task="other", started=1, finished=2)

    late = (0, 30 * SECOND)
    assert decided(tables, START) == {1: (1, 30 * SECOND), 2: late, 3: late}


def test_a_delay_and_the_time_until_parents_have_completed_do_not_count_as_waiting(tables: Tables) -> None:
    tables.job(1, delay=HOUR, started=HOUR + SECOND, finished=2 * HOUR)
    tables.job(2, started=5 * HOUR, finished=6 * HOUR)
    tables.add("events", seq=2, kind="unblocked", at=5 * HOUR - SECOND)

    assert decided(tables, START) == {1: (1, HOUR + SECOND), 2: (1, 5 * HOUR)}


def test_only_a_completed_job_has_finished_in_time(tables: Tables) -> None:
    tables.job(1, started=1, finished=59 * SECOND)
    tables.job(2, started=1, finished=40 * SECOND, state="dead")
    tables.job(3, started=1, finished=50 * SECOND, state="cancelled")
    tables.job(4, started=1, finished=HOUR, state="cancelled")  # late before it was cancelled
    tables.job(5, started=1, finished=HOUR)

    expected = {1: (1, 59 * SECOND), 2: (0, 40 * SECOND), 4: (0, MINUTE), 5: (0, MINUTE)}
    assert decided(tables, FINISH) == expected


def test_a_job_that_expired_unseen_has_missed_its_start(tables: Tables) -> None:
    tables.job(1, finished=20 * SECOND, state="dead")
    tables.job(2, finished=20 * SECOND, state="cancelled")

    assert decided(tables, START) == {1: (0, 20 * SECOND)}


def test_the_share_of_a_day_is_that_of_the_jobs_decided_on_it(tables: Tables) -> None:
    for seq in range(8):
        tables.job(seq, at=HOUR, started=HOUR + (SECOND if seq else MINUTE), finished=2 * HOUR)
    tables.job(9, at=DAY - SECOND, started=DAY + SECOND, finished=DAY + HOUR)

    first, second = tables.view("slo_daily", until=2 * DAY, objectives=[START])

    assert (after_begin(first["day"]), first["jobs"], first["missed"], first["kept_share"]) == (0, 8, 1, 0.875)
    assert (after_begin(second["day"]), second["jobs"], second["missed"], second["kept_share"]) == (DAY, 1, 0, 1.0)


def test_a_budget_and_its_burn_rates(tables: Tables) -> None:
    """100 jobs of a month and 20 of the last hour, of which 6 were late: 3 in the last five minutes."""
    until = 30 * DAY
    for seq in range(100):
        tables.job(seq, at=10 * DAY + seq, started=10 * DAY + seq, finished=11 * DAY)
    for seq in range(100, 120):
        at = until - (4 * MINUTE if seq % 2 else 50 * MINUTE) - MINUTE
        tables.job(seq, at=at, started=at if seq < 114 else at + MINUTE, finished=until - 1)
    tables.job(999, at=DAY, started=2 * DAY, finished=2 * DAY)  # late, but longer ago than the budget looks

    [row] = tables.view("slo_status", until=until, objectives=[START])

    assert (row["jobs"], row["missed"], row["kept_share"]) == (120, 6, 0.95)
    assert row["budget_left"] == pytest.approx(0.5)  # 12 of 120 may be late
    burn = [row[f"burn_{window}"] for window in ("5m", "30m", "1h", "6h", "3d")]
    assert burn == pytest.approx([3.0, 3.0, 3.0, 3.0, 3.0])
    assert row["alert"] == "ticket"


@pytest.mark.parametrize(
    ("jobs", "late", "alert"),
    [(60, 3, None), (60, 4, "page"), (6, 1, None), (6, 2, "page")],  # a burn rate of 6 pages; one late job never does
)
def test_a_fast_burn_pages_and_a_single_late_job_does_not(
    tables: Tables, jobs: int, late: int, alert: str | None
) -> None:
    for seq in range(1_200):
        tables.job(seq, at=4 * DAY + seq, started=4 * DAY + seq, finished=5 * DAY)
    for seq in range(2_000, 2_000 + jobs):
        at = 6 * DAY + 57 * MINUTE + seq
        tables.job(seq, at=at, started=at + (MINUTE if seq < 2_000 + late else 0), finished=7 * DAY)

    objective = Objective("send", "start", 30 * SECOND, 0.99)
    [row] = tables.view("slo_status", until=6 * DAY + HOUR, objectives=[objective])

    assert row["alert"] == alert
    assert row["burn_1h"] == pytest.approx(late / jobs / 0.01)


def test_no_jobs_in_a_window_is_no_burn_rate(tables: Tables) -> None:
    tables.job(1, started=1, finished=2)

    [row] = tables.view("slo_status", until=10 * DAY, objectives=[START])

    assert (row["burn_1h"], row["burn_3d"], row["alert"], row["budget_left"]) == (None, None, None, 1.0)


# ── cost ──────────────────────────────────────────────────────────────────────────────────────


def test_the_cost_of_a_task_is_the_time_of_its_handlers(tables: Tables) -> None:
    tables.run(1, HOUR, 3_000)
    tables.run(2, HOUR, 1_000, outcome="retried")
    tables.run(3, HOUR, 4_000, duration_ms=None, reclaimed_at=HOUR - 2_000, outcome="buried", task="scale")
    tables.run(4, HOUR, 2_500, duration_ms=2_000, task="scale")  # the rest of its lease, it waited in its worker
    tables.run(5, -8 * DAY, 9_000)  # not in the period

    rows = tables.view("task_cost", until=DAY)

    assert rows == [
        {"queue": "mail", "task": "scale", "runs": 2, "busy_ms": 4_000, "failed_ms": 2_000, "share": 0.5},
        {"queue": "mail", "task": "send", "runs": 2, "busy_ms": 4_000, "failed_ms": 1_000, "share": 0.5},
    ]


def test_the_cost_of_a_group_includes_the_jobs_without_one(tables: Tables) -> None:
    for seq, group in ((1, "acme"), (2, "acme"), (3, "globex")):
        tables.add("groups", seq=seq, queue="mail", group=group)
    for seq in range(1, 5):
        tables.run(seq, HOUR, 1_000)

    rows = tables.view("group_cost", until=DAY)

    found = {row["group_name"]: (row["runs"], row["busy_ms"], row["share"]) for row in rows}
    assert found == {"acme": (2, 2_000, 0.5), "globex": (1, 1_000, 0.25), None: (1, 1_000, 0.25)}


# ── backlog ───────────────────────────────────────────────────────────────────────────────────


def test_the_backlog_counts_jobs_from_when_they_are_due_until_they_finish(tables: Tables) -> None:
    tables.job(1, at=0, started=1, finished=3 * HOUR)
    tables.job(2, at=0, delay=HOUR, started=HOUR, finished=HOUR + 1, state="dead")
    tables.job(3, at=0, delay=9 * DAY)  # not due yet
    tables.job(4, at=0, delay=HOUR, finished=1, state="cancelled")  # was never due
    tables.job(5, at=3 * HOUR)

    rows = tables.view("backlog_hourly", until=DAY)

    found = [(after_begin(row["hour"]) // HOUR, row["arrived"], row["finished"], row["open_jobs"]) for row in rows]
    assert found == [(0, 1, 0, 1), (1, 1, 1, 1), (3, 1, 1, 1)]


def test_a_backlog_that_drains_has_an_end_and_bounds_for_it(tables: Tables) -> None:
    """1,000 open jobs; in the last ten hours 100 arrived and 500 finished: 40 an hour."""
    seq = iter(range(10_000))
    for _ in range(900):
        tables.job(next(seq), at=-DAY)
    for _ in range(500):
        tables.job(next(seq), at=-DAY, started=HOUR, finished=2 * HOUR)
    for _ in range(100):
        tables.job(next(seq), at=HOUR)

    [row] = tables.view("backlog_forecast", until=10 * HOUR, rate=10 * HOUR)

    assert (row["open_jobs"], row["arrived_per_hour"], row["finished_per_hour"]) == (1_000, 10, 50)
    doubt = 2 * 600**0.5  # jobs in ten hours
    assert row["trend"] == "draining" and after_begin(row["empty_at"]) == 35 * HOUR
    assert after_begin(row["earliest_empty_at"]) == pytest.approx(10 * HOUR + 1_000 / (400 + doubt) * 10 * HOUR, abs=1)
    assert after_begin(row["latest_empty_at"]) == pytest.approx(10 * HOUR + 1_000 / (400 - doubt) * 10 * HOUR, abs=1)


@pytest.mark.parametrize(
    ("arrived", "finished", "trend"), [(100, 20, "growing"), (50, 55, "steady"), (20, 100, "draining")]
)
def test_a_backlog_grows_drains_or_neither(tables: Tables, arrived: int, finished: int, trend: str) -> None:
    seq = iter(range(10_000))
    for _ in range(200):
        tables.job(next(seq), at=-DAY)
    for _ in range(finished):
        tables.job(next(seq), at=-DAY, started=HOUR, finished=HOUR)
    for _ in range(arrived):
        tables.job(next(seq), at=HOUR)

    [row] = tables.view("backlog_forecast", until=6 * HOUR)

    assert row["trend"] == trend and (row["empty_at"] is not None) == (trend == "draining")


def test_an_empty_queue_has_no_forecast(tables: Tables) -> None:
    tables.job(1, started=1, finished=2)

    [row] = tables.view("backlog_forecast", until=HOUR)

    assert (row["open_jobs"], row["trend"], row["empty_at"]) == (0, "empty", None)
    assert row["finished_per_hour"] == 1.0  # in the hour since the first job


# ── failures ──────────────────────────────────────────────────────────────────────────────────


def test_a_cause_is_new_if_its_task_ran_before_without_it(tables: Tables) -> None:
    for day in range(20):
        tables.run(day, day * DAY)
        tables.failure(100 + day, day * DAY, "old")
    tables.failure(200, 20 * DAY, "new")
    tables.failure(200, 20 * DAY + 1, "new")
    tables.failure(201, 20 * DAY + 2, "old")
    tables.failure(202, 20 * DAY, "first", task="scale")

    rows = {row["fingerprint"]: row for row in tables.view("failure_trends", until=21 * DAY, length=DAY)}

    assert {name: row["trend"] for name, row in rows.items()} == {"new": "new", "old": "usual", "first": None}
    new, old = rows["new"], rows["old"]
    assert (new["jobs"], new["past_jobs"], new["p_value"], new["times_as_frequent"]) == (1, 0, None, None)
    assert (new["sample_job"], new["sample_message"]) == ("job-200", "new of 200")
    assert (after_begin(new["first_at"]), after_begin(new["last_at"])) == (20 * DAY, 20 * DAY + 1)
    assert (old["jobs"], old["past_jobs"], old["expected_jobs"]) == (1, 20, pytest.approx(20 * 3 / 40))


def test_more_failures_are_a_trend_only_if_there_are_not_as_many_more_runs(tables: Tables) -> None:
    for day in range(28):
        for n in range(20):
            tables.run(n, day * DAY + n)
        tables.failure(1_000 + day, day * DAY)
    for n in range(200):  # ten times the traffic, with ten times the failures
        tables.run(n, 28 * DAY + n)
        tables.failure(2_000 + n, 28 * DAY + n) if n < 10 else None
    [busy] = tables.view("failure_trends", until=29 * DAY, length=DAY)
    for n in range(40):
        tables.failure(3_000 + n, 28 * DAY + n)
    [worse] = tables.view("failure_trends", until=29 * DAY, length=DAY)

    assert busy["trend"] == "usual" and busy["times_as_frequent"] == pytest.approx(1, rel=0.05)
    assert worse["trend"] == "rising" and worse["times_as_frequent"] == pytest.approx(4.2, rel=0.05)


# ── trends ────────────────────────────────────────────────────────────────────────────────────


def test_the_share_of_slower_pairs_is_that_of_all_pairs(tables: Tables) -> None:
    """Compared with a count of all pairs. The durations are far enough apart to be in buckets of their own."""
    before = [100 * (n % 7 + 1) ** 2 for n in range(35)]
    now = [100 * (n % 5 + 2) ** 2 for n in range(35)]
    for n, (earlier, later) in enumerate(zip(before, now, strict=True)):
        tables.run(n, n % 7 * DAY + n, earlier)
        tables.run(n, 7 * DAY + n % 7 * DAY + n, later)

    [row] = tables.view("task_trends", until=14 * DAY)

    pairs = [1.0 if later > earlier else 0.5 if later == earlier else 0.0 for later in now for earlier in before]
    assert row["slower_share"] == pytest.approx(sum(pairs) / len(pairs))
    assert (row["runs"], row["previous_runs"]) == (35, 35)
    assert row["p50_ms"] == pytest.approx(sorted(now)[17], rel=0.03)
    assert row["previous_p95_ms"] == pytest.approx(sorted(before)[33], rel=0.03)


def test_few_runs_or_few_days_are_not_compared(tables: Tables) -> None:
    for n in range(19):
        tables.run(n, n % 7 * DAY, task="rare")
        tables.run(n, 7 * DAY + n % 7 * DAY, task="rare")
    for n in range(100):
        tables.run(n, n % 7 * DAY, task="short")
        tables.run(n, 13 * DAY + n, task="short")  # all on one day

    assert tables.view("task_trends", until=14 * DAY) == []


def test_failed_runs_do_not_make_a_task_faster(tables: Tables) -> None:
    for n in range(210):
        tables.run(n, n % 14 * DAY + n, 1_000 + n)
        tables.failure(n, 7 * DAY + n % 7 * DAY + n)

    [row] = tables.view("task_trends", until=14 * DAY)

    assert row["trend"] == "steady" and row["runs"] == row["previous_runs"] == 105
