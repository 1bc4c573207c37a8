"""The HTTP API over loopback: how long a page of a list takes in a large store, and how many enqueues a second it does.

    python -m benchmarks.web lists   [--jobs 1000000] [--json]
    python -m benchmarks.web enqueue [--store sqlite|memory|URL] [--seconds 5] [--connections 16] [--json]

The server is `millrace serve` in a process of its own. After the enqueues the jobs in the store are counted: each that
was answered must be there, once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from millrace import App
from millrace.domain.change import Change
from millrace.domain.outcome import Failure
from millrace.domain.request import Claim

TOKEN = "benchmark-token-0123456789"
PORT = 8397
CHUNK = 5_000
QUEUES, TASKS = 10, 5
ROUNDS = 20
FILTERS = {
    "newest": "",
    "queue": "queue=q3",
    "queue, oldest first": "queue=q3&oldest=true",
    "queue and task": "queue=q3&task=t2",
    "ready": "status=ready",
    "running": "status=running",
    "completed": "status=completed",
    "dead": "status=dead",
    "dead of a queue": "status=dead&queue=q3",
    "cancelled": "status=cancelled",
    "since 1h": "since=1h",
    "group": "group=g77",
    "key": "key=k4242",
    "nothing fits": "queue=q3&status=scheduled",
    "overview": "/api/overview",
    "queues": "/api/queues",
}


class Connection:
    """One keep-alive connection; nothing but what is needed to ask and to read the answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", PORT))

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\nAuthorization: Bearer {TOKEN}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._writer.write(head.encode() + b"\r\n" + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        return int(answer[9:12]), await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def server(url: str) -> AsyncIterator[int]:
    """Its process id, once it answers."""
    command = [sys.executable, "-m", "millrace", "serve", "--url", url, "--port", str(PORT)]
    env = {**os.environ, "MILLRACE_ADMIN_TOKEN": TOKEN, "MILLRACE_LOG_LEVEL": "error"}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        for _ in range(300):
            try:
                (await Connection.open()).close()
                break
            except OSError:
                await asyncio.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


def processor_seconds(pid: int) -> float:
    """What a process has used so far: on a busy machine this tells more than the time that passed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def fill(url: str, jobs: int) -> None:
    """Of all jobs a tenth has completed, a hundredth each is dead, cancelled and running; the rest waits."""
    app = App(url)
    tasks = [app.task(name=f"t{number}")(_nothing) for number in range(TASKS)]
    async with app:
        store = app.store
        number = 0
        while number < jobs:
            size = min(CHUNK, jobs - number)
            specs = [
                tasks[(number + at) // QUEUES % TASKS]
                .options(
                    queue=f"q{(number + at) % QUEUES}",
                    group=f"g{number + at}" if (number + at) % 1000 == 77 or number + at == 77 else None,
                    key=f"k{number + at}" if (number + at) % 1000 == 242 else None,
                )
                .spec(n=number + at)
                for at in range(size)
            ]
            await app.enqueue(specs)
            number += size
            print(f"\r{number:,} of {jobs:,}", end="", file=sys.stderr)
        queues = tuple(f"q{number}" for number in range(QUEUES))
        for share, change in (
            (10, Change.completed(b"1")),
            (100, Change.bury(Failure("ValueError", "no"), "explicit_fail")),
            (100, None),
        ):
            left = jobs // share
            while left > 0:
                claimed = await store.claim(Claim(queues, "bench", limit=min(1_000, left), lease=3_600_000))
                if change is not None:
                    await store.settle([(job.lease, change) for job in claimed])
                left -= len(claimed)
        waiting = [job.id async for job in app.jobs.find(state="waiting", limit=jobs // 100, newest_first=True)]
        await app.jobs.cancel(waiting)
    print(file=sys.stderr)


async def _nothing(n: int) -> None: ...


async def lists(jobs: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/jobs.db"
        await fill(url, jobs)
        found: list[dict[str, Any]] = []
        async with server(url):
            client = await Connection.open()
            for name, query in FILTERS.items():
                path = query if query.startswith("/") else f"/api/jobs?limit=50&{query}".rstrip("&")
                times: list[float] = []
                shown = 0
                for _ in range(ROUNDS):
                    begun = time.perf_counter()
                    status, body = await client.ask("GET", path)
                    times.append((time.perf_counter() - begun) * 1_000)
                    assert status == 200, body
                    shown = len(json.loads(body).get("jobs", ()))
                times.sort()
                found.append({"list": name, "jobs": shown, "p50_ms": statistics.median(times), "worst_ms": times[-1]})
            client.close()
        return found


async def enqueues(store: str, seconds: float, connections: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        url = {"sqlite": f"sqlite:///{folder}/jobs.db", "memory": "memory://"}.get(store, store)
        if store == "sqlite":
            async with App(url):
                pass
        async with server(url) as pid:
            clients = [await Connection.open() for _ in range(connections)]
            times: list[float] = []
            until = time.perf_counter() + seconds

            async def produce(client: Connection, number: int) -> int:
                sent = 0
                while time.perf_counter() < until:
                    body = b'{"task":"mail","payload":{"to":"ada@example.com","n":%d}}' % (number * 1_000_000 + sent)
                    begun = time.perf_counter()
                    status, answer = await client.ask("POST", "/api/jobs", body)
                    times.append(time.perf_counter() - begun)
                    assert status == 201, answer
                    sent += 1
                return sent

            begun, used = time.perf_counter(), processor_seconds(pid)
            accepted = sum(await asyncio.gather(*(produce(client, n) for n, client in enumerate(clients))))
            took, used = time.perf_counter() - begun, processor_seconds(pid) - used
            _, answer = await clients[0].ask("GET", "/api/overview")
            kept = json.loads(answer)["waiting"]
            for client in clients:
                client.close()
        assert kept == accepted, f"{accepted} were answered and {kept} are in the store"
        times.sort()
        return {
            "store": store,
            "connections": connections,
            "accepted": accepted,
            "kept": kept,
            "enqueues_per_s": accepted / took,
            "cpu_us_each": used / accepted * 1e6,
            "p50_ms": statistics.median(times) * 1_000,
            "p99_ms": times[int(len(times) * 0.99)] * 1_000,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["lists", "enqueue"], nargs="?", default="enqueue")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--store", default="sqlite")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows: list[dict[str, Any]]
    if options.what == "lists":
        rows = asyncio.run(lists(options.jobs))
    else:
        rows = [asyncio.run(enqueues(options.store, options.seconds, options.connections))]
    if options.json:
        print(json.dumps({"load": load, "rows": rows}))
        return
    print(f"load of the machine before: {load:.1f}")
    print("\t".join(rows[0]))
    for row in rows:
        print("\t".join(f"{value:,.1f}" if isinstance(value, float) else str(value) for value in row.values()))


if __name__ == "__main__":
    main()
