"""The lake: a store's history in Parquet, copied incrementally, with derived tables.

`Lake(path, spark)` reads a lake; `take(place, spark, feed)` adds the store's new events to it. See docs/lake.md.
"""

from __future__ import annotations

from millrace.spark.lake.feed import StoreFeed
from millrace.spark.lake.lake import Lake
from millrace.spark.lake.place import LakePlace
from millrace.spark.lake.taking import Taken, TakeRequest, take

__all__ = ["Lake", "LakePlace", "StoreFeed", "TakeRequest", "Taken", "take"]
