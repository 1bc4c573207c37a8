"""An app with a lifespan, whose handlers run in processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from millrace import App, Context, Depends
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
    async with asyncio.TaskGroup() as group:
        yield {"pid": os.getpid(), "jobs": 0, "group": group}
    note("ends")


@app.task(process=True)
def in_process(ctx: Context) -> tuple[bool, int]:
    ctx.state["jobs"] += 1
    return ctx.state["pid"] == os.getpid(), ctx.state["jobs"]


@app.task(process=True)
async def in_process_later(ctx: Context) -> tuple[bool, int]:
    ctx.state["jobs"] += 1
    return ctx.state["pid"] == os.getpid(), ctx.state["jobs"]


async def shared() -> AsyncIterator[list[int]]:
    yield []
    note("shared")


def job_id(ctx: Context, shared: list[int] = Depends(shared, scope="worker")) -> Iterator[str]:
    shared.append(1)
    yield f"{ctx.id} {len(shared)}"
    note("job")


async def later(job_id: str = Depends(job_id)) -> AsyncIterator[str]:
    yield job_id.upper()
    note("later")


@app.task(process=True)
def injected(number: int, name: str = Depends(job_id), upper: str = Depends(later)) -> str:
    return f"{number} {name} {upper}"


@app.task(process=True)
async def injected_later(number: int, name: str = Depends(job_id), upper: str = Depends(later)) -> str:
    if number < 0:
        raise LookupError("negative")
    return f"{number} {name} {upper}"


async def fail() -> None:
    raise ConnectionError("no connection")


@app.task(process=True)
async def ends_the_lifespan(ctx: Context) -> int:
    background = ctx.state["group"].create_task(fail())
    await asyncio.wait([background])
    return os.getpid()


async def bound_to_its_task() -> AsyncIterator[str]:
    task = asyncio.current_task()
    yield "bound"
    assert asyncio.current_task() is task  # a cancel scope requires this


async def interrupted() -> AsyncIterator[None]:
    try:
        yield
    finally:
        await asyncio.sleep(0.1)
        note("cleaned")


@app.task(process=True)
async def uses_bound(bound: str = Depends(bound_to_its_task)) -> str:
    return bound


@app.task(process=True, timeout=0.2, max_attempts=1)
async def too_long(value: None = Depends(interrupted)) -> None:
    await asyncio.sleep(3600)
