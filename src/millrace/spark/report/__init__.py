"""The report: a lake as one page to look at, with nothing to download. See docs/report.md.

    from millrace.spark.lake import Lake
    from millrace.spark.report import html, report_of

    Path("report.html").write_text(html(report_of(Lake("lake", spark))), "utf-8")

What it takes has two halves. `report_of` asks Spark and answers with a `Report`, a few thousand plain numbers whatever
the size of the lake; `html` is a pure function of those.
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
    """The page needs no Spark; importing it should not load any."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
