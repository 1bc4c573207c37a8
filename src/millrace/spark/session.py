"""Creates a SparkSession for the command line and for tests. Library code never creates one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from millrace.domain.errors import InvalidInput
from millrace.spark import register, require_spark
from millrace.spark.configured import configured, master_of
from millrace.spark.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
# Starts sooner, but never reaches full speed. With one compiler, the JVM would reserve only 48 MB for compiled code. It
# ends when the code of many queries fills them.
QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -XX:-UsePerfData"
SETTINGS = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",  # halves the cost of a Python task
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
NEEDED = frozenset(  # override the configuration: without these, tables could not be read, or instants would be wrong
    {
        "spark.sql.python.filterPushdown.enabled",
        "spark.sql.session.timeZone",
        "spark.sql.execution.arrow.pyspark.enabled",
        JAVA_OPTIONS,
    }
)
_OF_THE_JVM = ("spark.driver.", "spark.ui.", "spark.python.", "spark.executor")  # a Connect client cannot set these


def session(
    name: str = "millrace",
    master: str | None = None,
    *,
    memory: str | None = None,
    java_options: str = "",
    settings: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session in which Millrace's source is registered. `master` is a Spark master: local[*], spark://…
    or sc://… .

    Without `master`, `spark.master` of `settings`, the environment variables SPARK_REMOTE and MASTER and Spark's own
    configuration are used, in this order. The default is all cores of this machine. Unless `memory`, `settings` or
    Spark's configuration sets it, the JVM gets a quarter of the machine's memory, up to 8 GiB. Sorts that need more
    memory use the disk and take about twice as long. `secrets` are environment variables for the executors of a
    cluster. Raises InvalidInput if Spark cannot create the session, or if a setting would make tables wrong.
    """
    require_spark()
    from pyspark.sql import SparkSession

    given = {**(settings or {}), **({} if memory is None else {"spark.driver.memory": memory})}
    _refuse_conflicts(given)
    there = {**configured(), **given}
    master = master or given.get("spark.remote") or given.get("spark.master") or master_of(there) or "local[*]"
    given = {key: value for key, value in given.items() if key not in ("spark.master", "spark.remote", JAVA_OPTIONS)}
    if master.startswith("sc://"):
        _refuse_packages(given)
        builder = SparkSession.builder.appName(name).remote(master)
        chosen = {key: value for key, value in SETTINGS.items() if not key.startswith(_OF_THE_JVM)} | given
    else:
        chosen = {**SETTINGS, **_driver(master, java_options, there)}
        chosen = {key: value for key, value in chosen.items() if key in NEEDED or key not in there} | given
        builder = SparkSession.builder.appName(name).master(master)
        if secrets and not master.startswith("local["):
            _start_jvm(master, chosen)
            chosen |= _environment_of_executors(secrets, there)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        made = builder.getOrCreate()
    except Exception as error:
        place = master.partition(";")[0]  # a token may follow, with Spark Connect
        raise InvalidInput(f"no Spark session on {place}: {str(error).strip().splitlines()[0]}") from error
    register(made)
    return made


def _refuse_conflicts(given: Mapping[str, str]) -> None:
    for key in sorted(NEEDED & given.keys() & SETTINGS.keys()):
        if given[key].lower() != SETTINGS[key].lower():
            raise InvalidInput(f"{key} must be {SETTINGS[key]}, not {given[key]}: the tables depend on it. Remove it")


def _refuse_packages(given: Mapping[str, str]) -> None:
    if "spark.jars.packages" in given:
        raise InvalidInput(
            "a Connect server is already running, and takes no more packages. Start the server with --packages"
        )


def _environment_of_executors(secrets: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that pass `secrets` to executors. A variable that Spark's configuration sets already, for
    example from a secret of Kubernetes, is left out.
    """
    return {
        f"spark.executorEnv.{name}": value
        for name, value in secrets.items()
        if not any(key.endswith(f".{name}") for key in there)
    }


def _start_jvm(master: str, settings: Mapping[str, str]) -> None:
    """Start the JVM with these settings. Settings that are added later are not on its command line, which every user of
    the machine can read.
    """
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized(conf=SparkConf().setMaster(master).setAll([*settings.items()]))


def _driver(master: str, java_options: str, there: Mapping[str, str]) -> dict[str, str]:
    """Set up Java and the environment for a new JVM. Return the settings that a JVM needs at its start."""
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", there.get("spark.pyspark.python", sys.executable))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    log = f"-Dlog4j.configurationFile={files('millrace.spark') / 'log4j2.properties'}"
    options = [there.get(JAVA_OPTIONS, ""), log, "-Duser.timezone=UTC", java_options]
    chosen = {"spark.driver.memory": _share_of_memory(), JAVA_OPTIONS: " ".join(filter(None, options))}
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        chosen["spark.driver.host"] = chosen["spark.driver.bindAddress"] = LOOPBACK
    return chosen


def _share_of_memory() -> str:
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    except (ValueError, OSError):  # not known on this system
        there = 0
    return f"{min(8, max(1, there // 4))}g"
