"""Predicates over jobs: what they may speak of, whether they make sense, and which rows they choose.

A predicate is looked at before the store is: Spark resolves it against an empty table of the same columns. That also
tells what it speaks of, exactly: a predicate that resolves without a column does not use it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.spark.bulk_deeds import Deed
from millrace.spark.schema import DEAD, JOBS, table_named
from millrace.spark.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What `select` answers, and `apply` takes. `finished_ms` and `replays` tell later whether a job was touched since.
SELECTED = (
    "id string, seq bigint, queue string, task string, state string, error string, finished_ms bigint, replays int"
)
_ALWAYS = ("id", "seq", "queue", "task", "archived", "error_type", "error_message")
_OF_JOBS = ("state", "finished_at", "replays", "cancel_requested")


class Alias(msgspec.Struct, frozen=True):
    """A friendly name for what a table has under others."""

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
        Alias("replays", "CAST(NULL AS INT)", (), "not known in this table", "int"),
    ),
}


class Predicate(msgspec.Struct, frozen=True):
    """One that makes sense. `columns` are those of the table that have to be read for it."""

    text: str
    table: Table
    columns: tuple[str, ...]
    of_state: bool
    of_archived: bool


def understood(spark: SparkSession, where: str, table: str, deed: Deed) -> Predicate:
    """InvalidInput, with the columns there are, when Spark cannot make sense of it."""
    found = predicate_table(table, deed)
    if not where.strip():
        raise InvalidInput("the predicate is empty. Say which jobs: \"task = 'x' and error like '%timeout%'\"; or true")
    wrong = _wrong(spark, where, found)
    if wrong is not None:
        raise InvalidInput(f"{where!r} does not say which jobs: {wrong}.{_elsewhere(where, found)} {speaks_of(found)}")
    columns = tuple(name for name in found.names if _needed(name, where, found))
    return Predicate(where, found, columns, _uses(spark, where, found, "state"), _uses(spark, where, found, "archived"))


def predicate_table(name: str, deed: Deed) -> Table:
    found = table_named(name)
    if found.name not in ALIASES:
        raise InvalidInput(f"jobs are chosen from the table jobs or dead, not {name}")
    if found is DEAD and "dead" not in deed.states:
        raise InvalidInput(f"nothing in the table dead can be {deed.past}; choose from the table jobs")
    return found


def chosen(rows: DataFrame, predicate: Predicate, deed: Deed) -> DataFrame:
    """The jobs of `rows` that the predicate means and to which the deed can be done: a row for each, as SELECTED."""
    from pyspark.sql import functions as F

    jobs = with_aliases(rows, predicate.table)
    jobs = jobs.where(F.col("state").isin(*(deed.states if predicate.of_state else deed.usual)))
    if deed.archived is not None or not predicate.of_archived:
        jobs = jobs.where(F.col("archived") == F.lit(bool(deed.archived)))
    if deed.also_running:
        jobs = jobs.where(~F.col("cancel_requested"))  # they have been asked already
    finished = F.unix_millis("finished_at").alias("finished_ms")
    return jobs.where(predicate.text).select("id", "seq", "queue", "task", "state", "error", finished, "replays")


def with_aliases(rows: DataFrame, table: Table) -> DataFrame:
    """The aliases whose columns are there; their names are never those of columns."""
    from pyspark.sql import functions as F

    there = [one for one in ALIASES[table.name] if set(one.needs) <= set(rows.columns)]
    return rows.select("*", *(F.expr(one.sql).alias(one.name) for one in there))


def speaks_of(table: Table) -> str:
    names = sorted({*table.names, *(alias.name for alias in ALIASES[table.name])})
    return f"The columns of {table.name} are: {', '.join(names)}"


def _needed(name: str, where: str, table: Table) -> bool:
    """Payloads and results are much to read. A name that the text does not hold cannot be meant, but a star can."""
    if name in (*_ALWAYS, *(_OF_JOBS if table is JOBS else ("died_at",))) or "*" in where:
        return True
    names = {name, *(alias.name for alias in ALIASES[table.name] if name in alias.needs)}
    return any(re.search(rf"\b{word}\b", where, re.IGNORECASE) for word in names)


def _wrong(spark: SparkSession, where: str, table: Table, without: str | None = None) -> str | None:
    """What Spark says against it. A column is left out from the start: one that is only dropped Spark still finds."""
    from pyspark.errors import AnalysisException

    columns = ", ".join(f"CAST(NULL AS {kind}) AS `{name}`" for name, kind in _kinds(table) if name != without)
    try:
        _ = spark.sql(f"SELECT {columns}").where(where).schema  # resolved here, on Connect as well
    except AnalysisException as error:
        return _plainly(str(error))
    return None


def _kinds(table: Table) -> list[tuple[str, str]]:
    """Every name that may be used, with its type."""
    return [
        *((column.name, column.type) for column in table.columns),
        *((alias.name, alias.type) for alias in ALIASES[table.name]),
    ]


def _uses(spark: SparkSession, where: str, table: Table, column: str) -> bool:
    return _wrong(spark, where, table, without=column) is not None


def _elsewhere(where: str, table: Table) -> str:
    """A column that only dead letters have, asked of all jobs."""
    if table is not JOBS:
        return ""
    only = [name for name in DEAD.names if name not in JOBS.names and name != "died_at"]
    meant = [name for name in only if re.search(rf"\b{name}\b", where, re.IGNORECASE)]
    return f" {', '.join(meant)} is in the table dead: choose that one (--table dead)." if meant else ""


def _plainly(text: str) -> str:
    """Spark's own words, without its codes and plans."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = re.sub(r"^\[[\w.]+\]\s*", "", lines[0] if lines else "Spark gave no reason")
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", first).rstrip(". ")
