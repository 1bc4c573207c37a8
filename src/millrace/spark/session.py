"""A SparkSession for the command line and for tests. Library code never makes one: it takes what it is given."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from millrace.domain.errors import InvalidInput
from millrace.spark import register, require_spark
from millrace.spark.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"  # a JVM that starts sooner and never gets fast
SETTINGS = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",  # halves what a Python task costs
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}
_OF_THE_JVM = ("spark.driver.", "spark.ui.", "spark.python.", "spark.executor")  # a Connect client cannot set these


def session(
    name: str = "millrace",
    master: str | None = None,
    *,
    memory: str | None = None,
    java_options: str = "",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with Millrace's source registered. `master` is as Spark writes it: local[*], spark://…, sc://… .

    Without one, Spark's own configuration decides, and where that is silent, this machine with all its cores. The JVM
    may take a quarter of the machine's memory, up to 8 GiB, unless `memory` says otherwise: sorting that does not fit
    goes through the disk, and takes twice as long.
    """
    require_spark()
    from pyspark.sql import SparkSession

    master = master or os.environ.get("SPARK_REMOTE") or os.environ.get("MASTER") or "local[*]"
    if master.startswith("sc://"):
        builder = SparkSession.builder.appName(name).remote(master)
        chosen = {key: value for key, value in SETTINGS.items() if not key.startswith(_OF_THE_JVM)}
    else:
        chosen = {**SETTINGS, **_driver(master, memory or _share_of_memory(), java_options)}
        builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        made = builder.getOrCreate()
    except Exception as error:
        place = master.partition(";")[0]  # a token may follow, with Spark Connect
        raise InvalidInput(f"no Spark session on {place}: {str(error).strip().splitlines()[0]}") from error
    register(made)
    return made


def _driver(master: str, memory: str, java_options: str) -> dict[str, str]:
    """What must be known before the JVM starts."""
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    log = f"-Dlog4j.configurationFile={files('millrace.spark') / 'log4j2.properties'}"
    chosen = {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"{log} -Duser.timezone=UTC {java_options}".strip(),
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        chosen["spark.driver.host"] = chosen["spark.driver.bindAddress"] = LOOPBACK
    return chosen


def _share_of_memory() -> str:
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    except (ValueError, OSError):  # a system that does not say
        there = 0
    return f"{min(8, max(1, there // 4))}g"
