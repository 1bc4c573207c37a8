"""Millrace in memory: one loop in a thread of its own, where both the worker and whoever asks are at home."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.lab.measure import Spent
from benchmarks.lab.millrace_subject import SLOTS, MillraceSubject, new_loop, plain_noop
from benchmarks.lab.subject import main

R = TypeVar("R")


class Memory(MillraceSubject):
    durability = "none: lives and dies with its process"
    durable = False

    def __init__(self, path: Path) -> None:
        super().__init__("memory://")
        self._loop = new_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def process(self, jobs: int) -> Spent:
        self.bulk(jobs)
        return super().process(jobs)

    def process_default(self, jobs: int) -> Spent:
        self.bulk(jobs)
        return super().process_default(jobs)

    def process_def(self, jobs: int) -> Spent:
        self.task(plain_noop)
        self.bulk(jobs)
        return super().process_def(jobs)

    @contextmanager
    def working(self) -> Iterator[None]:
        worker = self.app.worker(slots=SLOTS)
        self.run(worker.__aenter__())
        try:
            yield
        finally:
            self.run(worker.__aexit__(None, None, None))


if __name__ == "__main__":
    main({"millrace": Memory, "before": Memory})
