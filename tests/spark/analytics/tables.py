"""The lake's tables in DuckDB, filled by hand, and the views over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa

from millrace.spark.analytics import Objective
from millrace.spark.analytics.views import script

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
WEEK = 7 * DAY
BEGIN = 1_793_577_600_000  # Monday 2026-11-02, 00:00 UTC
TEXT, LONG, AT = pa.string(), pa.int64(), pa.timestamp("us", "UTC")
ERROR = {"error_type": TEXT, "error_message": TEXT, "error_fingerprint": TEXT}
JOB = {"job": TEXT, "seq": LONG, "queue": TEXT, "task": TEXT}
COLUMNS = {
    "events": {"seq": LONG, "kind": TEXT, "at": AT, "delay_ms": LONG},
    "attempts": {
        **JOB,
        "claimed_at": AT,
        "ended_at": AT,
        "run_ms": LONG,
        "duration_ms": LONG,
        "outcome": TEXT,
        **ERROR,
        "reclaimed_at": AT,
    },
    "jobs": {**JOB, "state": TEXT, "enqueued_at": AT, "first_claimed_at": AT, "finished_at": AT, "oldest_at": AT},
    "groups": {"seq": LONG, "queue": TEXT, "group": TEXT},
}


class Tables:
    """Every instant is given in milliseconds after BEGIN."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in COLUMNS}

    def add(self, table: str, **row: Any) -> None:
        kinds = COLUMNS[table]
        self._rows[table].append({name: row[name] if kinds[name] is not AT else _instant(row[name]) for name in row})

    def job(
        self,
        seq: int,
        at: int = 0,
        *,
        delay: int = 0,
        started: int | None = None,
        finished: int | None = None,
        state: str = "completed",
        queue: str = "mail",
        task: str = "send",
    ) -> None:
        """A job with its event `enqueued`."""
        state = "waiting" if started is None and finished is None else state
        self.add("events", seq=seq, kind="enqueued", at=at, delay_ms=delay or None)
        times = {"enqueued_at": at, "oldest_at": at, "first_claimed_at": started, "finished_at": finished}
        self.add("jobs", job=f"job-{seq}", seq=seq, queue=queue, task=task, state=state, **times)

    def run(self, seq: int, ended: int, busy: int = 10, outcome: str = "completed", **more: Any) -> None:
        times = {"claimed_at": ended - busy, "ended_at": ended, "run_ms": busy, "duration_ms": busy}
        row = {"job": f"job-{seq}", "seq": seq, "queue": "mail", "task": "send", "outcome": outcome, **times, **more}
        self.add("attempts", **row)

    def failure(self, seq: int, ended: int, cause: str = "f1", **more: Any) -> None:
        error: dict[str, Any] = {
            "error_fingerprint": cause,
            "error_type": "Refused",
            "error_message": f"{cause} of {seq}",
        }
        self.run(seq, ended, outcome="retried", **error, **more)

    def view(
        self, name: str, *, until: int, length: int = WEEK, rate: int = 6 * HOUR, objectives: Sequence[Objective] = ()
    ) -> list[dict[str, Any]]:
        """The rows of a view, in the order of its columns."""
        for table, rows in self._rows.items():
            self.connection.register(table, pa.Table.from_pylist(rows, pa.schema(COLUMNS[table])))
        self.connection.execute(script("duckdb", objectives))
        period = f"{BEGIN + until} AS until_ms, {length} AS length_ms, {rate} AS rate_ms"
        self.connection.execute(f"CREATE OR REPLACE VIEW analytics_period AS SELECT {period}")
        found = self.connection.execute(f"SELECT * FROM {name} ORDER BY ALL")
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


@contextmanager
def tables() -> Iterator[Tables]:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        connection.execute("SET TimeZone = 'Asia/Kolkata'")  # the views are in UTC wherever they are asked
        yield Tables(connection)


def after_begin(at: datetime) -> int:
    """An instant of a view, in milliseconds after BEGIN."""
    return round(at.replace(tzinfo=UTC).timestamp() * 1000) - BEGIN


def _instant(value: int | None) -> datetime | None:
    return None if value is None else datetime.fromtimestamp((BEGIN + value) / 1000, UTC)
