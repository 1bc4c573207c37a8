"""Spark looks into installed modules named pyspark_* for data sources: so `format("millrace")` works by itself."""

from millrace.spark.source import MillraceSource as DefaultSource

__all__ = ["DefaultSource"]
