"""A shop's tasks, for the tests of the command line."""

from __future__ import annotations

import asyncio
from datetime import date

from millrace import App

app = App("memory://")


@app.task(queue="mail", priority=3)
async def send_email(to: str, on: date | None = None) -> str:
    return f"sent to {to}"


@app.task(max_attempts=1)
def charge(card: int) -> None:
    raise ValueError(f"card {card} was refused")


@app.task
async def pack(seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds)


@app.pool("orders", lanes=3, partition_by=lambda customer: customer)
async def ship(customer: str) -> None: ...
