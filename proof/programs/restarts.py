"""Kill the server with SIGKILL under load, start it again, and account for every job afterwards.

    python -m proof.programs.restarts --store redis --seconds 300 --quickest 5 --slowest 40

Workers and producers are the processes of the kill -9 suite; nobody kills them here. The server is at the level at
which an answer survives it. What was acknowledged and what was run stands in ledgers outside of the store.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from proof.programs.kill9 import PROGRAMS, Fleet, Settings, wait_for_the_first_run, wait_until_all_ended
from proof.programs.kill9_judge import Verdict, count_lines, judge
from tests.servers.postgres import PostgresServer, wheel_binaries
from tests.servers.redis_server import RedisServer

LONGEST_AWAY = 1.0  # seconds


class Server(Protocol):
    def kill(self) -> None: ...

    def start(self) -> object: ...


@contextmanager
def a_durable_server(store: str) -> Iterator[tuple[Server, str]]:
    """It, and the URL of a store in it."""
    if store == "redis":
        redis = RedisServer("--appendonly", "yes", "--appendfsync", "always")
        try:
            yield redis.start(), f"{redis.url}?durability=disk"
        finally:
            redis.close()
    else:
        postgres = PostgresServer(wheel_binaries(), durable=True)
        try:
            postgres.start()
            yield postgres, postgres.url
        finally:
            postgres.remove()


def run(settings: Settings, folder: Path, server: Server, tell: Callable[[str], None] = lambda line: None) -> Verdict:
    """`settings.url` leads to the server; it is killed every `quickest` to `slowest` seconds."""
    chance = random.Random(settings.seed)
    fleet = Fleet(settings, folder)
    restarts = 0
    try:
        fleet.start()
        wait_for_the_first_run(fleet)
        began = time.monotonic()
        while time.monotonic() - began < settings.seconds:
            time.sleep(chance.uniform(settings.quickest, settings.slowest))
            server.kill()
            time.sleep(chance.uniform(0, LONGEST_AWAY))
            server.start()
            restarts += 1
            lines = count_lines(fleet.ledgers)
            tell(f"{restarts:>4} restarts, {lines['acknowledged']:>7,} enqueued, {lines['ended']:>7,} run")
        wait_until_all_ended(fleet, lambda _: None, began)
        seconds = time.monotonic() - began
        fallen = [child.name for child in fleet.workers if child.process.poll() is not None]
        codes = fleet.end()
    finally:
        fleet.clear()
    verdict = asyncio.run(judge(fleet.place, fleet.ledgers, set(), set()))
    verdict.facts |= {"seconds": f"{seconds:.1f}", "restarts": restarts}
    verdict.require(not fallen, f"workers ended by themselves: {fallen}")
    verdict.require(codes == [0] * len(codes), f"the workers ended with {codes}")
    verdict.require(not fleet.complaints(), fleet.complaints())
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAMS}.restarts", description=__doc__.split("\n")[0])
    parser.add_argument("--store", choices=["redis", "postgres"], default="redis")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--quickest", type=float, default=5.0)
    parser.add_argument("--slowest", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    asked = parser.parse_args()
    settings = Settings(asked.seconds, asked.jobs, workers=asked.workers, seed=asked.seed, patience=120.0)
    settings.quickest, settings.slowest = asked.quickest, asked.slowest
    with tempfile.TemporaryDirectory(prefix="millrace-restarts-") as folder, a_durable_server(asked.store) as found:
        server, settings.url = found
        verdict = run(settings, Path(folder), server, lambda line: print(line, flush=True))
    print(f"seed {asked.seed}")
    print(verdict)
    return int(bool(verdict.problems))


if __name__ == "__main__":
    sys.exit(main())
