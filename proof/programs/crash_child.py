"""Performs one operation in a process of its own and dies in the midst of it, again and again.

Reads one request per line, forks for each (this process has no threads and no store, so that is safe), and answers
with the child's exit code.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from pathlib import Path

import msgspec

from millrace.domain.job import Lease
from millrace.store.sqlite import SqliteStore
from millrace.testing.clock import VirtualClock
from proof.programs.crash_io import FaultyIo
from proof.programs.crash_scenarios import SCENARIOS


class Request(msgspec.Struct):
    """`scenario` may be "connect": then opening the database is what is cut off."""

    scenario: str
    database: str
    now: int
    leases: list[Lease]
    at: int


async def act(request: Request) -> None:
    io = FaultyIo()
    store = SqliteStore(Path(request.database), clock=VirtualClock(request.now), salt="act", io=io)
    if request.scenario == "connect":
        io.arm("crash", request.at)
        await store.connect()
    else:
        await store.connect()
        io.arm("crash", request.at)
        await SCENARIOS[request.scenario].act(store, request.leases)
    os._exit(0)  # it was done, and nobody heard of it: the process ends without closing anything


def serve(line: str) -> int:
    request = msgspec.json.decode(line, type=Request)
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(act(request))
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    for line in sys.stdin:
        sys.stdout.write(f"{serve(line)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
