"""How the demo ends: with a page that Spark made of its history, or with a line on how to get one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from millrace.cli.output import Output

if TYPE_CHECKING:
    from millrace.demo.run import Settings


async def make_page(output: Output, settings: Settings) -> str | None:
    """Its path. Whatever goes wrong here is said, and changes nothing about how the demo went."""
    from millrace.demo.report import NoReport, has_spark, make

    if not has_spark():
        output.say("For a report page of this history, made by Spark: pip install 'millrace[spark]'")
        return None
    if not output.json:
        output.say("\nSpark is making a report page of this history; --no-report leaves it out …")
    try:
        page: Path = await make(settings.url, settings.folder)
    except NoReport as reason:
        output.say(f"The report page could not be made: {reason}")
        return None
    if not output.json:
        print(f"  Report: {page.as_uri()}")
    return str(page)
