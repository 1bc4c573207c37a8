"""The floor under the memory store: a dict and a deque. It decides nothing and keeps no history."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from pathlib import Path

from benchmarks.lab.measure import Spent, Watch
from benchmarks.lab.subject import main, payloads


class Floor:
    durability = "none: lives and dies with its process"
    durable = False

    def __init__(self, path: Path) -> None:
        self.jobs: dict[int, bytes] = {}
        self.results: dict[int, bytes] = {}
        self.ready: deque[int] = deque()

    def enqueue(self, jobs: int) -> Spent:
        watch = Watch()
        for number, payload in enumerate(payloads(jobs)):
            self.jobs[number] = json.dumps(payload).encode()
            self.ready.append(number)
        return watch.spent()

    bulk = enqueue

    def process(self, jobs: int) -> Spent:
        self.bulk(jobs)
        return asyncio.run(self._process(jobs))

    async def _process(self, jobs: int) -> Spent:
        watch = Watch()
        while self.ready:
            number = self.ready.popleft()
            await noop(**json.loads(self.jobs[number]))
            self.results[number] = b"null"
        assert len(self.results) == jobs
        return watch.spent()


async def noop(number: int, text: str) -> None:
    pass


if __name__ == "__main__":
    main({"floor": Floor})
