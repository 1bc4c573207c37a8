"""docs/spark-cluster.md is true: its lines are submitted to a cluster whose executors have no Millrace of their own."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.project.page import blocks_of
from tests.servers.ministack import S3Server
from tests.spark.programs.cluster_proof import ROWS, TASKS
from tests.spark.standalone import OF_SPARK, ROOT, SMALL, Cluster, packed, running_cluster

PAGE = (ROOT / "docs" / "spark-cluster.md").read_text("utf-8")
HEAD = "spark://head:7077"
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": SMALL,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": SMALL,
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # so that all executors take part
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}


def at_night(test: Any) -> Any:
    return pytest.mark.nightly(pytest.mark.timeout(500)(test))


def submit_line() -> str:
    [line] = [block.text for block in blocks_of(PAGE, "sh") if "spark-submit" in block.text]
    return line


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder to submit from: the page's files, and the archive."""
    folder = tmp_path_factory.mktemp("desk")
    for block in blocks_of(PAGE):
        assert block.file is not None, "every block of the page is a file"
        (folder / block.file).write_text(block.text, "utf-8")
    packed(folder)
    settings = "".join(f"{name} {value}\n" for name, value in SETTINGS.items())
    (folder / "spark-defaults.conf").write_text(settings, "utf-8")
    return folder


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, environment: None, bucket: S3Server, desk: Path
) -> Iterator[Cluster]:
    """The store's address and the keys of its bucket are in the environment of the workers, as of the driver."""
    store = {
        "JOBS_URL": bucket.address("cluster").url,
        "AWS_ACCESS_KEY_ID": bucket.access_key,
        "AWS_SECRET_ACCESS_KEY": bucket.secret_key,
        "MILLRACE_FEED_DELAY_MS": "0",
        "MILLRACE_ALLOW_NO_VERSIONING": "1",
    }
    (desk / "jobs-url").write_text(bucket.address("proof").url + "\n", "utf-8")
    with running_cluster(tmp_path_factory.mktemp("cluster"), **store) as found:
        yield Cluster(found.master, {**found.environment, **store}, found.bare)


def submit(cluster: Cluster, desk: Path, line: str, **environment: str) -> str:
    assert HEAD in line
    done = subprocess.run(
        ["sh", "-ec", line.replace(HEAD, cluster.master)],
        cwd=desk,
        env={**cluster.environment, "SPARK_CONF_DIR": str(desk), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=360,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]  # a program's errors are on Spark's stdout
    return done.stdout


@at_night
def test_the_line_of_the_page_prints_what_the_page_says(cluster: Cluster, desk: Path):
    [said] = [block.output for block in blocks_of(PAGE, "sh") if block.output is not None]

    assert submit(cluster, desk, submit_line()) == said


@at_night
def test_executors_find_millrace_in_the_archive_and_nowhere_else(cluster: Cluster, desk: Path, tmp_path: Path):
    program = ROOT / "tests" / "spark" / "programs" / "cluster_proof.py"
    own_store = "--conf spark.executorEnv.JOBS_URL=$JOBS_URL --files jobs-url"
    line = submit_line().replace("nightly.py", f"{own_store} {program} {tmp_path}")
    url = (desk / "jobs-url").read_text("utf-8").strip()

    said = json.loads(submit(cluster, desk, line, JOBS_URL=url).splitlines()[-1])

    assert len(said["found"]) == TASKS
    assert len({row["cwd"] for row in said["found"]}) == 2  # both executors, each in a folder of its own
    for row in said["found"]:
        assert row["prefix"] == str(cluster.bare)
        assert row["alone"] == "ModuleNotFoundError: No module named 'millrace'"
        assert row["millrace"] == f"{row['cwd']}/deps/millrace/__init__.py"
        assert row["shop"] == f"{row['cwd']}/shop.py"
    assert (said["jobs"], said["payloads"], said["lake"]) == (2 * ROWS,) * 3
    assert said["events"] == said["streamed"] == said["taken"] == 2 * ROWS


def test_the_page_packs_what_the_extra_brings_but_for_spark_itself():
    [packing] = [block.text for block in blocks_of(PAGE, "sh") if "--target" in block.text]
    extra = [one.partition(";")[0].strip() for one in metadata.requires("millrace") or () if "== 'spark'" in one]

    for needed in extra:
        name = re.match(r"[\w-]+", needed)
        assert name and ((name[0] in OF_SPARK) != (f"'{needed}'" in packing)), needed
    assert len(extra) >= 4 and "'.[s3]'" in packing
