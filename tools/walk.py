"""Shows which code one operation runs: every file and function of the package, in order of first use, with call
counts.

    python -m tools.walk --store sqlite                  a job from enqueue to its history, and four more walks
    python -m tools.walk --store redis --walk heartbeat  one of them
    python -m tools.walk --store postgres --summary      only the counts

The app is warm: one job has run before recording starts. All threads are recorded, including those of the store.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from millrace import App
from millrace.domain.request import Claim

PACKAGE = str(Path(__file__).resolve().parent.parent / "src" / "millrace") + "/"
BEAT = 0.2  # seconds between heartbeats in the walks that wait for one


class Recorder:
    """Counts calls while it is on. Installed before the first thread starts, since a thread keeps its profiler."""

    def __init__(self) -> None:
        self.on = False
        self.calls: Counter[tuple[str, str]] = Counter()

    def install(self) -> None:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def remove(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if not self.on or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            self.calls[code.co_filename.removeprefix(PACKAGE), code.co_qualname] += 1

    @contextmanager
    def recording(self) -> Iterator[Counter[tuple[str, str]]]:
        self.calls = Counter()
        self.on = True
        try:
            yield self.calls
        finally:
            self.on = False


Walk = Callable[["Bench"], Awaitable[Counter[tuple[str, str]]]]


class Bench:
    """A warm app on a store, and the recorder."""

    def __init__(self, app: App, recorder: Recorder) -> None:
        self.app = app
        self.recorder = recorder
        self.release = asyncio.Event()
        self.add = app.task(name="add")(_add)
        self.wait = app.task(name="wait", lease=60)(self._wait)

    async def _wait(self) -> None:
        await self.release.wait()

    async def warm_up(self) -> None:
        job = await self.add.enqueue(1, 2)
        async with self.app.worker(slots=1):
            await self.app.jobs.result(job.id, wait=30)
        await self.app.jobs.history(job.id)


async def _add(a: int, b: int) -> int:
    return a + b


async def walk_job(bench: Bench) -> Counter[tuple[str, str]]:
    """enqueue, claim, run, settle, result, history"""
    async with bench.app.worker(slots=1):
        await asyncio.sleep(0.3)  # until it waits for a job
        with bench.recorder.recording() as calls:
            job = await bench.add.enqueue(1, 2)
            await bench.app.jobs.result(job.id, wait=30)
            await bench.app.jobs.history(job.id)
    return calls


async def walk_cancel(bench: Bench) -> Counter[tuple[str, str]]:
    """cancel of a waiting job"""
    job = await bench.add.enqueue(1, 2)
    with bench.recorder.recording() as calls:
        await bench.app.jobs.cancel(job.id)
    return calls


async def walk_heartbeat(bench: Bench) -> Counter[tuple[str, str]]:
    """a heartbeat of a worker with one running job"""
    bench.release.clear()
    job = await bench.wait.enqueue()
    async with bench.app.worker(slots=1, beat_interval=BEAT):
        await asyncio.sleep(3 * BEAT)
        with bench.recorder.recording() as calls:
            await asyncio.sleep(1.5 * BEAT)
        bench.release.set()
        await bench.app.jobs.result(job.id, wait=30)
    return calls


async def walk_reap(bench: Bench) -> Counter[tuple[str, str]]:
    """from an expired lease to the end of the job's next run"""
    job = await bench.add.enqueue(1, 2)
    store = bench.app.store
    [taken] = await store.claim(Claim(("default",), "gone", limit=1, lease=1))
    assert taken.id == job.id, "the store was not empty"
    await asyncio.sleep(0.05)
    with bench.recorder.recording() as calls:
        async with bench.app.worker(slots=1, reap_interval=BEAT):
            await bench.app.jobs.result(job.id, wait=60)
    return calls


async def walk_get(bench: Bench) -> Counter[tuple[str, str]]:
    """GET /api/jobs/{id}"""
    from millrace.web import application

    job = await bench.add.enqueue(1, 2)
    served = application(bench.app)
    for _ in range(2):
        with bench.recorder.recording() as calls:
            status = await _get(served, f"/api/jobs/{job.id}")
        assert status == 200, f"the server answered {status}"
    return calls


async def _get(served: Any, path: str) -> int:
    """Send one request through ASGI, without a server."""
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope: dict[str, Any] = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET"}
    scope |= {
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "state": {},
    }
    scope |= {"headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}
    await served(scope, receive, send)
    return statuses[0]


WALKS: dict[str, Walk] = {
    "job": walk_job,
    "cancel": walk_cancel,
    "heartbeat": walk_heartbeat,
    "reap": walk_reap,
    "get": walk_get,
}


# ── stores ────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _sqlite() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="millrace-walk-")
    try:
        yield f"sqlite:///{folder}/jobs.db"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _directory() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="millrace-walk-")
    try:
        yield f"file://{folder}/jobs"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _redis() -> Iterator[str]:
    from tests.servers.redis_server import RedisServer

    server = RedisServer()
    try:
        yield server.start().url
    finally:
        server.close()


@contextmanager
def _postgres() -> Iterator[str]:
    from tests.servers.postgres import PostgresServer, wheel_binaries

    server = PostgresServer(wheel_binaries())
    try:
        server.start()
        yield server.url
    finally:
        server.remove()


STORES: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "memory": lambda: nullcontext("memory://"),
    "sqlite": _sqlite,
    "directory": _directory,
    "redis": _redis,
    "postgres": _postgres,
}


# ── the report ────────────────────────────────────────────────────────────────────────────────────


def rendered(name: str, walk: Walk, calls: Counter[tuple[str, str]], summary: bool) -> str:
    files = list(dict.fromkeys(file for file, _ in calls))
    lines = [f"{name}: {walk.__doc__}: {len(files)} files, {len(calls)} functions, {calls.total()} calls"]
    for file in files if not summary else ():
        functions = [(function, count) for (where, function), count in calls.items() if where == file]
        lines.append(f"  {file}")
        lines += [f"    {function}" + (f" ×{count}" if count > 1 else "") for function, count in functions]
    return "\n".join(lines)


async def walks(url: str, names: Sequence[str], recorder: Recorder) -> dict[str, Counter[tuple[str, str]]]:
    async with App(url) as app:
        bench = Bench(app, recorder)
        await bench.warm_up()
        return {name: await WALKS[name](bench) for name in names}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Show which files and functions one operation runs.")
    parser.add_argument("--store", default="sqlite", help=f"{', '.join(STORES)}, or the URL of an empty store")
    parser.add_argument("--walk", choices=WALKS, action="append", help="which operation; all by default")
    parser.add_argument("--summary", action="store_true", help="only the counts")
    options = parser.parse_args(arguments)
    names = options.walk or list(WALKS)

    recorder = Recorder()
    place = STORES[options.store]() if options.store in STORES else nullcontext(options.store)
    with place as url:
        recorder.install()
        try:
            found = asyncio.run(walks(url, names, recorder))
        finally:
            recorder.remove()
    for name, calls in found.items():
        print(rendered(name, WALKS[name], calls, options.summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
