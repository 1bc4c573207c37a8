"""An app whose lifespan ends with the first job, because a background task of it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from millrace import App, Context

app = App("memory://")  # the tests name another store


async def fail() -> None:
    raise ConnectionError("no connection")


@app.lifespan
async def lifespan() -> AsyncIterator[asyncio.TaskGroup]:
    async with asyncio.TaskGroup() as group:
        yield group


@app.task(queue="orders")
async def last(ctx: Context) -> None:
    group: asyncio.TaskGroup = ctx.state
    await asyncio.wait([group.create_task(fail())])
