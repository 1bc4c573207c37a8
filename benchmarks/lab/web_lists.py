"""How long a page of a list takes in a large store, and how long what the overview shows.

A round goes on from the cursor of the round before, so that pages from all over the store are measured, and every
continuation of a search that found little. What is `indexed` has 100 ms; any other predicate has 300 ms, for a page or
for a continuation.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any
from urllib.parse import quote

from benchmarks.lab.web_filled import fill
from benchmarks.lab.web_served import Connection, place, server

ROUNDS = 20
INDEXED, OTHER = 100, 300  # milliseconds
LISTS = {
    "newest": ("", INDEXED),
    "oldest": ("oldest=true", INDEXED),
    "queue": ("queue=q3", INDEXED),
    "queue, oldest first": ("queue=q3&oldest=true", INDEXED),
    "queue and task": ("queue=q3&task=t2", INDEXED),
    "task": ("task=t2", INDEXED),
    "ready": ("status=ready", INDEXED),
    "running": ("status=running", INDEXED),
    "completed": ("status=completed", INDEXED),
    "dead": ("status=dead", INDEXED),
    "dead of a queue": ("status=dead&queue=q3", INDEXED),
    "cancelled": ("status=cancelled", INDEXED),
    "since 1h": ("since=1h", INDEXED),
    "group": ("group=g77077", INDEXED),
    "key": ("key=k4242", INDEXED),
    "scheduled": ("status=scheduled", OTHER),
    "completed of a queue, all old": ("status=completed&queue=q3", OTHER),
    "none of a queue": ("status=retrying&queue=q3", OTHER),
    "finished since 1h": ("finished_from=1h", OTHER),
    "finished since 1h, of a queue": ("finished_from=1h&queue=q3", OTHER),
    "finished before 30d": ("finished_to=30d", OTHER),
    "dead of one error": ("error={error}", OTHER),
    "archived": ("status=archived", OTHER),
    "runs after a job": ("after=nobody", OTHER),
}
SCREENS = {
    "overview": ("/api/overview", INDEXED),
    "queues": ("/api/queues", INDEXED),
    "one queue": ("/api/queues/q3", INDEXED),
    "throughput": ("/api/throughput", INDEXED),
    "causes of death": ("/api/dead", OTHER),
    "workers": ("/api/workers", INDEXED),
    "latest events": ("/api/events?limit=100&cursor=end", INDEXED),
    "metrics": ("/metrics", INDEXED),
    "health": ("/health", INDEXED),
}


async def lists(store: str, jobs: int) -> list[dict[str, Any]]:
    with place(store) as url:
        await fill(url, jobs)
        async with server(url) as served:
            client = await Connection.open(served.port)
            _, answer = await client.ask("GET", "/api/dead")
            error = json.loads(answer)["causes"][0]["fingerprint"]
            found = [
                await _measured(client, name, f"/api/jobs?limit=50&{query.format(error=error)}".rstrip("&"), bound)
                for name, (query, bound) in LISTS.items()
            ]
            found += [await _measured(client, name, path, bound) for name, (path, bound) in SCREENS.items()]
            client.close()
    return found


async def _measured(client: Connection, name: str, path: str, bound: int) -> dict[str, Any]:
    times: list[float] = []
    cursor, shown, scanned, pages = None, 0, 0, 0
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        status, body = await client.ask("GET", path if cursor is None else f"{path}&cursor={quote(cursor)}")
        times.append((time.perf_counter() - begun) * 1_000)
        assert status == 200, body
        if path.startswith("/api/jobs"):
            answer = json.loads(body)
            cursor, pages = answer["cursor"], pages + 1
            shown, scanned = shown + len(answer["jobs"]), scanned + answer["scanned"]
    row = {"list": name, "first_ms": times[0], "p50_ms": statistics.median(times), "worst_ms": max(times)}
    return {**row, "jobs": shown / max(1, pages), "scanned": scanned / max(1, pages), "bound_ms": bound}
