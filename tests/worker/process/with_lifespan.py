"""An app with a lifespan, whose handlers run in processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from millrace import App, Context
from millrace.app import in_child

NOTES = "MILLRACE_TEST_NOTES"  # a file to which each process writes what it does
app = App("memory://")


def note(text: str) -> None:
    with Path(os.environ[NOTES]).open("a") as file:
        file.write(f"{text} {os.getpid()}\n")


@app.lifespan
async def lifespan() -> AsyncIterator[dict[str, Any]]:
    if in_child.here and os.environ[NOTES].endswith("fail"):
        raise ConnectionError("no database")
    note("starts")
    yield {"pid": os.getpid(), "jobs": 0}
    note("ends")


@app.task(process=True)
def in_process(ctx: Context) -> tuple[bool, int]:
    ctx.state["jobs"] += 1
    return ctx.state["pid"] == os.getpid(), ctx.state["jobs"]


@app.task(process=True)
async def in_process_later(ctx: Context) -> tuple[bool, int]:
    ctx.state["jobs"] += 1
    return ctx.state["pid"] == os.getpid(), ctx.state["jobs"]
