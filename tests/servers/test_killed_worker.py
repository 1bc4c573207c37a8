"""Two hundred jobs of 50 ms, the worker kills itself with -9 after a hundred and is started again: all have run in a
minute.

With the settings that everything has by itself, on every store that a second process can open. What the dead worker
held comes back when its lease of half a minute is over, so all stores wait side by side.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from millrace.domain.job import State
from millrace.domain.request import Query
from millrace.store.connect import connect
from millrace.store.protocol import Store, Sweeping
from millrace.testing.invariants import assert_holds, check, gather
from tests.servers import postgres, redis_server

ROOT = Path(__file__).resolve().parents[2]
JOBS, LIMIT = 200, 60.0
PATIENCE = 240.0  # seconds for everything that is not what the test is about: starting programs, on a busy machine
PLACES = {
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db",
    "directory": lambda folder: f"file://{folder}/jobs",
    "redis": redis_server.url_for,
    "postgres": postgres.url_for,
}
PROGRAM = """
import asyncio, os, signal, sys
from millrace import App

app = App(os.environ["MILLRACE_URL"])
ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

ended = 0

@app.task
async def nap(n: int) -> int:
    global ended
    os.write(ledger, f"began {n}\\n".encode())
    if sys.argv[1] == "die" and ended >= 100:
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(0.05)
    ended += 1
    os.write(ledger, f"ended {n}\\n".encode())
    return n

async def main() -> None:
    async with app:
        if sys.argv[1] == "put":
            await nap.enqueue_many([{"n": n} for n in range(200)])
        else:
            await app.worker().run()

asyncio.run(main())
"""


class Place:
    """One store, its worker, and what was run, written down outside of it."""

    def __init__(self, name: str, folder: Path) -> None:
        folder.mkdir()
        self.name, self.url = name, PLACES[name](folder)
        self._ledger = folder / "ledger"
        self._program = folder / "naps.py"
        self._program.write_text(PROGRAM)
        self._worker: subprocess.Popen[bytes] | None = None

    def start(self, role: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "MILLRACE_URL": self.url,
            "LEDGER": str(self._ledger),
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        }
        self._worker = subprocess.Popen([sys.executable, str(self._program), role], env=environment)
        return self._worker

    def ran(self, word: str = "ended") -> Counter[str]:
        text = self._ledger.read_text() if self._ledger.exists() else ""
        return Counter(line.split()[1] for line in text.splitlines() if line.startswith(word))

    def kill(self) -> None:
        if self._worker is not None and self._worker.poll() is None:
            self._worker.send_signal(signal.SIGKILL)
            self._worker.wait()

    async def stop(self) -> None:
        assert self._worker is not None
        self._worker.terminate()
        assert await asyncio.to_thread(self._worker.wait, PATIENCE) == 0

    async def story(self) -> float:
        """Answers the seconds from the new worker's first run until everything had run."""
        assert await asyncio.to_thread(self.start("put").wait, PATIENCE) == 0
        assert await asyncio.to_thread(self.start("die").wait, PATIENCE) == -signal.SIGKILL
        before = self.ran("began").total()
        assert JOBS // 2 <= len(self.ran()) < len(self.ran("began")), (
            f"{self.name}: it was killed while it held nothing"
        )
        self.start("work")
        async with asyncio.timeout(PATIENCE):
            while self.ran("began").total() == before:
                await asyncio.sleep(0.005)
        begun = time.monotonic()
        while len(self.ran()) < JOBS:
            assert time.monotonic() - begun < LIMIT, f"{self.name}: {JOBS - len(self.ran())} jobs were left behind"
            await asyncio.sleep(0.1)
        return time.monotonic() - begun


async def until_settled(store: Store) -> None:
    async with asyncio.timeout(PATIENCE):
        while sum(row.completed for row in await store.count()) < JOBS:
            await asyncio.sleep(0.2)


async def until_it_holds(store: Store) -> None:
    """Without a server, events come into the feed a moment after the change. If the worker was killed in between, a
    sweep adds them; the sweep of a worker may be five minutes away.
    """
    deadline = time.monotonic() + PATIENCE
    while check(await gather(store)) and time.monotonic() < deadline:
        if isinstance(store, Sweeping):
            await store.sweep(full=True)
        await asyncio.sleep(0.5)
    assert_holds(await gather(store))


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_what_a_killed_worker_held_has_run_within_a_minute_of_its_restart(tmp_path: Path):
    places = [Place(name, tmp_path / name) for name in PLACES]
    try:
        took = await asyncio.gather(*(place.story() for place in places))
        for place in places:
            store = connect(place.url)
            await store.connect()
            await until_settled(store)
            await place.stop()
            page = await store.find(Query(limit=1_000, state=State.COMPLETED.value))
            await until_it_holds(store)
            await store.close()
            assert len(page.jobs) == JOBS, place.name
            assert place.ran().total() <= JOBS + 10, f"{place.name}: more ran twice than its slots could hold"
    finally:
        for place in places:
            place.kill()
    print({place.name: f"{seconds:.1f} s" for place, seconds in zip(places, took, strict=True)})
