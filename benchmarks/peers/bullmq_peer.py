"""BullMQ on Node, with ioredis: one worker with many jobs at a time; `addBulk` for bulk, 1,000 at a time.

Finished no-ops are removed (`removeOnComplete`), as others keep none. The trip waits for its result through
`QueueEvents`. Its default is one job at a time. The queue itself is in `bullmq_peer.mjs`; this script measures it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from benchmarks.lab.environment import node_with
from benchmarks.lab.measure import Spent, Watch
from benchmarks.lab.redis_place import url_of
from benchmarks.lab.subject import main

SCRIPT = Path(__file__).with_suffix(".mjs")
AT_ONCE = 100


class OnBullMq:
    delivery = "at least once: a job whose worker dies runs again after its lock has expired, 30 s; results on request"
    durability = "in the server's memory"
    durable = False

    def __init__(self, path: Path) -> None:
        self.url = url_of(path)
        self.node, self.modules = node_with("bullmq")

    def _command(self, verb: str, number: int, option: int) -> list[str]:
        return [str(self.node), str(SCRIPT), str(self.modules), verb, self.url, str(number), str(option)]

    def _measure(self, verb: str, number: int, option: int = 1) -> Spent:
        with subprocess.Popen(self._command(verb, number, option), stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "start\n"
            watch = Watch(child.pid)
            assert child.stdout.readline() == "stop\n"
            return watch.spent()

    def enqueue(self, jobs: int) -> Spent:
        return self.callers(jobs, 1)

    def callers(self, jobs: int, number: int) -> Spent:
        return self._measure("enqueue", jobs, number)

    def bulk(self, jobs: int) -> Spent:
        return self._measure("bulk", jobs)

    def process(self, jobs: int) -> Spent:
        return self._measure("process", jobs, AT_ONCE)

    def process_default(self, jobs: int) -> Spent:
        return self._measure("process", jobs, 1)

    def serve(self) -> None:
        command = self._command("serve", 0, AT_ONCE)
        os.execv(command[0], command)

    def call(self, times: int) -> list[float]:
        done = subprocess.run(self._command("call", times, 1), capture_output=True, text=True, check=True)
        found: list[float] = json.loads(done.stdout)
        return found


if __name__ == "__main__":
    main({"bullmq": OnBullMq})
