"""docs/spark-cluster.md is true: its lines are submitted to a cluster whose executors have no Millrace of their own.

At every push, one program takes everything for a turn on PostgreSQL. The other stores, the lines of the page and a
Connect server on the cluster are for the night.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from millrace.cli.pipeline.options import SECRET_URL
from millrace.store.postgres.migrate import script
from tests.project.page import blocks_of
from tests.servers.postgres import PostgresServer, wheel_binaries
from tests.servers.redis_server import RedisServer
from tests.spark.programs.cluster_proof import CANCELLED, ROWS, TASKS
from tests.spark.standalone import OF_SPARK, ROOT, SMALL, Cluster, packed, running_cluster, running_connect

PAGE = (ROOT / "docs" / "spark-cluster.md").read_text("utf-8")
HEAD = "spark://head:7077"
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": SMALL,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": SMALL,
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # so that all executors take part
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "true",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.log.level": "ERROR",
}
PASSWORD = "hush-4711"


def at_night(test: Any) -> Any:
    return pytest.mark.nightly(pytest.mark.timeout(1_500)(test))


def submit_line() -> str:
    [line] = [block.text for block in blocks_of(PAGE, "sh") if "spark-submit" in block.text]
    return line


@dataclass(frozen=True)
class Servers:
    """A store that a cluster can reach. `urls`: that of the page's program, of the proof, and of the Connect client."""

    extra: str
    urls: tuple[str, str, str]
    environment: dict[str, str]


def redis_servers(stack: ExitStack) -> Servers:
    server = RedisServer("--requirepass", PASSWORD)
    stack.callback(server.close)
    address = server.start().url.replace("//", f"//:{PASSWORD}@")
    return Servers("redis", (f"{address}?prefix=a", f"{address}?prefix=b", f"{address}?prefix=c"), {})


def postgres_servers(stack: ExitStack) -> Servers:
    server = PostgresServer(wheel_binaries())
    stack.callback(server.remove)
    server.start()
    for schema in "abc":
        server.ask(script(schema))
    address = server.url.replace("postgres@", f"postgres:{PASSWORD}@")
    return Servers("postgres", (f"{address}?schema=a", f"{address}?schema=b", f"{address}?schema=c"), {})


@pytest.fixture(
    scope="module",
    params=[
        "postgres",
        pytest.param("redis", marks=pytest.mark.nightly),
        pytest.param("s3", marks=pytest.mark.nightly),
    ],
)
def servers(request: pytest.FixtureRequest, environment: None) -> Iterator[Servers]:
    with ExitStack() as stack:
        if request.param != "s3":
            yield {"redis": redis_servers, "postgres": postgres_servers}[request.param](stack)
            return
        bucket = request.getfixturevalue("bucket")
        keys = {
            "AWS_ACCESS_KEY_ID": bucket.access_key,
            "AWS_SECRET_ACCESS_KEY": bucket.secret_key,
            "MILLRACE_ALLOW_NO_VERSIONING": "1",
        }
        yield Servers("s3", (bucket.address("a").url, bucket.address("b").url, bucket.address("c").url), keys)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, servers: Servers) -> Path:
    """The folder to submit from: the page's files, the archive, and Spark's configuration."""
    folder = tmp_path_factory.mktemp("desk")
    for block in blocks_of(PAGE):
        assert block.file is not None, "every block of the page is a file"
        own_store = block.text.replace("postgresql://jobs@db/jobs", servers.urls[0].replace(f":{PASSWORD}@", "@"))
        (folder / block.file).write_text(own_store, "utf-8")
    packed(folder, servers.extra)
    (folder / "jobs-url").write_text(servers.urls[1] + "\n", "utf-8")
    (folder / "event-log").mkdir()
    settings = {**SETTINGS, "spark.eventLog.dir": f"file://{folder}/event-log"}
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    (folder / "spark-defaults.conf").write_text(lines, "utf-8")
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, servers: Servers, desk: Path) -> Iterator[Cluster]:
    """The store's address, and the keys of a bucket, are in the environment of the workers, as of the driver."""
    urls = {"JOBS_URL": servers.urls[0], "CONNECT_URL": servers.urls[2]}
    store = {**urls, "MILLRACE_FEED_DELAY_MS": "0", **servers.environment}
    with running_cluster(tmp_path_factory.mktemp("cluster"), **store) as found:
        yield replace(found, environment={**found.environment, **store})


def submit(cluster: Cluster, desk: Path, line: str, **environment: str) -> str:
    assert HEAD in line
    done = subprocess.run(
        ["sh", "-ec", line.replace(HEAD, cluster.master)],
        cwd=desk,
        env={**cluster.environment, "SPARK_CONF_DIR": str(desk), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=1_000,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]  # a program's errors are on Spark's stdout
    return done.stdout


@at_night
def test_the_line_of_the_page_prints_what_the_page_says(cluster: Cluster, desk: Path):
    [said] = [block.output for block in blocks_of(PAGE, "sh") if block.output is not None]

    assert submit(cluster, desk, submit_line()) == said


@pytest.mark.timeout(1_500)
def test_executors_find_millrace_in_the_archive_and_nowhere_else_and_show_no_secret(
    cluster: Cluster, servers: Servers, desk: Path, tmp_path: Path
):
    program = ROOT / "tests" / "spark" / "programs" / "cluster_proof.py"
    line = submit_line().replace("nightly.py", f"--files jobs-url {program} {tmp_path}")

    own = {SECRET_URL: servers.urls[1], "PYSPARK_PYTHON": "python3"}  # the session is made as by a command
    said = json.loads(submit(cluster, desk, line, **own).splitlines()[-1])

    assert len(said["found"]) == TASKS
    assert len({row["cwd"] for row in said["found"]}) == 2  # both executors, each in a folder of its own
    for row in said["found"]:
        assert row["prefix"] == str(cluster.bare)
        assert row["alone"] == "ModuleNotFoundError: No module named 'millrace'"
        assert row["millrace"] == f"{row['cwd']}/deps/millrace/__init__.py"
        assert row["shop"] == f"{row['cwd']}/shop.py"
    assert (said["jobs"], said["payloads"], said["lake"]) == (2 * ROWS,) * 3
    assert said["events"] == said["streamed"] == said["taken"] == 2 * ROWS
    assert said["lag"] > 0  # in a bucket, an estimate
    assert said["operated"] == {"cancelled": CANCELLED, "completed": 2 * ROWS - CANCELLED}
    if PASSWORD in servers.urls[1]:
        assert said["by_environment"] and said["shown"] == []
        assert any(page.endswith("/environment") for page in said["named"])  # so a value would be seen there too
        assert holding(SECRET_URL, desk / "event-log") != []
        assert holding(PASSWORD, desk / "event-log", cluster.bare.parent) == []


def holding(text: str, *folders: Path) -> list[str]:
    """The files with this text: of the event log, or of the master and the workers. `jobs-url` is meant to have it."""
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file() and file.name != "jobs-url"]
    return [str(file) for file in files if text.encode() in file.read_bytes()]


@at_night
def test_everything_works_on_the_cluster_through_a_connect_server(
    cluster: Cluster, desk: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    """The client sends the archive for its queries; the sinks of streams get it from the server. It has no Java."""
    settings = {
        **SETTINGS,
        "spark.archives": f"{desk}/deps.tar.gz#deps",
        "spark.executorEnv.PYTHONPATH": "deps",
        "spark.eventLog.enabled": "false",
        "spark.log.level": "INFO",  # the server says when it is up
    }
    (tmp_path / "shop.py").write_bytes((desk / "shop.py").read_bytes())
    environment = {**cluster.environment, "SPARK_DAEMON_MEMORY": "1g"}
    with running_connect(tmp_path_factory.mktemp("server"), settings, cluster.master, **environment) as remote:
        where = json.dumps({"urlEnv": "CONNECT_URL"})
        turn = ["-m", "tests.spark.programs.connect_turn", remote, where, str(tmp_path), f"{desk}/deps.tar.gz#deps"]
        own = {**cluster.environment, "JAVA_HOME": "", "PYTHONPATH": f"{ROOT}:{tmp_path}"}
        done = subprocess.run(
            [sys.executable, *turn], cwd=tmp_path, env=own, capture_output=True, text=True, check=False, timeout=1_000
        )

    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["session"].startswith("pyspark.sql.connect.")
    assert said["jobs"] == said["lake"] == 2 * ROWS
    assert said["lag"] > 0  # in a bucket, an estimate
    assert said["operated"] == {"cancelled": CANCELLED, "completed": 2 * ROWS - CANCELLED}


@at_night
def test_a_command_runs_on_the_cluster_that_sparks_configuration_names(
    cluster: Cluster, servers: Servers, desk: Path, tmp_path: Path
):
    """With the settings of the cluster, and the store in MILLRACE_URL, its command line needs neither."""
    settings = {
        **SETTINGS,
        "spark.master": cluster.master,
        "spark.archives": f"{desk}/deps.tar.gz#deps",
        "spark.executorEnv.PYTHONPATH": "deps",
        "spark.pyspark.python": "python3",
        "spark.eventLog.enabled": "false",
    }
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    (tmp_path / "spark-defaults.conf").write_text(lines, "utf-8")
    rows = "".join(json.dumps({"order": number, "to": "ada@example.com"}) + "\n" for number in range(50))
    (tmp_path / "orders.jsonl").write_text(rows, "utf-8")
    load = ["load", "--from", "jsonl:orders.jsonl", "--task", "pack", "--id-columns", "order", "--queue", "loaded"]
    own = {**cluster.environment, "SPARK_CONF_DIR": str(tmp_path), "MILLRACE_URL": servers.urls[1]}

    done = subprocess.run(
        [sys.executable, "-m", "millrace", "pipeline", *load, "--yes", "--json"],
        cwd=tmp_path,
        env=own,
        capture_output=True,
        text=True,
        check=False,
        timeout=1_000,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout)["queued"] == 50
    assert "Registered app millrace" in (cluster.bare.parent / "master" / "log").read_text("utf-8")


def test_the_page_packs_what_the_extra_brings_but_for_spark_itself():
    [packing] = [block.text for block in blocks_of(PAGE, "sh") if "--target" in block.text]
    extra = [one.partition(";")[0].strip() for one in metadata.requires("millrace") or () if "== 'spark'" in one]

    for needed in extra:
        name = re.match(r"[\w-]+", needed)
        assert name and ((name[0] in OF_SPARK) != (f"'{needed}'" in packing)), needed
    assert len(extra) >= 4 and "'.[postgres]'" in packing
