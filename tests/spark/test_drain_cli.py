"""`millrace pipeline drain`, and a drain through Spark Connect: each in a process of its own, with a JVM of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.request import Query
from tests.cli.stage import Stage
from tests.spark.conftest import Place
from tests.spark.programs.drain_shop import fail, ship

ROOT = Path(__file__).resolve().parents[2]
SHOP = "tests.spark.programs.drain_shop:app"
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")},
    "PYTHONPATH": str(ROOT),
    "PYTHONWARNINGS": "ignore",
    "PYSPARK_PYTHON": sys.executable,
}


def put(place: Place, *specs: Any) -> None:
    with place.open() as opened:
        opened.run(opened.store.enqueue(list(specs)))


def states(place: Place) -> Counter[str]:
    with place.open() as opened:
        return Counter(job.state.value for job in opened.run(opened.store.find(Query(limit=1000))).jobs)


def runs(ledger: Path) -> int:
    return len(ledger.read_text().splitlines())


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.nightly
def test_ctrl_c_lets_running_jobs_end_and_leaves_the_rest_for_later(sqlite: Place, tmp_path: Path):
    ledger = tmp_path / "ledger"
    ledger.touch()
    put(sqlite, fail.options(priority=9).spec(0, str(ledger)))
    put(sqlite, *(ship.spec(n, str(ledger), 0.2) for n in range(1, 600)))
    command = [sys.executable, "-m", "millrace", "pipeline", "drain", SHOP, "--url", sqlite.url, "--queue", "orders"]
    options = ["--partitions", "2", "--slots", "3", "--master", "local[2]", "--json"]

    drain = subprocess.Popen(
        [*command, *options], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        end = time.monotonic() + 120
        while runs(ledger) < 20:
            assert drain.poll() is None and time.monotonic() < end, "the drain should have begun"
            time.sleep(0.05)
        drain.send_signal(signal.SIGINT)
        out, err = drain.communicate(timeout=60)
    finally:
        if drain.poll() is None:
            drain.kill()
            drain.communicate()

    assert drain.returncode == 0, err
    said = json.loads(out)
    assert "stopping: running jobs may finish within 25s" in err
    assert {worker["ended"] for worker in said["workers"]} == {"stopped"}
    assert (said["dead"], said["released"], said["lost"]) == (1, 0, 0)  # each was let to its end
    assert said["completed"] == runs(ledger) - 1
    assert states(sqlite) == {"dead": 1, "completed": said["completed"], "waiting": 599 - said["completed"]}
    assert said["left"]["ready"] == 599 - said["completed"]


def test_a_drain_without_an_app_or_a_store_says_what_to_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("MILLRACE_"):
            monkeypatch.delenv(name)
    cli = Stage(monkeypatch)

    no_app = cli.refused("pipeline", "drain", "--url", "sqlite:///jobs.db")
    no_module = cli.refused("pipeline", "drain", "no_such_shop:app", "--url", "sqlite:///jobs.db")

    no_store = cli.refused("pipeline", "drain", SHOP, "--url", "sqlite:///jobs.db")
    no_time = cli.refused("pipeline", "drain", SHOP, "--url", "sqlite:///jobs.db", "--for", "a while")
    no_end = cli.refused("pipeline", "drain", SHOP, "--url", "sqlite:///jobs.db", "--until", "done")

    assert (no_app.code, no_module.code, no_store.code, no_time.code, no_end.code) == (2, 2, 3, 2, 2)
    assert "there is no database" in no_store.err and not (tmp_path / "jobs.db").exists()
    assert "a while" in no_time.err
    assert 'until="empty" or until="stopped"' in no_end.err
    assert "millrace pipeline drain module:name" in no_app.err
    assert "there is no module 'no_such_shop'" in no_module.err


CONNECT = """
import sys
from pyspark.sql import SparkSession
from millrace.spark.java import use_java
from tests.spark.programs.drain_shop import app

use_java()
builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.memory", "1g").getOrCreate()
outcome = app.on_spark(spark, url=sys.argv[1], queues="orders").wait(100)
print(len(outcome.workers), outcome.completed, outcome.total("dead"))
stopped = app.on_spark(spark, url=sys.argv[1], queues="orders", partitions=1, until="stopped")
stopped.stop()
print({worker.ended for worker in stopped.wait(60).workers})
spark.stop()
"""


@pytest.mark.nightly
@pytest.mark.timeout(200)
def test_a_backlog_is_drained_through_spark_connect(sqlite: Place, tmp_path: Path):
    ledger = tmp_path / "ledger"
    ledger.touch()
    put(sqlite, *(ship.spec(n, str(ledger)) for n in range(50)), fail.spec(50, str(ledger)))

    command = [sys.executable, "-c", CONNECT, sqlite.url]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=180, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-2:] == ["2 50 1", "{'stopped'}"]
    assert runs(ledger) == 51
    assert states(sqlite) == {"completed": 50, "dead": 1}
