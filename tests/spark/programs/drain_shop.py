"""The app of the drain's tests, as executors import it. Every run of a handler leaves a line in a ledger outside."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Any

from millrace import App, Bury

app = App("memory://")  # the tests name another store


def note(ledger: str, *words: object) -> None:
    """One line per run, whole or not at all: O_APPEND keeps lines of several processes apart."""
    line = " ".join(map(str, (*words, os.getpid()))) + "\n"
    file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@app.task(queue="orders")
async def ship(number: int, ledger: str, seconds: float = 0.0) -> int:
    note(ledger, number)
    await asyncio.sleep(seconds)
    return number


@app.task(queue="orders", max_attempts=1)
def fail(number: int, ledger: str) -> None:
    note(ledger, number)
    raise ValueError(f"order {number} is broken")


@app.task(queue="orders", retry=["100ms"], max_attempts=3)
async def stumble(number: int, ledger: str) -> None:
    """Fails the first time that it runs."""
    with open(ledger, encoding="ascii") as lines:
        seen = any(line.split()[0] == str(number) for line in lines)
    note(ledger, number)
    if not seen:
        raise ConnectionError("the first try never works")


@app.task(queue="crash", retry=["100ms"])
def crash(number: int, ledger: str) -> None:
    """Takes its process along, the first time that it runs."""
    with open(ledger, encoding="ascii") as lines:
        seen = any(line.split()[0] == str(number) for line in lines)
    note(ledger, number)
    if not seen:
        os.kill(os.getpid(), 9)


@app.task(queue="slow", lease=3, retry=["100ms"])
def slow(number: int, ledger: str, seconds: float) -> int:
    note(ledger, number)
    time.sleep(seconds)
    return number


@dataclass
class Reading:
    sensor: str
    value: float


@app.batch_task(frame="arrow", row=Reading, max_rows=200, queue="readings", max_attempts=1)
def judge(table: Any) -> Any:
    """Twice the value; a negative one fails alone."""
    import pyarrow as pa

    values = table["value"].to_pylist()
    return pa.table(
        {
            "job_id": table["job_id"],
            "result": [2 * value for value in values],
            "error": [f"{value} is below zero" if value < 0 else None for value in values],
        }
    )


@app.task(queue="orders")
def refuse(number: int) -> None:
    raise Bury("never")
