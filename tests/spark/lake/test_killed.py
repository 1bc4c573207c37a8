"""A real process, killed for real, in the middle of its work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.spark.lake import Lake, LakePlace
from millrace.spark.lake.audit import audit
from tests.spark.conftest import Place
from tests.spark.filled import all_events, fill


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_run_that_is_killed_again_and_again_loses_and_doubles_nothing(
    spark: SparkSession, sqlite: Place, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    for number, table in enumerate(("events", "throughput", "jobs", "durations")):
        with sqlite.open() as opened:
            opened.run(fill(opened.store, 5 + number))
        _kill_once_there(lake, table, sqlite.url)
    with sqlite.open() as opened:
        expected = [(event.seq, event.n) for event in opened.run(all_events(opened.store))]

    done = subprocess.run(_command(lake, sqlite.url), capture_output=True, text=True, check=False, timeout=300)

    assert done.returncode == 0, done.stderr
    found = Lake(lake, spark)
    assert sorted((row["seq"], row["n"]) for row in found.events().collect()) == sorted(expected)
    assert audit(found).sound
    named = {path.split("/")[1] for path in found.manifest.paths}
    assert {directory.name for directory in LakePlace(lake).data.iterdir()} == named  # dead runs left nothing


def _kill_once_there(lake: Path, table: str, url: str) -> None:
    process = subprocess.Popen(
        _command(lake, url), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        while process.poll() is None and not list(lake.glob(f"data/*/{table}/*")):
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # Python and the JVM that it started
        process.wait()


def _command(lake: Path, url: str) -> list[str]:
    return [sys.executable, "-m", "millrace", "pipeline", "run", "--url", url, "--lake", str(lake), "--memory", "1g"]
