"""Through a Connect server in a process of its own: what writes, what streams, the lake, and the commands.

What only reads is in test_source_connect.py; drains and bulk operations are with the others of their kind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.project.page import blocks_of
from tests.spark.conftest import Place
from tests.spark.filled import fill
from tests.spark.programs.cluster_proof import CANCELLED, ROWS
from tests.spark.standalone import BIN, ROOT, SMALL, environment_in, running_connect

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": SMALL,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_connect(tmp_path_factory.mktemp("server"), SETTINGS, MILLRACE_FEED_DELAY_MS="0") as address:
        yield address


def client(folder: Path, *arguments: str) -> str:
    """It finds no Java: only the server has one."""
    own = {"PATH": str(BIN), "JAVA_HOME": "", "PYTHONPATH": str(ROOT), "MILLRACE_FEED_DELAY_MS": "0"}
    environment = {**environment_in(folder), **own}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_rows_streams_and_the_lake_go_through_connect(remote: str, sqlite: Place, tmp_path: Path):
    page = (ROOT / "docs" / "spark-cluster.md").read_text("utf-8")
    [shop] = [block.text for block in blocks_of(page) if block.file == "shop.py"]
    (tmp_path / "shop.py").write_text(shop, "utf-8")

    store = json.dumps({"url": sqlite.url})
    said = json.loads(client(tmp_path, "tests.spark.programs.connect_turn", remote, store, str(tmp_path)))

    assert said["session"].startswith("pyspark.sql.connect.")
    assert said["jobs"] == said["lake"] == said["throughput"] == 2 * ROWS
    assert said["taken"] == [ROWS, ROWS]
    assert said["events"] == said["streamed"] == 2 * ROWS
    assert said["lag"] == 2 * ROWS
    assert said["operated"] == {"cancelled": CANCELLED, "completed": 2 * ROWS - CANCELLED}


def test_the_commands_of_the_lake_work_on_a_connect_server(remote: str, sqlite: Place, tmp_path: Path):
    with sqlite.open() as found:
        found.run(fill(found.store))
        [span] = found.run(found.store.event_spans(None, 1))

    def command(*arguments: str) -> Any:
        return json.loads(client(tmp_path, "millrace", "pipeline", *arguments, "--master", remote, "--json"))

    ran = command("run", "--url", sqlite.url, "--lake", "lake")
    again = command("run", "--url", sqlite.url, "--lake", "lake")
    audit = command("audit", "--url", sqlite.url, "--lake", "lake")
    report = command("report", "--lake", "lake", "--out", "report.html")

    assert (ran["taken"], again["taken"], again["events"]) == (span.count, 0, span.count)
    assert audit["sound"] is True and report["sound"] is True
    assert os.path.getsize(tmp_path / "report.html") == report["bytes"]
