"""An app for the tests of the command line. Its store is of no use to anybody: the tests name another."""

from __future__ import annotations

from millrace import App

app = App("memory://")


@app.task
async def greet(name: str, times: int = 1) -> str:
    return f"hello {name}" * times


@app.pool("pool", lanes=2)
async def handle(name: str) -> None: ...


@app.task(max_attempts=1)
def fail(number: int = 7) -> None:
    raise ValueError(f"number {number} is out of luck")
