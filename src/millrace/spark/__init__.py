"""Millrace on Spark: every store as a source, a sink and a stream; the history as a lake; backlogs on executors.

Nothing here builds or stops a SparkSession: it works with the one it is given, also through Spark Connect.
`import millrace` loads none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millrace.domain.errors import MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "millrace"


def register(spark: SparkSession) -> None:
    """Make `format("millrace")` known to a session. Needed only where Spark does not find it by itself."""
    source = import_module("millrace.spark.source")
    spark.dataSource.register(source.MillraceSource)


def require_spark() -> None:
    """Say how to install what is missing, before an import fails with less helpful words."""
    for library in ("pyspark", "pyarrow", "pandas"):
        try:
            import_module(library)
        except ModuleNotFoundError as missing:
            raise MissingExtra("the data pipeline's commands and sources", "spark") from missing


def __getattr__(name: str) -> Any:
    if name in ("SCHEMA_VERSION", "TABLES"):
        return getattr(import_module("millrace.spark.schema"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
