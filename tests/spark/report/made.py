"""A report made by hand, with something in every section: two days, by the half hour."""

from __future__ import annotations

import math
from typing import Any

from millrace.spark.report.analytics_model import (
    Analytics,
    CauseTrend,
    Cost,
    Forecast,
    ObjectiveFigures,
    TaskTrend,
)
from millrace.spark.report.model import (
    AuditFigures,
    BrokenPromise,
    CauseFigures,
    Failures,
    Fairness,
    FigureGroup,
    Lengths,
    Promise,
    Quantiles,
    QueueFlow,
    Report,
    Source,
    TaskFigures,
    Tasks,
    Totals,
    WorkerFigures,
    WorkerTable,
)
from millrace.spark.report.period import DAY, HOUR, Period

BEGIN = 1_793_577_600_000  # Monday 2026-11-02, 00:00 UTC
PERIOD = Period.of(BEGIN, BEGIN + 2 * DAY)
STEPS = range(len(PERIOD.starts))
HOSTILE = '"><script>alert(1)</script>\x1b[31m\u202e\ud800 & <b>'
SOUND = AuditFigures([Promise("every file is there", True, "59 files"), Promise("every step was legal", True, "")])
BROKEN = AuditFigures(
    [Promise("every file is there", True, "59 files"), Promise("every step was legal", False, "broken 3 times")],
    [
        BrokenPromise("held twice", "job-17", "event 3: claimed while running"),
        BrokenPromise("numbering", "job-18", "2 of 3"),
    ],
    3,
)


def a_report(**changes: Any) -> Report:
    whole = Quantiles(5_000, 40, 900, 4_000, 61_000)
    lengths = Lengths([_quantiles(n) for n in STEPS], whole, [("mail", whole), ("images", whole)])
    facts: dict[str, Any] = {
        "title": "Two days of a shop",
        "made_at": BEGIN + 2 * DAY + 90_000,
        "source": Source("sqlite:///shop.db", 12, BEGIN + 2 * DAY, 20_000, BEGIN + 2 * DAY - 1),
        "period": PERIOD,
        "totals": Totals(5_020, 5_000, 20, 120, 3, 2, 5, 1, 18),
        "queues": [
            QueueFlow(name, 3_000 // n, 2_900 // n, 20, 60, _wave(n)) for n, name in enumerate(("mail", "images"), 1)
        ],
        "waits": lengths,
        "runs": lengths,
        "failures": Failures(_wave(9), [int(n == 30) * 20 for n in STEPS], [a_cause()], 3, 17),
        "workers": WorkerTable([_worker(n) for n in range(3)], 2, 12_000),
        "tasks": Tasks(
            [TaskFigures("images", "make_thumbnail", 7_200_000, whole), TaskFigures("mail", "send", 90_000, whole)],
            1,
            500,
        ),
        "fairness": [
            Fairness(
                "mail",
                0.4,
                [FigureGroup("acme", 900, 90_000, 0.9, 12.5, 30.0), FigureGroup("globex", 9, 1, 0.1, None, None)],
            )
        ],
        "analytics": an_analytics(),
        "audit": SOUND,
    }
    return Report(**{**facts, **changes})


def an_analytics(**changes: Any) -> Analytics:
    hourly = Period(PERIOD.since, PERIOD.until, HOUR)
    end = PERIOD.until
    facts: dict[str, Any] = {
        "length": DAY,
        "period": hourly,
        "open_at": [(queue, [hour % 24 * size for hour in range(48)]) for queue, size in (("mail", 9), ("images", 4))],
        "forecasts": [
            Forecast("mail", 207, 40, 100, "draining", end + 3 * HOUR, end + 2 * HOUR, end + 5 * HOUR),
            Forecast("images", 92, 60.5, 20, "growing"),
        ],
        "objectives": [
            ObjectiveFigures(
                *(
                    "send",
                    "start",
                    30_000,
                    0.99,
                    5_000,
                    120,
                    0.976,
                    -1.4,
                    [16.2, 7.0, 1.1],
                    "page",
                    [0] * 26 + [20, 100],
                )
            ),
            ObjectiveFigures(*("make_thumbnail", "finish", 60_000, 0.95, 900, 9, 0.99, 0.8, [None, 0.0, 0.2], None)),
        ],
        "trends": [
            TaskTrend("make_thumbnail", "slower", 1_900, 800, 4_000, 2_100, 0.83),
            TaskTrend("send", "faster", 120, 240, 300, 420, 0.2),
        ],
        "compared": 6,
        "task_costs": [
            Cost("make_thumbnail", "images", 900, 7_200_000, 360_000, 0.9),
            Cost("send", "mail", 90, 800_000, 0, 0.1),
        ],
        "group_costs": [Cost("acme", None, 900, 7_200_000, 360_000, 0.9), Cost("no group", None, 90, 800_000, 0, 0.1)],
        "causes": [
            CauseTrend("ab12", "send", "Refused", "421 busy", "job-18", "new", 12, 0, end - 2 * HOUR, end - HOUR),
            CauseTrend("cd34", "make_thumbnail", "TooLarge", "9 MB", "job-19", "rising", 40, 6.5, end - DAY, end),
        ],
    }
    return Analytics(**{**facts, **changes})


def a_cause(**changes: Any) -> CauseFigures:
    facts: dict[str, Any] = {
        "fingerprint": "cc329050c5",
        "task": "charge_card",
        "error_type": "ConnectTimeout",
        "cause": "ConnectTimeout: no answer from #",
        "sample": "no answer from 10.0.0.7",
        "sample_job": "job-17",
        "retries": 100,
        "deaths": 20,
        "first_at": BEGIN + 14 * HOUR,
        "last_at": BEGIN + 15 * HOUR,
        "failures_at": _wave(9),
    }
    return CauseFigures(**{**facts, **changes})


def nothing() -> Report:
    """Of a period in which nothing happened."""
    return Report("An empty day", BEGIN, Source("sqlite:///shop.db", 1, BEGIN, 0))


def _wave(part: int) -> list[int]:
    return [round((2 + math.sin(n / 7)) * 40 / part) for n in STEPS]


def _quantiles(n: int) -> Quantiles | None:
    return None if 40 <= n < 44 else Quantiles(50, 20 + n, 300 + 9 * n, 2_000 + 90 * n, 9_000)


def _worker(n: int) -> WorkerFigures:
    held = [max(0.0, math.sin(step / 9 + n)) * 4 for step in STEPS]
    return WorkerFigures(f"worker-{n}", 1_000 * n, n, 3_600_000, 0.3, held, BEGIN, BEGIN + DAY)
