"""Options that pipeline commands share: the lake, the Spark session, and the store that Spark reads."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.app.format import moment
from millrace.app.settings import masked
from millrace.cli.pipeline.spark_start import quietly
from millrace.cli.session import NO_STORE, CommandSession
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _lake(value: str) -> str:
    from millrace.spark.lake_location import LakeLocation

    try:
        LakeLocation.parse(value)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from None
    return value


LakePath = Annotated[
    str, typer.Option("--lake", metavar="DIR", help="The lake: a directory, or s3://bucket/prefix.", parser=_lake)
]
AsOf = Annotated[
    str | None,
    typer.Option("--as-of", metavar="TAKE", help="The lake after this take, or at a time: 12, 1d (ago), 2026-01-31."),
]
Comparing = Annotated[
    bool, typer.Option("--store/--no-store", help="Compare with the store that --url or MILLRACE_URL names.")
]
SECRET_URL = "MILLRACE_SECRET_URL"  # Spark hides the values of settings with such a name, see spark.redaction.regex
SERIES = ("throughput", "durations", "errors", "worker_use")


@dataclass
class SparkOptions:
    """Options that determine where Spark runs, and with how much memory."""

    master: Annotated[
        str | None, typer.Option("--master", metavar="MASTER", help="Where Spark runs: local[4], spark://…, sc://… .")
    ] = None
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Memory of Spark's driver, if it runs here (default: a quarter of the machine's).",
        ),
    ] = None

    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; can be repeated.", show_default=False),
    ] = None
    packages: Annotated[
        str | None,
        typer.Option("--packages", metavar="A,B", help="Maven packages for Spark, as group:artifact:version."),
    ] = None

    def settings(self) -> dict[str, str]:
        """Return the settings of Spark that the options give. Raises InvalidInput for text that is no setting."""
        found: dict[str, str] = {}
        for text in self.conf or ():
            key, equals, value = text.partition("=")
            if not equals or not key.strip().startswith("spark."):
                raise InvalidInput(f"--conf {text!r} is not a setting of Spark. Write it as --conf spark.key=value")
            found[key.strip()] = value.strip()
        if self.packages is not None:
            found["spark.jars.packages"] = self.packages
        remote = self.master is not None and self.master.startswith("sc://")  # the driver already runs elsewhere
        if self.memory is not None and not remote:
            found["spark.driver.memory"] = self.memory
        return found

    @contextmanager
    def session(self, *, spoken: bool = False) -> Iterator[SparkSession]:
        """Start a Spark session, yield it, and stop it at the end. With `spoken`, the stderr of Spark's processes is
        shown.
        """
        spark = spark_session(self.master, self.settings(), spoken=spoken)
        try:
            yield spark
        finally:
            spark.stop()


def spark_session(master: str | None, settings: dict[str, str], *, spoken: bool) -> SparkSession:
    """Start a Spark session and return it. Raises MissingExtra if Spark is not installed."""
    from millrace.spark import require_spark

    require_spark()
    from millrace.spark.session import session

    # The command reports why a query was refused. Spark would log it again, as a page of JSON.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    place = "" if master is None else f" on {master.partition(';')[0]}"  # a token may follow, with Spark Connect
    secrets = {name: os.environ[name] for name in (SECRET_URL,) if name in os.environ}
    with quietly(f"starting Spark{place}", spoken=spoken):
        return session(master=master, settings=settings, secrets=secrets)


def url_of(session: CommandSession) -> str | None:
    """Return the URL of the configured store, or None if no store is configured. Paths in the URL are made absolute, so
    that it is valid in every process.
    """
    url = session.settings["url"]
    if url is None and session.has_app:
        url = session.app().store.url
    return None if url is None else _absolute(url)


def require_url(session: CommandSession) -> str:
    url = url_of(session)
    if url is None:
        raise InvalidInput(NO_STORE)
    return url


def options_for(url: str) -> dict[str, str]:
    """Return the Spark options that name the store. A URL with a password is passed in an environment variable, because
    options are shown in plans and logs. Call this before the session starts, which passes the variable on.
    """
    if masked(url) == url:
        return {"url": url}
    os.environ[SECRET_URL] = url
    return {"urlEnv": SECRET_URL}


def keywords_for(url: str) -> dict[str, str | None]:
    """Return the options of `options_for` as keyword arguments for functions in `millrace.spark`."""
    options = options_for(url)
    return {"url": options.get("url"), "url_env": options.get("urlEnv")}


def as_of(text: str | None) -> int | datetime | None:
    """Return the take or the instant of `--as-of`."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    return instant("--as-of", text, int(time() * 1000))


def instant(flag: str, text: str, now: int) -> datetime:
    at = moment(flag, text, now)
    try:
        return datetime.fromtimestamp(at / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        raise InvalidInput(f"{flag} {text} is not a valid date") from None


def progress_printer(session: CommandSession) -> Callable[[str], None]:
    """Return a function that prints progress messages on a terminal, and does nothing elsewhere."""
    if session.output.json or not sys.stderr.isatty():
        return lambda _text: None
    return session.output.say


def _absolute(url: str) -> str:
    from millrace.spark.open import absolute_url

    return absolute_url(url)
