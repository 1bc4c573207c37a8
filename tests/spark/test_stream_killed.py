"""A stream of files into the queue, while its driver and its executors are killed: every row becomes one job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.spark.open import OpenedStore
from tests.spark.conftest import Place
from tests.spark.processes import below, executors, kill_together
from tests.spark.programs.file_stream import FILES_AT_ONCE, ROWS
from tests.spark.sinking import jobs_in, numbers

ROOT = Path(__file__).resolve().parents[2]
CLUSTER, ALONE = "local-cluster[2,1,1024]", "local[2,4]"
BATCH = FILES_AT_ONCE * ROWS
PATIENCE = 400.0  # seconds


class KilledStream:
    """Each kill is in the middle of a micro-batch: some of its rows are in the store, and others not."""

    def __init__(self, place: Place, folder: Path, batches: int) -> None:
        self._place, self._folder = place, folder
        self.rows = batches * BATCH
        self.killed = 0
        (folder / "in").mkdir()
        for number in range(batches * FILES_AT_ONCE):
            path = folder / "in" / f"{number:03}.json"
            wide = "x" * 1_000  # Spark passes rows on by 64 kB
            path.write_text(
                "".join(json.dumps({"n": number * ROWS + n, "wide": wide}) + "\n" for n in range(ROWS)), "utf-8"
            )
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    @contextmanager
    def running(self, master: str) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-W", "ignore", "-m", "tests.spark.programs.file_stream"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        log = (self._folder / "log").open("a")
        with (
            log,
            subprocess.Popen(
                [*command, str(self._folder), master, self._place.url],
                cwd=self._folder,
                env=environment,
                stdout=log,
                stderr=log,
                text=True,
            ) as process,
        ):
            try:
                yield process
            finally:
                kill_together([process.pid, *below(process.pid)])

    def kill_executor(self, process: subprocess.Popen[str]) -> None:
        """That of the task that waits, with the Python processes under it."""
        task = self._await_middle(process)
        [victim] = [pid for pid in executors(process.pid) if task in below(pid)]
        kill_together([victim, *below(victim)])
        self._go_on()

    def kill_driver(self, process: subprocess.Popen[str]) -> None:
        """With everything that it started."""
        self._await_middle(process)
        kill_together([process.pid, *below(process.pid)])
        process.wait()
        self._go_on()

    def finish(self) -> None:
        self._go_on()
        with self.running(ALONE) as process:
            assert process.wait(PATIENCE) == 0, self._said()

    def _await_middle(self, process: subprocess.Popen[str]) -> int:
        """Return the process id of the task that waits, when jobs of its micro-batch are in the store."""
        holding, end = self._folder / f"holding-{self.killed}", time.monotonic() + PATIENCE
        with self._place.open() as found:
            while not holding.exists() or self._jobs(found) <= self.killed * BATCH:
                assert process.poll() is None and time.monotonic() < end, self._said()
                time.sleep(0.02)
            assert self._jobs(found) < (self.killed + 1) * BATCH
        return int(holding.read_text())

    def _jobs(self, found: OpenedStore) -> int:
        return sum(one.waiting for one in found.run(found.store.count()))

    def _go_on(self) -> None:
        (self._folder / f"go-{self.killed}").touch()
        self.killed += 1

    def _said(self) -> str:
        return (self._folder / "log").read_text("utf-8", "replace")[-4000:]


def run_with_kills(place: Place, folder: Path, executor_kills: int, driver_kills: int) -> None:
    stream = KilledStream(place, folder, executor_kills + driver_kills + 1)
    with stream.running(CLUSTER) as process:
        for _ in range(executor_kills):
            stream.kill_executor(process)
        stream.kill_driver(process)
    for _ in range(driver_kills - 1):
        with stream.running(ALONE) as process:
            stream.kill_driver(process)
    assert len(jobs_in(place)) < stream.rows

    stream.finish()

    assert numbers(jobs_in(place)) == list(range(stream.rows))


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
