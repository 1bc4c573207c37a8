"""The tasks that `benchmarks.worker` gives to `millrace worker`."""

from __future__ import annotations

from time import thread_time

from millrace import App

app = App("memory://")  # MILLRACE_URL names the store
BUSY = 200e-6  # seconds


@app.task
async def noop(text: str) -> None:
    pass


@app.task
async def busy(text: str) -> None:
    """Use a core for 200 µs, in Python."""
    end = thread_time() + BUSY
    while thread_time() < end:
        pass
