"""A Spark program that writes rows as jobs, and is killed in the middle: some rows are in the store, and others not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from millrace.spark.open import OpenedStore
from tests.spark.conftest import Place
from tests.spark.processes import below, executors, kill_together
from tests.spark.programs.file_stream import BATCH

ROOT = Path(__file__).resolve().parents[2]
CLUSTER, ALONE = "local-cluster[2,1,1024]", "local[2,4]"
PATIENCE = 400.0  # seconds


class KilledProgram:
    """Runs `tests.spark.programs.PROGRAM`, which holds each of its batches in the middle until the test lets it go on.

    Each batch has `BATCH` rows, numbered throughout.
    """

    def __init__(self, program: str, place: Place, folder: Path) -> None:
        self._program, self._place, self._folder = program, place, folder
        self.killed = 0

    @contextmanager
    def running(self, master: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        with (self._folder / "log").open("a") as log, self._start(log, master, arguments) as process:
            try:
                yield process
            finally:
                kill_together([process.pid, *below(process.pid)])

    def _start(self, log: TextIO, master: str, arguments: Sequence[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", "-m", f"tests.spark.programs.{self._program}"]
        return subprocess.Popen(
            [*command, str(self._folder), master, self._place.url, *arguments],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            text=True,
        )

    def kill_executor(self, process: subprocess.Popen[str]) -> None:
        """That of the task that waits, with the Python processes under it."""
        task = self._await_middle(process)
        [victim] = [pid for pid in executors(process.pid) if task in below(pid)]
        kill_together([victim, *below(victim)])
        self.go_on()

    def kill_driver(self, process: subprocess.Popen[str]) -> None:
        """With everything that it started."""
        self._await_middle(process)
        kill_together([process.pid, *below(process.pid)])
        process.wait()
        self.go_on()

    def end(self, process: subprocess.Popen[str]) -> None:
        assert process.wait(PATIENCE) == 0, self.said()

    def go_on(self) -> None:
        (self._folder / f"go-{self.killed}").touch()
        self.killed += 1

    def said(self) -> str:
        return (self._folder / "log").read_text("utf-8", "replace")[-4000:]

    def _await_middle(self, process: subprocess.Popen[str]) -> int:
        """Return the process id of the task that waits, when jobs of its batch are in the store."""
        holding, end = self._folder / f"holding-{self.killed}", time.monotonic() + PATIENCE
        with self._place.open() as found:
            while not holding.exists() or self._jobs(found) <= self.killed * BATCH:
                assert process.poll() is None and time.monotonic() < end, self.said()
                time.sleep(0.02)
            assert self._jobs(found) < (self.killed + 1) * BATCH
        return int(holding.read_text())

    def _jobs(self, found: OpenedStore) -> int:
        return sum(one.waiting for one in found.run(found.store.count()))
