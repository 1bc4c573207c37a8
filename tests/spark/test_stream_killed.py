"""A stream of files into the queue, while its driver and its executors are killed: every row becomes one job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.spark.conftest import Place
from tests.spark.killing import ALONE, CLUSTER, KilledProgram
from tests.spark.programs.file_stream import BATCH, FILES_AT_ONCE, ROWS
from tests.spark.sinking import jobs_in, numbers


def files_of(folder: Path, batches: int) -> None:
    (folder / "in").mkdir()
    for number in range(batches * FILES_AT_ONCE):
        path = folder / "in" / f"{number:03}.json"
        wide = "x" * 1_000  # Spark passes rows on by 64 kB
        path.write_text(
            "".join(json.dumps({"n": number * ROWS + n, "wide": wide}) + "\n" for n in range(ROWS)), "utf-8"
        )
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def run_with_kills(place: Place, folder: Path, executor_kills: int, driver_kills: int) -> None:
    batches = executor_kills + driver_kills + 1
    files_of(folder, batches)
    stream = KilledProgram("file_stream", place, folder)
    with stream.running(CLUSTER) as process:
        for _ in range(executor_kills):
            stream.kill_executor(process)
        stream.kill_driver(process)
    for _ in range(driver_kills - 1):
        with stream.running(ALONE) as process:
            stream.kill_driver(process)
    assert len(jobs_in(place)) < batches * BATCH

    stream.go_on()
    with stream.running(ALONE) as process:
        stream.end(process)

    assert numbers(jobs_in(place)) == list(range(batches * BATCH))


@pytest.mark.timeout(1_000)
def test_a_stream_of_files_enqueues_each_row_once_when_its_driver_and_an_executor_are_killed(
    environment: None, postgres: Place, tmp_path: Path
):
    run_with_kills(postgres, tmp_path, 1, 1)


@pytest.mark.nightly
@pytest.mark.timeout(4_000)
@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_a_stream_of_files_enqueues_each_row_once_when_driver_and_executors_are_killed_ten_times_each(
    environment: None, request: pytest.FixtureRequest, name: str, tmp_path: Path
):
    run_with_kills(request.getfixturevalue(name), tmp_path, 10, 10)
