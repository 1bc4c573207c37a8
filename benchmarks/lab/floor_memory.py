"""The floor under the memory store: a dict, a deque and a list of events, with the same data and no decisions."""

from __future__ import annotations

import json
import time
from collections import deque
from pathlib import Path
from typing import Any

from benchmarks.lab.subject import main, payloads


class Floor:
    durability = "none: lives and dies with its process"
    durable = False

    def __init__(self, path: Path) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.waiting: deque[str] = deque()
        self.events: list[tuple[str, str, int]] = []

    def enqueue(self, jobs: int) -> float:
        began = time.perf_counter()
        for payload in payloads(jobs):
            self._add(payload)
        return time.perf_counter() - began

    bulk = enqueue

    def process(self, jobs: int) -> float:
        self.bulk(jobs)
        began = time.perf_counter()
        while self.waiting:
            job = self._move(self.waiting.popleft(), "running")
            noop(**json.loads(job["payload"]))
            self._move(job["id"], "completed")
        return time.perf_counter() - began

    def _add(self, payload: dict[str, Any]) -> None:
        job_id = f"job-{len(self.jobs)}"
        self.jobs[job_id] = {
            "id": job_id,
            "task": "noop",
            "queue": "default",
            "payload": json.dumps(payload).encode(),
            "state": "waiting",
            "enqueued_at": time.time_ns(),
        }
        self.waiting.append(job_id)
        self.events.append((job_id, "waiting", time.time_ns()))

    def _move(self, job_id: str, state: str) -> dict[str, Any]:
        job = self.jobs[job_id]
        job["state"] = state
        self.events.append((job_id, state, time.time_ns()))
        return job


def noop(number: int, text: str) -> None:
    pass


if __name__ == "__main__":
    main({"floor": Floor})
