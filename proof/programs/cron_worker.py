"""A worker to be killed, with two schedules that tick every second."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from millrace import App


def app_on(database: Path) -> App:
    app = App(f"sqlite:///{database}")

    @app.cron("* * * * * *", name="calendar", tz="Europe/Berlin", missed="all")
    @app.cron(every="1s", name="interval")
    @app.task(keep_result=None)
    async def tick() -> None: ...

    return app


def main() -> None:
    database, up = Path(sys.argv[1]), Path(sys.argv[2])
    logging.getLogger("millrace").setLevel(logging.CRITICAL)
    app = app_on(database)
    app.on("worker_started", lambda _: up.touch())

    async def work() -> None:
        async with app:
            await app.worker(slots=2, shutdown_deadline=2.0).run()

    asyncio.run(work())


if __name__ == "__main__":
    main()
