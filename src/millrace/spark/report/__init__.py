"""The report: one self-contained page about a lake. See docs/report.md.

    from millrace.spark.lake import Lake
    from millrace.spark.report import html, report_of

    Path("report.html").write_text(html(report_of(Lake("lake", spark))), "utf-8")

A report is made in two phases. `report_of` queries Spark and returns a `Report`, which has a few thousand numbers
whatever the size of the lake. `html` turns the report into a page.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.spark.report.figures import Wanted, report_of
    from millrace.spark.report.model import Report
    from millrace.spark.report.page import html

__all__ = ["Report", "Wanted", "html", "report_of"]
_HOMES = {"Report": "model", "Wanted": "figures", "html": "page", "report_of": "figures"}


def __getattr__(name: str) -> Any:
    """Import the public names on first use, because `html` needs no Spark."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
