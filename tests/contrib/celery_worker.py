"""A worker of Millrace in a thread, for tests of callers that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millrace.contrib.celery import Celery

PATIENCE = 60.0


@contextmanager
def working(app: Celery, **options: Any) -> Iterator[None]:
    """Run a worker of the app until the block ends."""
    started, loops, failed = threading.Event(), [], []
    worker = app.millrace.worker(**options)

    async def work() -> None:
        loops.append(asyncio.get_running_loop())
        async with app.millrace:
            started.set()
            await worker.run()

    def main() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=main)
    thread.start()
    try:
        assert started.wait(PATIENCE)
        yield
    finally:
        if thread.is_alive():
            asyncio.run_coroutine_threadsafe(worker.stop(), loops[0])
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert failed == []
