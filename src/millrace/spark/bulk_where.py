"""Predicates over jobs: which names they may use, whether they are valid, and which rows they select.

Spark checks a predicate before the store is read, against a table of nulls with the same columns. To find out whether
the predicate uses a column, the check is repeated on a table without this column: an error shows that it is used.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.spark.schema import DEAD, JOBS, table_named
from millrace.spark.table import Table
from millrace.views.bulk import BulkAction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The columns from `select` to `apply`. `finished_ms` and `replays` show whether a job has changed since.
SELECTED = (
    "id string, seq bigint, queue string, task string, state string, error string, finished_ms bigint, replays int"
)
_ALWAYS = ("id", "seq", "queue", "task", "archived", "error_type", "error_message")
_OF_JOBS = ("state", "finished_at", "replays", "cancel_requested")


class Alias(msgspec.Struct, frozen=True):
    """A convenient name for an expression over a table's columns."""

    name: str
    sql: str
    needs: tuple[str, ...]
    help: str
    type: str = "string"


_ERROR = Alias(
    "error",
    "CASE WHEN error_type IS NOT NULL THEN concat_ws(': ', error_type, error_message) END",
    ("error_type", "error_message"),
    "type and message of the last failure, as `ValueError: no such address`",
)
_TEXT = Alias("payload_text", "CAST(payload AS STRING)", ("payload",), "the payload as text")
ALIASES = {
    JOBS.name: (
        _ERROR,
        _TEXT,
        Alias(
            "died_at",
            "CASE WHEN state = 'dead' THEN finished_at END",
            ("state", "finished_at"),
            "when a dead job died",
            "timestamp",
        ),
    ),
    DEAD.name: (
        _ERROR,
        _TEXT,
        Alias("state", "'dead'", (), "always dead"),
        Alias("finished_at", "died_at", ("died_at",), "the same as died_at", "timestamp"),
        Alias("replays", "CAST(NULL AS INT)", (), "not available in this table", "int"),
    ),
}


class Predicate(msgspec.Struct, frozen=True):
    """A valid predicate. `columns` are the columns to read from the table; `of_state` and `of_archived` say whether the
    text uses the columns `state` and `archived`.
    """

    text: str
    table: Table
    columns: tuple[str, ...]
    of_state: bool
    of_archived: bool


def understood(spark: SparkSession, where: str, table: str, action: BulkAction) -> Predicate:
    """Check the predicate `where` and return it. Raises InvalidInput, with a list of the available columns, if the
    predicate is empty or Spark cannot resolve it.
    """
    found = predicate_table(table, action)
    if not where.strip():
        raise InvalidInput("the predicate is empty. Name the jobs: \"task = 'x' and error like '%timeout%'\"; or true")
    wrong = _wrong(spark, where, found)
    if wrong is not None:
        raise InvalidInput(f"{where!r} is not a valid predicate: {wrong}.{_elsewhere(where, found)} {speaks_of(found)}")
    columns = tuple(name for name in found.names if _needed(name, where, found))
    return Predicate(where, found, columns, _uses(spark, where, found, "state"), _uses(spark, where, found, "archived"))


def predicate_table(name: str, action: BulkAction) -> Table:
    found = table_named(name)
    if found.name not in ALIASES:
        raise InvalidInput(f"jobs are chosen from the table jobs or dead, not {name}")
    if found is DEAD and "dead" not in action.states:
        raise InvalidInput(f"nothing in the table dead can be {action.past}; choose from the table jobs")
    return found


def chosen(rows: DataFrame, predicate: Predicate, action: BulkAction) -> DataFrame:
    """Return the jobs of `rows` that match the predicate and that the action applies to, with the columns of
    SELECTED.
    """
    from pyspark.sql import functions as F

    jobs = with_aliases(rows, predicate.table)
    jobs = jobs.where(F.col("state").isin(*(action.states if predicate.of_state else action.usual)))
    if action.archived is not None or not predicate.of_archived:
        jobs = jobs.where(F.col("archived") == F.lit(bool(action.archived)))
    if action.also_running:
        jobs = jobs.where(~F.col("cancel_requested"))  # cancellation was requested already
    finished = F.unix_millis("finished_at").alias("finished_ms")
    return jobs.where(predicate.text).select("id", "seq", "queue", "task", "state", "error", finished, "replays")


def with_aliases(rows: DataFrame, table: Table) -> DataFrame:
    """Return `rows` with a column added for each alias of the table. Aliases that need a missing column are skipped."""
    from pyspark.sql import functions as F

    there = [one for one in ALIASES[table.name] if set(one.needs) <= set(rows.columns)]
    return rows.select("*", *(F.expr(one.sql).alias(one.name) for one in there))


def speaks_of(table: Table) -> str:
    names = sorted({*table.names, *(alias.name for alias in ALIASES[table.name])})
    return f"The columns of {table.name} are: {', '.join(names)}"


def _needed(name: str, where: str, table: Table) -> bool:
    """Return whether to read this column. Some columns are always read. Others, such as large payloads and results, are
    read only if the predicate names them (or an alias that needs them), or contains a star.
    """
    if name in (*_ALWAYS, *(_OF_JOBS if table is JOBS else ("died_at",))) or "*" in where:
        return True
    names = {name, *(alias.name for alias in ALIASES[table.name] if name in alias.needs)}
    return any(re.search(rf"\b{word}\b", where, re.IGNORECASE) for word in names)


def _wrong(spark: SparkSession, where: str, table: Table, without: str | None = None) -> str | None:
    """Return Spark's error message for the predicate; None if the predicate is valid.

    `without` names a column to leave out of the checked table. An error in a check without this column shows that the
    predicate uses it. The table is created without the column, because Spark still resolves a column after `drop`.
    """
    from pyspark.errors import AnalysisException

    columns = ", ".join(f"CAST(NULL AS {kind}) AS `{name}`" for name, kind in _kinds(table) if name != without)
    try:
        _ = spark.sql(f"SELECT {columns}").where(where).schema  # forces resolution, also on Connect
    except AnalysisException as error:
        return _brief(str(error))
    return None


def _kinds(table: Table) -> list[tuple[str, str]]:
    """Return the names that a predicate may use, with their types."""
    return [
        *((column.name, column.type) for column in table.columns),
        *((alias.name, alias.type) for alias in ALIASES[table.name]),
    ]


def _uses(spark: SparkSession, where: str, table: Table, column: str) -> bool:
    return _wrong(spark, where, table, without=column) is not None


def _elsewhere(where: str, table: Table) -> str:
    """Return a hint if the predicate uses a column that only the table `dead` has; otherwise an empty string."""
    if table is not JOBS:
        return ""
    only = [name for name in DEAD.names if name not in JOBS.names and name != "died_at"]
    meant = [name for name in only if re.search(rf"\b{name}\b", where, re.IGNORECASE)]
    return f" {', '.join(meant)} is in the table dead: choose that one (--table dead)." if meant else ""


def _brief(text: str) -> str:
    """Return the first line of Spark's message, without error codes."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = re.sub(r"^\[[\w.]+\]\s*", "", lines[0] if lines else "Spark gave no reason")
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", first).rstrip(". ")
