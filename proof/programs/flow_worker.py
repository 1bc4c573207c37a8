"""A worker for a flow with fan-out and fan-in: `python -m proof.programs.flow_worker URL`. A test kills it and starts
another one.
"""

from __future__ import annotations

import asyncio
import sys
import time

from millrace import App, Flow

PARTS = 24


def shop(url: str) -> App:
    """Return an app with the tasks of the flow. No number of lost leases makes one of its jobs dead."""
    app = App(url)

    @app.task(max_stalls=None, max_attempts=None, retry=[0])
    def start(number: int) -> int:
        time.sleep(0.01)
        return number

    @app.task(max_stalls=None, max_attempts=None, retry=[0])
    async def double(number: int) -> int:
        await asyncio.sleep(0.05)
        return 2 * number

    @app.task(max_stalls=None, max_attempts=None, retry=[0])
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    return app


def flow_of(app: App) -> Flow[int]:
    """Return a flow of 24 chains, whose results are added, and the sum doubled."""
    start, double, total = app.tasks["start"], app.tasks["double"], app.tasks["total"]
    return app.chain([app.gather([app.chain(start.spec(n), double) for n in range(PARTS)]), total, double])


RESULT = 2 * sum(2 * number for number in range(PARTS))


if __name__ == "__main__":
    worker = shop(sys.argv[1]).worker(slots=3, lease="1s", reap_interval=0.2)
    asyncio.run(worker.run())
