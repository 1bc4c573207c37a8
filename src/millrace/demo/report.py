"""The last page of the demo: its history through the data pipeline, as a report.

It runs in a process of its own, because Spark brings a JVM, and has a lot to say on stderr.

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
LIMIT = 240.0  # seconds; the demo is over by then, and nobody waits longer for its picture


class NoReport(Exception):
    """Why there is none, in one sentence."""


def has_spark() -> bool:
    return find_spec("pyspark") is not None and find_spec("pyarrow") is not None


async def make(url: str, folder: Path) -> Path:
    """The page's path. NoReport when Spark could not make it; the demo is whole without."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "millrace.demo.report", url, str(folder)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT):
            _, told = await child.communicate()
    except TimeoutError:
        raise NoReport(f"it took longer than {LIMIT:g} s") from None
    finally:
        with suppress(ProcessLookupError):
            child.kill()
    if child.returncode:
        last = told.decode(errors="replace").strip().splitlines()[-1:]
        raise NoReport(last[0] if last else f"it ended with {child.returncode}")
    return folder / PAGE


def main(url: str, folder: Path) -> None:
    from millrace.spark.lake import Asked, Lake, Place, StoreFeed, take
    from millrace.spark.report import Wanted, html, report_of
    from millrace.spark.session import QUICK, session

    spark = session("millrace-demo", "local[*]", java_options=QUICK, settings={"spark.sql.shuffle.partitions": "2"})
    try:
        feed = StoreFeed(spark, url=url)
        take(Place(folder / LAKE), spark, feed, Asked(groups=True), lambda _told: None)
        found = report_of(Lake(folder / LAKE, spark), Wanted(title=TITLE, feed=feed))
    finally:
        spark.stop()
    (folder / PAGE).write_text(html(found), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
