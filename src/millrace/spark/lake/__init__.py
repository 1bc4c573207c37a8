"""The lake: a store's history in Parquet, taken incrementally, with what follows from it.

`Lake(path, spark)` reads one; `take(place, spark, feed)` adds what is new; see docs/lake.md.
"""

from __future__ import annotations

from millrace.spark.lake.feed import StoreFeed
from millrace.spark.lake.lake import Lake
from millrace.spark.lake.place import Place
from millrace.spark.lake.taking import Asked, Taken, take

__all__ = ["Asked", "Lake", "Place", "StoreFeed", "Taken", "take"]
