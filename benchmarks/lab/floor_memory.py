"""The floor under the memory store: dicts, heaps and lists holding the same records, and no decisions.

The same is written as by Millrace: a job record by id and by seq, its place among the ready, the leased and the
finished, and for every step an event with all its facts, in the feed and in the job's history. Nothing is checked,
nothing is locked, and one handler is awaited after the other.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path

from benchmarks.lab.subject import main, payloads
from millrace.domain.event import Event, Kind
from millrace.domain.job import Job, Spec, State

BATCH = 100
LEASE, KEEP = 30_000, 3_600_000


class Floor:
    durability = "none: lives and dies with its process"
    durable = False

    def __init__(self, path: Path) -> None:
        self.jobs: dict[str, Job] = {}
        self.by_seq: dict[int, Job] = {}
        self.ready: list[tuple[int, int, int]] = []
        self.leased: list[tuple[int, int]] = []
        self.finished: list[tuple[int, int]] = []
        self.results: list[tuple[int, int]] = []
        self.feed: list[Event] = []
        self.histories: dict[int, list[Event]] = {}
        self.counts: Counter[State] = Counter()

    def enqueue(self, jobs: int) -> float:
        began = time.perf_counter()
        for seq, payload in enumerate(payloads(jobs), start=1):
            self._add(seq, json.dumps(payload).encode())
        return time.perf_counter() - began

    bulk = enqueue

    def process(self, jobs: int) -> float:
        self.bulk(jobs)
        return asyncio.run(self._process())

    async def _process(self) -> float:
        began = time.perf_counter()
        while self.ready:
            taken = list(islice(iter(self._claim, None), BATCH))
            for job in taken:
                await noop(**json.loads(job.spec.payload))
            for job in taken:
                self._settle(job)
        return time.perf_counter() - began

    def _add(self, seq: int, payload: bytes) -> None:
        now = milliseconds()
        job_id = f"{now:015x}-{seq:020x}"
        job = Job(Spec(job_id, "noop", payload=payload, token=job_id), seq, 1, State.WAITING, now, now)
        self.jobs[job_id] = self.by_seq[seq] = job
        self.histories[seq] = []
        heappush(self.ready, (0, now, seq))
        self._tell(job, Kind.ENQUEUED, now)

    def _claim(self) -> Job | None:
        if not self.ready:
            return None
        now = milliseconds()
        job = self.by_seq[heappop(self.ready)[2]]
        job.state, job.attempt, job.started_at = State.RUNNING, 1, now
        job.worker, job.lease_id, job.lease_until = "floor", f"lease-{job.seq:020x}", now + LEASE
        heappush(self.leased, (job.lease_until, job.seq))
        self._tell(job, Kind.CLAIMED, now)
        return job

    def _settle(self, job: Job) -> None:
        now = milliseconds()
        job.state, job.finished_at = State.COMPLETED, now
        job.result, job.result_until = b"null", now + KEEP
        heappop(self.leased)
        heappush(self.finished, (now, job.seq))
        heappush(self.results, (job.result_until, job.seq))
        self._tell(job, Kind.COMPLETED, now)
        job.worker = job.lease_id = job.lease_until = None

    def _tell(self, job: Job, kind: Kind, now: int) -> None:
        spec = job.spec
        history = self.histories[job.seq]
        event = Event(
            spec.id,
            job.seq,
            job.generation,
            len(history) + 1,
            kind,
            now,
            spec.queue,
            spec.task,
            job.state,
            job.attempt,
            worker=job.worker,
            lease=job.lease_id,
        )
        history.append(event)
        self.feed.append(event)
        self.counts[job.state] += 1


def milliseconds() -> int:
    return time.time_ns() // 1_000_000


async def noop(number: int, text: str) -> None:
    pass


if __name__ == "__main__":
    main({"floor": Floor})
