"""The trends on generated histories, with and without a real change: false alarms are rare, and real changes are found.

The random numbers are seeded, so each test has one outcome.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from tests.spark.analytics.tables import DAY, Tables
from tests.spark.analytics.tables import tables as new_tables

TASKS = [f"task_{n}" for n in range(20)]
Draw = Callable[[Random], float]
Factor = Callable[[int], float]  # of a day: 0 to 13, the first week is the previous period


def lognormal(chance: Random) -> float:
    return chance.lognormvariate(6, 0.8)


def heavy_tailed(chance: Random) -> float:
    return 100 * chance.paretovariate(1.1)


def trends(seed: int, draw: Draw, factor: Factor = lambda _day: 1, noise: float = 0.1, runs: int = 12) -> Counter[str]:
    """How many of 20 tasks have each trend. Each day of a task is slower or faster as a whole by `noise`."""
    chance = Random(seed)
    with new_tables() as tables:
        for task in TASKS:
            for day in range(14):
                level = factor(day) * math.exp(chance.gauss(0, noise))
                for _ in range(runs):
                    at = day * DAY + chance.randrange(DAY)
                    tables.run(1, at, round(level * draw(chance)), task=task)
        return Counter(row["trend"] for row in tables.view("task_trends", until=14 * DAY))


def weekend(day: int) -> float:
    return 2.0 if day % 7 >= 5 else 1.0


@pytest.mark.parametrize(
    ("draw", "factor", "noise"),
    [
        (lognormal, lambda _day: 1, 0.0),
        (lognormal, lambda _day: 1, 0.3),
        (heavy_tailed, lambda _day: 1, 0.1),
        (lognormal, weekend, 0.1),
        (lognormal, lambda day: 5 if day == 9 else 1, 0.1),  # one bad day is not a trend
    ],
    ids=["equal days", "noisy days", "heavy tail", "slow weekends", "one bad day"],
)
def test_a_task_that_did_not_change_is_steady(draw: Draw, factor: Factor, noise: float) -> None:
    reports = [trends(seed, draw, factor, noise) for seed in range(6)]

    assert [report["steady"] for report in reports].count(20) >= 5  # of the reports, one in twenty may be wrong
    assert sum(report["slower"] + report["faster"] for report in reports) <= 1


@pytest.mark.parametrize(
    ("draw", "factor", "trend"),
    [
        (lognormal, lambda day: 1.8 if day >= 7 else 1, "slower"),
        (lognormal, lambda day: weekend(day) * (1.8 if day >= 7 else 1), "slower"),
        (heavy_tailed, lambda day: 1.8 if day >= 7 else 1, "slower"),
        (lognormal, lambda day: 0.5 if day >= 7 else 1, "faster"),
    ],
    ids=["slower", "slower with slow weekends", "slower with a heavy tail", "faster"],
)
def test_a_change_is_found(draw: Draw, factor: Factor, trend: str) -> None:
    found = trends(1, draw, factor, noise=0.05, runs=40)

    assert found[trend] >= 18 and found[trend] + found["steady"] == 20


def test_a_change_that_nobody_would_feel_is_none() -> None:
    assert trends(1, lognormal, lambda day: 1.04 if day >= 7 else 1, noise=0.0, runs=150)["steady"] == 20


def causes(seed: int, times: float = 1, noise: float = 0.0) -> Counter[str]:
    """How many of 20 causes have each trend, after four weeks of about three failed jobs per day and task."""
    chance = Random(seed)
    with new_tables() as tables:
        jobs = iter(range(1_000_000))
        for task in TASKS:
            for day in range(35):
                level = 0.05 * math.exp(chance.gauss(0, noise)) * (times if day >= 28 else 1)
                for _ in range(60):
                    seq, at = next(jobs), day * DAY + chance.randrange(DAY)
                    if chance.random() < level:
                        for attempt in range(3):  # the retries of a job fail alike
                            tables.failure(seq, at + attempt, task=task)
                    else:
                        tables.run(seq, at, task=task)
        return Counter(row["trend"] for row in tables.view("failure_trends", until=35 * DAY))


@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_a_cause_that_is_as_frequent_as_before_is_usual(noise: float) -> None:
    assert [causes(seed, noise=noise) for seed in (1, 2)] == [{"usual": 20}] * 2


def test_a_cause_that_is_much_more_frequent_is_rising() -> None:
    assert causes(1, times=4)["rising"] >= 18


def test_trends_need_a_past(tables: Tables) -> None:
    for n in range(100):
        tables.run(n, 7 * DAY + n * 1_000_000)
        tables.failure(n, 7 * DAY + n * 1_000_000)

    assert tables.view("task_trends", until=14 * DAY) == []
    assert [row["trend"] for row in tables.view("failure_trends", until=14 * DAY)] == [None]
