"""A new version of the handlers of `tests.spark.filled`, for shadow replays. Each run writes a line to a file."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from millrace import App, Context, Snooze
from millrace.app.local_events import LocalEvent

app = App(os.environ.get("SHADOW_SHOP_URL", "memory://"))
other_app = App(os.environ.get("SHADOW_SHOP_URL", "memory://"))


def note(word: str) -> None:
    ledger = os.environ.get("SHADOW_SHOP_LEDGER")
    if ledger:
        with Path(ledger).open("a", encoding="utf-8") as file:
            file.write(f"{word}\n")


@app.task(queue="mail")
async def send(ctx: Context, n: int, to: str) -> dict[str, bool]:
    """Completes for numbers below 10, which is what all did that completed."""
    assert ctx.is_shadow
    note(f"send {n}")
    ctx.progress("half")
    ctx.enqueue(send, n=n + 1_000, to=to)
    await send.enqueue(n=n + 2_000, to=to)
    await asyncio.to_thread(send.sync.enqueue, n=n + 3_000, to=to)
    if n >= 10:
        raise ValueError(f"{n} is too large")
    return {"ok": n < 5}


@app.task(queue="mail")
def pack(n: int, to: str) -> dict[str, bool]:
    if n == 6:
        raise ValueError("no such address: 'other'")
    return {"ok": True}


@app.task
def die(n: int) -> None:
    raise ValueError(f"number {n}")


@app.task
def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@app.task
def amount(n: int) -> int:
    return 10 * n


@app.task
def charge(amount: int = 0) -> int:
    note(f"charge {amount}")
    return amount


@app.task
async def read_parents(ctx: Context) -> int:
    return len(await ctx.parents())


@app.task
async def snooze() -> None:
    raise Snooze("1h")


@app.task
async def use_another_app() -> str:
    await other_app.enqueue([send.spec(n=1, to="x")])
    return "enqueued"


@app.task(process=True)
def enqueue_in_a_process() -> str:
    """The child process imports this module, so its app has the URL of the real store."""
    send.sync.enqueue(n=1, to="x")
    return "enqueued"


@app.on("completed")
def listen(event: LocalEvent) -> None:
    note(f"heard of {event.job.id}")


def rows(*payloads: Any, **facts: Any) -> list[dict[str, Any]]:
    """Return rows of the table `to_run` for `run_again`."""
    row: dict[str, Any] = {
        "completed": True,
        "result": None,
        "error_type": None,
        "error_message": None,
        "duration_ms": None,
    }
    row |= {"generation": 1, "finished_at": None, "serde": "json", "headers": None, **facts}
    return [
        {**row, "job": f"job-{n}", "seq": n, "payload": None if payload is None else msgspec.json.encode(payload)}
        for n, payload in enumerate(payloads, 1)
    ]
