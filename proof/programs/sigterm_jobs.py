"""The worker of the SIGTERM suite: `python -m proof.programs.sigterm_jobs KIND`; its place is in the environment.

Its handlers stand at the top of a module, so that children can import them. Each writes down, outside of the store,
when it began and ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from millrace import App, Context, Task
from proof.programs.kill9_jobs import Ledger

FOLDER = Path(os.environ["SIGTERM_FOLDER"])
FOR_EVER = 60_000  # milliseconds: longer than any stop may take
DEAF = 60_001  # as long, and does not hear that it is to end

app = App(f"sqlite:///{FOLDER}/jobs.db")
ledger = Ledger(FOLDER, f"p{os.getpid()}")


@app.task(queue="async", lease=60, timeout=120)
async def on_loop(ctx: Context, takes: int) -> None:
    ledger.write("began", ctx.id, ctx.attempt)
    until = asyncio.get_running_loop().time() + takes / 1000
    while (left := until - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            if takes != DEAF:
                raise
    ledger.write("ended", ctx.id, ctx.attempt)


@app.task(queue="thread", lease=60, timeout=120)
def in_thread(ctx: Context, takes: int) -> None:
    ledger.write("began", ctx.id, ctx.attempt)
    if takes == DEAF:
        time.sleep(takes / 1000)
    elif ctx.cancelled.wait(takes / 1000):
        ctx.check()
    ledger.write("ended", ctx.id, ctx.attempt)


@app.task(queue="process", lease=60, timeout=120, process=True)
def in_process(ctx: Context, takes: int) -> None:
    ledger.write("began", ctx.id, ctx.attempt)
    if takes == DEAF:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        until = time.monotonic() + takes / 1000
        while time.monotonic() < until:
            with contextlib.suppress(BaseException):
                time.sleep(1)
    time.sleep(takes / 1000)
    ledger.write("ended", ctx.id, ctx.attempt)


TASKS: dict[str, Task[..., Any]] = {"async": on_loop, "thread": in_thread, "process": in_process}


async def work(kind: str) -> None:
    app.on("worker_started", lambda _: (FOLDER / "up").touch())
    async with app:
        await app.worker(
            kind,
            tasks=[TASKS[kind]],
            slots=8,
            processes=2,
            shutdown_deadline=float(os.environ["SIGTERM_DEADLINE"]),
            grace=float(os.environ["SIGTERM_GRACE"]),
        ).run()


if __name__ == "__main__":
    logging.getLogger("millrace").setLevel(logging.ERROR)
    asyncio.run(work(sys.argv[1]))
