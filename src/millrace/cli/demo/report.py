"""The end of the demo: a report page made with Spark, or a message that says how to install Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from millrace.cli.output import Output
from millrace.domain.extras import install

if TYPE_CHECKING:
    from millrace.demo.run import DemoSettings


async def make_page(output: Output, settings: DemoSettings) -> str | None:
    """Write the report page and return its path. If this fails, print the reason and return None. A failure does not
    change the exit code of the demo.
    """
    from millrace.demo.report import NoReport, has_spark, make

    if not has_spark():
        output.say(f"To create a report of this history with Spark: {install('spark')}")
        return None
    if not output.json:
        output.say("\nSpark writes a report of this history; --no-report skips it …")
    try:
        page: Path = await make(settings.url, settings.folder)
    except NoReport as reason:
        output.say(f"The report could not be created: {reason}")
        return None
    if not output.json:
        print(f"  Report: {page.as_uri()}")
    return str(page)
