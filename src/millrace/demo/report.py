"""The last part of the demo: a report, which the data pipeline makes from the demo's history.

The pipeline runs in a separate process, because Spark starts a JVM, which writes a lot to stderr.

    python -m millrace.demo.report sqlite:///shop.db FOLDER
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

LAKE, PAGE = "lake", "report.html"
TITLE = "The demo’s web shop"
LIMIT = 240.0  # seconds to draw the report after the demo


class NoReport(Exception):
    """The report could not be made. The message has the reason."""


def has_spark() -> bool:
    return find_spec("pyspark") is not None and find_spec("pyarrow") is not None


async def make(url: str, folder: Path) -> Path:
    """Make the report and return its path. Raises NoReport if this fails; the demo continues without a report."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "millrace.demo.report", url, str(folder)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT):
            _, output = await child.communicate()
    except TimeoutError:
        raise NoReport(f"it took longer than {LIMIT:g} s") from None
    finally:
        with suppress(ProcessLookupError):
            child.kill()
    if child.returncode:
        last = output.decode(errors="replace").strip().splitlines()[-1:]
        raise NoReport(last[0] if last else f"it ended with {child.returncode}")
    return folder / PAGE


def main(url: str, folder: Path) -> None:
    from millrace.spark.lake import Lake, LakePlace, StoreFeed, TakeRequest, take
    from millrace.spark.report import Wanted, html, report_of
    from millrace.spark.session import QUICK, session

    spark = session("millrace-demo", "local[*]", java_options=QUICK, settings={"spark.sql.shuffle.partitions": "2"})
    try:
        feed = StoreFeed(spark, url=url)
        take(LakePlace(folder / LAKE), spark, feed, TakeRequest(groups=True), lambda _text: None)
        found = report_of(Lake(folder / LAKE, spark), Wanted(title=TITLE, feed=feed))
    finally:
        spark.stop()
    (folder / PAGE).write_text(html(found), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
