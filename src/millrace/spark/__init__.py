"""Millrace on Spark. Spark can read every store as a table or a stream, and write jobs into it. This package also
copies the history into a lake, and runs backlogs of jobs on executors.

All functions use the SparkSession that the caller passes, also through Spark Connect, and do not stop it. Only
`session.py` creates a session, for the command line. `import millrace` does not load this package. Start reading with
`source.py`. To add a column to a table, append it to the table in `schema.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millrace.domain.errors import MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "millrace"


def register(spark: SparkSession) -> None:
    """Register `format("millrace")` with a session. This is necessary only if Spark does not find the data source by
    itself.
    """
    source = import_module("millrace.spark.source")
    spark.dataSource.register(source.MillraceSource)


def require_spark() -> None:
    """Raise MissingExtra with the install command if Spark is missing."""
    for library in ("pyspark", "pyarrow", "pandas", "deltalake"):
        try:
            import_module(library)
        except ModuleNotFoundError as missing:
            raise MissingExtra("the data pipeline's commands and sources", "spark") from missing


def __getattr__(name: str) -> Any:
    if name in ("SCHEMA_VERSION", "TABLES"):
        return getattr(import_module("millrace.spark.schema"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
