"""Reads Spark's own configuration before a JVM is started. It takes precedence over Millrace's defaults.

If `spark-submit` runs this program, the configuration is read from its JVM. Otherwise it comes from the arguments in
PYSPARK_SUBMIT_ARGS and from `spark-defaults.conf`, in SPARK_CONF_DIR or in the folder `conf` of SPARK_HOME. The
arguments take precedence.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

_LINE = re.compile(r"\s*([^\s#=:]+)(?:\s*[=:]\s*|\s+)(.*?)\s*")
_FLAGS = {"--master": "spark.master", "--remote": "spark.remote", "--driver-memory": "spark.driver.memory"}


def configured(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    environment = os.environ if environment is None else environment
    if "PYSPARK_GATEWAY_PORT" in environment:
        return _of_the_jvm()
    said, file = _arguments(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    return {**_file(file or _defaults(environment)), **said}


def master_of(settings: Mapping[str, str], environment: Mapping[str, str] | None = None) -> str | None:
    """Return the configured Spark master; None if none is set."""
    environment = os.environ if environment is None else environment
    return (
        environment.get("SPARK_REMOTE")
        or environment.get("MASTER")
        or settings.get("spark.remote")
        or settings.get("spark.master")
    )


def _of_the_jvm() -> dict[str, str]:
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # connects to the existing JVM
    return dict(SparkConf().getAll())


def _arguments(text: str) -> tuple[dict[str, str], Path | None]:
    """Parse the arguments of spark-submit. Return their settings, and the file given by --properties-file (None if not
    given), which replaces spark-defaults.conf.
    """
    said: dict[str, str] = {}
    file: Path | None = None
    words = iter(shlex.split(text))
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in _FLAGS or flag in ("--conf", "-c", "--properties-file"):
            value = value if equals else next(words, "")
            if flag in _FLAGS:
                said[_FLAGS[flag]] = value
            elif flag == "--properties-file":
                file = Path(value)
            else:
                key, _, setting = value.partition("=")
                said[key] = setting
    return said, file


def _defaults(environment: Mapping[str, str]) -> Path | None:
    folder = environment.get("SPARK_CONF_DIR")
    if folder:
        return Path(folder) / "spark-defaults.conf"
    home = environment.get("SPARK_HOME")
    if not home:
        found = find_spec("pyspark")
        if found is None or found.origin is None:
            return None
        home = str(Path(found.origin).parent)
    return Path(home) / "conf" / "spark-defaults.conf"


def _file(path: Path | None) -> dict[str, str]:
    try:
        lines = [] if path is None else path.read_text("utf-8", "replace").splitlines()
    except OSError:  # it does not exist, as with Spark from PyPI
        return {}
    found = [match for line in lines if (match := _LINE.fullmatch(line))]
    return {match[1]: match[2] for match in found if match[1].startswith("spark.")}
