"""Analytics: SQL views over the tables of a lake, such as objectives, trends, cost and a backlog forecast.

The queries are in `views/`. `views.py` has their text in each SQL dialect; `register.py` makes them temporary views of
a Spark session. The report (`spark/report`) shows their rows. See docs/analytics.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.spark.analytics.register import register_views
    from millrace.spark.analytics.views import Objective

__all__ = ["Objective", "register_views"]
_MODULES = {"Objective": "views", "register_views": "register"}


def __getattr__(name: str) -> Any:
    """Import the public names on first use, because `Objective` needs no Spark."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
