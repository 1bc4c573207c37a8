"""The floor under the Redis store: the bare protocol over a blocking socket, and hiredis' parser.

A single enqueue is one EVALSHA whose script does nothing: the fastest that a queue with a script can be. In bulk and in
processing, jobs are entries of a list: 1,000 per push, and 200 per claim and per end. A claim moves jobs to a list of
running ones, an end removes them from it; the next claim is sent while handlers run. There is no record of a job, no
history and no rule. "floor-redis-py" makes the same single enqueue with redis-py on uvloop, for comparison.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hiredis
from redis.asyncio import Redis

from benchmarks.lab import callers
from benchmarks.lab.measure import Spent, Watch
from benchmarks.lab.redis_place import url_of
from benchmarks.lab.subject import main, payloads

ENQUEUES, CLAIMS = 1_000, 200
NOTHING = "return 1"
CLAIM = """
local jobs = redis.call('LPOP', KEYS[1], ARGV[1])
if not jobs then
  return {}
end
redis.call('RPUSH', KEYS[2], unpack(jobs))
return jobs
"""


class Floor:
    durability = "in the server's memory"
    durable = False

    def __init__(self, path: Path) -> None:
        self.url = url_of(path)

    def enqueue(self, jobs: int) -> Spent:
        with a_line(self.url) as line:
            sha = line.ask("SCRIPT", "LOAD", NOTHING)
            watch = Watch()
            for payload in payloads(jobs):
                line.ask("EVALSHA", sha, 1, "job", json.dumps(payload))
            return watch.spent()

    def bulk(self, jobs: int) -> Spent:
        with a_line(self.url) as line:
            watch = Watch()
            bodies = (json.dumps(payload) for payload in payloads(jobs))
            while part := list(islice(bodies, ENQUEUES)):
                line.ask("RPUSH", "ready", *part)
            return watch.spent()

    def process(self, jobs: int) -> Spent:
        with a_line(self.url) as line:
            sha = line.ask("SCRIPT", "LOAD", CLAIM)
            claim = ("EVALSHA", sha, 2, "ready", "running", CLAIMS)
            watch = Watch()
            done, found = 0, line.ask(*claim)
            while found:
                line.send(*claim)
                for body in found:
                    noop(**json.loads(body))
                line.send("LTRIM", "running", len(found), -1)
                done += len(found)
                found = line.receive()
                assert line.receive() == b"OK"
            spent = watch.spent()
            assert done == jobs
            return spent


class ByClient(Floor):
    """Only the single enqueue is of interest."""

    bulk = process = None  # type: ignore[assignment]

    def enqueue(self, jobs: int) -> Spent:
        return callers.run(self._enqueue(jobs))

    async def _enqueue(self, jobs: int) -> Spent:
        async with Redis.from_url(self.url, protocol=2) as client:
            sha: Any = await client.script_load(NOTHING)
            watch = Watch()
            for payload in payloads(jobs):
                await client.evalsha(sha, 1, "job", json.dumps(payload))
            return watch.spent()


class Line:
    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._reader = hiredis.Reader()

    def send(self, *words: Any) -> None:
        self._socket.sendall(hiredis.pack_command(words))

    def receive(self) -> Any:
        while (answer := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(1 << 16))
        return answer

    def ask(self, *words: Any) -> Any:
        self.send(*words)
        return self.receive()


@contextmanager
def a_line(url: str) -> Iterator[Line]:
    where = urlsplit(url)
    with socket.create_connection((where.hostname or "", where.port or 0)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = Line(connection)
        assert line.ask("SELECT", where.path.lstrip("/")) == b"OK"
        yield line


def noop(number: int, text: str) -> None:
    pass


if __name__ == "__main__":
    main({"floor": Floor, "floor-redis-py": ByClient})
