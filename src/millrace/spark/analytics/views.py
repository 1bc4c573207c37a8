"""The SQL views: their files, their order, and the text of each in the dialects that can read them.

The files in `views/` are written in the SQL that Spark, DuckDB and Trino share. They differ in three places, which are
written as DuckDB writes them: the conversion of a timestamp to milliseconds and back, and the quotes around `group`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from millrace.domain.errors import InvalidInput

SETTINGS = ("analytics_period", "objectives")
VIEWS = (
    *("job_times", "run_times", "job_groups"),
    *("slo_jobs", "slo_counts", "slo_daily", "slo_status"),
    "task_trends",
    *("task_cost", "group_cost"),
    *("backlog_hours", "backlog_hourly", "backlog_forecast"),
    "failure_trends",
)
TABLES = ("events", "attempts", "jobs", "groups")
DIALECTS = {
    "duckdb": (r"epoch_ms(\1)", r"make_timestamp_ms(\1)", '"'),
    "spark": (r"unix_millis(\1)", r"timestamp_millis(\1)", "`"),
    "trino": (r"CAST(to_unixtime(\1) * 1000 AS BIGINT)", r"from_unixtime(\1 / 1000.0E0)", '"'),
}
_NAMES = re.compile(rf"\b((?:FROM|JOIN) )({'|'.join((*TABLES, *SETTINGS, *VIEWS))})\b")
MEASURES = ("start", "finish")


@dataclass(frozen=True)
class Objective:
    """A service level objective: the share `target` of a task's jobs must start, or finish, within a time after they
    are due. `measure` is `start` (the first claim) or `finish` (completed).
    """

    task: str
    measure: str
    within_ms: int
    target: float

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise InvalidInput(f"objective of {self.task}: measure is {' or '.join(MEASURES)}, not {self.measure!r}")
        if self.within_ms <= 0:
            raise InvalidInput(f"objective of {self.task}: the time must be longer than 0, not {self.within_ms} ms")
        if not (math.isfinite(self.target) and 0 < self.target < 1):
            raise InvalidInput(
                f"objective of {self.task}: the target must be a share between 0 and 1, such as 0.99, not {self.target}"
            )


def select(name: str, dialect: str, prefix: str = "") -> str:
    """Return the query of a view, in the given dialect. `prefix` is put before the names of tables and views."""
    if dialect not in DIALECTS:
        raise InvalidInput(f"the dialects are {', '.join(DIALECTS)}, not {dialect!r}")
    to_millis, to_timestamp, quote = DIALECTS[dialect]
    text = (files("millrace.spark.analytics") / "views" / f"{name}.sql").read_text("utf-8")
    text = re.sub(r'\bepoch_ms\((["\w.]+)\)', to_millis, text)
    text = re.sub(r"\bmake_timestamp_ms\(([\w.]+)\)", to_timestamp, text)
    return _NAMES.sub(rf"\1{prefix}\2", text.replace('"', quote))


def script(dialect: str, objectives: Sequence[Objective] = ()) -> str:
    """Return the statements that create all views over the lake's tables, which the engine must have under the names in
    `TABLES`.
    """
    queries = {name: select(name, dialect) for name in (*SETTINGS, *VIEWS)}
    if objectives:
        queries["objectives"] = _objectives(objectives, dialect)
    return "\n".join(f"CREATE OR REPLACE VIEW {name} AS\n{query.rstrip()};\n" for name, query in queries.items())


def _objectives(objectives: Sequence[Objective], dialect: str) -> str:
    """Return the query of the view `objectives` with these rows."""
    rows = [
        f"SELECT {_text(one.task, dialect)} AS task, '{one.measure}' AS measure, "
        f"CAST({one.within_ms} AS BIGINT) AS within_ms, CAST({one.target!r} AS DOUBLE) AS target"
        for one in objectives
    ]
    return "\nUNION ALL\n".join(rows)


def _text(value: str, dialect: str) -> str:
    quoted = value.replace("\\", "\\\\") if dialect == "spark" else value  # other dialects have no escapes
    return "'" + quoted.replace("'", "\\'" if dialect == "spark" else "''") + "'"
