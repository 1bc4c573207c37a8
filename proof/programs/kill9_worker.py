"""A worker to be killed: runs jobs and writes down, outside of the store, when each run began and ended."""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from pathlib import Path

from millrace.app.app import App
from millrace.app.handler.context import Context
from proof.programs.kill9_jobs import LEASE, QUEUES, Ledger, milliseconds, store_at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", required=True)
    parser.add_argument("--ledgers", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--slots", type=int, required=True)
    options = parser.parse_args()
    logging.getLogger("millrace").setLevel(logging.CRITICAL)  # a lost lease is what this suite is about
    ledger = Ledger(options.ledgers, options.name)
    app = App(store_at(options.database))

    @app.task(lease=LEASE / 1000)
    async def on_loop(ctx: Context, takes: int) -> None:
        ledger.write("began", ctx.id, ctx.seq, ctx.attempt, milliseconds())
        if takes:
            await asyncio.sleep(takes / 1000)
        ledger.write("ended", ctx.id, ctx.seq, ctx.attempt, milliseconds())

    @app.task(lease=LEASE / 1000)
    def in_thread(ctx: Context, takes: int) -> None:
        ledger.write("began", ctx.id, ctx.seq, ctx.attempt, milliseconds())
        time.sleep(takes / 1000)
        ledger.write("ended", ctx.id, ctx.seq, ctx.attempt, milliseconds())

    app.on("worker_started", lambda _: (options.ledgers / f"{options.name}.up").touch())
    app.on("lost", lambda event: ledger.write("lost", event.job.id, event.job.seq, event.job.attempt, milliseconds()))

    async def work() -> None:
        async with app:
            worker = app.worker(
                QUEUES, slots=options.slots, name=options.name, reap_interval=0.5, poll_max=0.5, shutdown_deadline=5.0
            )
            await worker.run()

    asyncio.run(work())


if __name__ == "__main__":
    main()
