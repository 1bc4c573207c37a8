"""Converts rows from Spark into the values of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millrace.spark.report import frames, model
from millrace.spark.report.period import Period


def flows(flow: Sequence[Any], period: Period) -> list[model.QueueFlow]:
    found = []
    for queue in {row["queue"]: None for row in flow}:
        mine = [row for row in flow if row["queue"] == queue]
        accepted, completed, died, retries = (
            sum(row[kind] for row in mine) for kind in ("enqueued", "completed", "buried", "retried")
        )
        found.append(model.QueueFlow(queue, accepted, completed, died, retries, added(mine, period, "completed")))
    return sorted(found, key=lambda one: (one.queue == frames.OTHERS, -one.completed, -one.accepted, one.queue))


def added(flow: Sequence[Any], period: Period, kind: str) -> list[int]:
    values = [0] * len(period.starts)
    for row in flow:
        put(values, period, row["start"], row[kind])
    return values


def put(values: list[Any], period: Period, start: int, value: float) -> None:
    """Add a value to the entry of `values` for the interval that begins at `start`. Values outside the period are
    ignored.
    """
    place = period.place_of(start)
    if 0 <= place < len(values):
        values[place] += value


def measured(rows: Sequence[Any], measure: str, period: Period) -> model.Lengths:
    mine = [row for row in rows if row["measure"] == measure]
    over_time: list[model.Quantiles | None] = [None] * len(period.starts)
    in_all, by_queue = None, []
    for row in mine:
        if row["start"] is not None:
            place = period.place_of(row["start"])
            if 0 <= place < len(over_time):
                over_time[place] = quantiles(row)
        elif row["queue"] is not None:
            by_queue.append((row["queue"], quantiles(row)))
        else:
            in_all = quantiles(row)
    by_queue.sort(key=lambda one: (one[0] == frames.OTHERS, -one[1].runs, one[0]))
    return model.Lengths(over_time, in_all, by_queue)


def quantiles(row: Any) -> model.Quantiles:
    return model.Quantiles(row["runs"], row["p50_ms"], row["p95_ms"], row["p99_ms"], row["max_ms"])


def cause(row: Any, sample: str | None, series: Sequence[int]) -> model.CauseFigures:
    named = (row["fingerprint"], row["task"], row["error_type"], row["cause"], sample, row["sample_job"])
    return model.CauseFigures(*named, row["retries"], row["deaths"], row["first"], row["last"], series)


def worker(row: Any, busy: int, held_at: Sequence[float], step: int) -> model.WorkerFigures:
    share = row["busy_ms"] / busy if busy else 0.0
    counts = (row["worker"], row["runs"], row["failed"], row["busy_ms"], share)
    return model.WorkerFigures(*counts, held_at, row["first_start"], row["last_start"] + step)


def fair(queue: str, rows: Sequence[Any]) -> model.Fairness:
    groups = [
        model.FigureGroup(
            row["group"], row["runs"], row["busy_ms"], row["share"], row["mean_wait_ms"], row["p95_wait_ms"]
        )
        for row in rows
    ]
    others = rows[0]["known"] - len(rows)
    left = max(0.0, 1.0 - sum(group.share for group in groups)) if others else 0.0
    return model.Fairness(queue, rows[0]["evenness"], groups, others, left)
