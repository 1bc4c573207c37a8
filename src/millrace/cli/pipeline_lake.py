"""What the commands about a lake share: its options, the session they work with, and how a store is named to Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.pipeline import spark_session
from millrace.cli.session import NO_STORE, Session
from millrace.domain.errors import InvalidInput
from millrace.runtime.settings import masked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LakePath = Annotated[Path, typer.Option("--lake", metavar="DIR", help="The lake's directory.", show_default=False)]
Master = Annotated[
    str | None, typer.Option("--master", metavar="MASTER", help="Where Spark runs: local[4], spark://…, sc://… .")
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="Of Spark's driver, when it runs here: a quarter of the machine's."),
]
Comparing = Annotated[
    bool, typer.Option("--store/--no-store", help="Compare with the store that --url or MILLRACE_URL names.")
]
SECRET_URL = "MILLRACE_PIPELINE_URL"  # holds a URL with a password, which must not show up in plans and logs
SERIES = ("throughput", "durations", "errors", "worker_use")


@contextmanager
def spark_for(master: str | None, memory: str | None = None, *, spoken: bool = False) -> Iterator[SparkSession]:
    remote = master is not None and master.startswith("sc://")  # its driver runs already
    settings = {} if remote or memory is None else {"spark_driver_memory": memory}
    spark = spark_session(master, spoken=spoken, **settings)
    try:
        yield spark
    finally:
        spark.stop()


def url_of(session: Session) -> str | None:
    """The store that is set, in words that hold in every process."""
    url = session.settings["url"]
    if url is None and session.has_app:
        url = session.app().store.url
    return None if url is None else _absolute(url)


def require_url(session: Session) -> str:
    url = url_of(session)
    if url is None:
        raise InvalidInput(NO_STORE)
    return url


def options_for(url: str) -> dict[str, str]:
    """The options that name a store to Spark. Called before the session starts, whose processes inherit the secret."""
    if masked(url) == url:
        return {"url": url}
    os.environ[SECRET_URL] = url
    return {"urlEnv": SECRET_URL}


def teller(session: Session) -> Callable[[str], None]:
    """Progress, for whoever watches."""
    if session.output.json or not sys.stderr.isatty():
        return lambda _text: None
    return session.output.say


def _absolute(url: str) -> str:
    from millrace.spark.open import absolute_url

    return absolute_url(url)
