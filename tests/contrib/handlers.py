"""The handlers of the jobs that the orchestrators of the tests submit. The orchestrators do not import this file."""

import asyncio
import os
from pathlib import Path

from millrace import App, Context

app = App()


@app.task
def double(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is negative")
    return 2 * number


@app.task
def fail_once(ctx: Context, name: str, fails: bool) -> str:
    if fails and ctx.job.generation == 1:
        raise ConnectionError(f"{name} is not reachable")
    return f"{name}, generation {ctx.job.generation}"


@app.task
async def held() -> str:
    """End when the gate is open. The test or a callback of the orchestrator opens it."""
    while not Path(os.environ["GATE"]).exists():
        await asyncio.sleep(0.05)
    return "released"
