"""DataFrames into the queue, while drivers and executors are killed, and by two drivers at once: a job for each row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.conftest import Place
from tests.spark.killing import ALONE, CLUSTER, KilledProgram
from tests.spark.programs.file_stream import BATCH
from tests.spark.sinking import jobs_in, numbers

TIMES = 20


def require_each_row_once(place: Place, batches: int) -> None:
    assert numbers(jobs_in(place)) == list(range(batches * BATCH))


def kill_drivers(place: Place, folder: Path, times: int) -> None:
    """Each driver repeats the write in which the one before it was killed, and is killed in the next one."""
    writes = KilledProgram("killed_write", place, folder)
    for number in range(times):
        with writes.running(ALONE, str(max(0, number - 1)), str(number)) as process:
            writes.kill_driver(process)
    assert len(jobs_in(place)) < times * BATCH
    with writes.running(ALONE, str(times - 1), str(times - 1)) as process:
        writes.end(process)
    require_each_row_once(place, times)


def write_by_two(place: Place, folder: Path, times: int) -> None:
    both = KilledProgram("killed_write", place, folder)
    for _ in range(times):
        both.go_on()  # no task is held
    with (
        both.running(ALONE, "0", str(times - 1), "a") as one,
        both.running(ALONE, "0", str(times - 1), "b") as other,
    ):
        both.end(one)
        both.end(other)
    require_each_row_once(place, times)


@pytest.mark.timeout(600)
def test_a_write_whose_driver_was_killed_can_be_repeated(environment: None, postgres: Place, tmp_path: Path):
    kill_drivers(postgres, tmp_path, 1)


@pytest.mark.nightly
@pytest.mark.timeout(4_000)
@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_writes_whose_drivers_are_killed_twenty_times(
    environment: None, request: pytest.FixtureRequest, name: str, tmp_path: Path
):
    kill_drivers(request.getfixturevalue(name), tmp_path, TIMES)


@pytest.mark.nightly
@pytest.mark.timeout(4_000)
@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_writes_whose_executors_are_killed_twenty_times(
    environment: None, request: pytest.FixtureRequest, name: str, tmp_path: Path
):
    place = request.getfixturevalue(name)
    writes = KilledProgram("killed_write", place, tmp_path)
    with writes.running(CLUSTER, "0", str(TIMES - 1)) as process:
        for _ in range(TIMES):
            writes.kill_executor(process)
        writes.end(process)
    require_each_row_once(place, TIMES)


@pytest.mark.nightly
@pytest.mark.timeout(4_000)
@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_twenty_writes_by_two_drivers_at_once(
    environment: None, request: pytest.FixtureRequest, name: str, tmp_path: Path
):
    write_by_two(request.getfixturevalue(name), tmp_path, TIMES)
