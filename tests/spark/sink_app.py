"""An app whose tasks the tests of the sink write to. Spark's processes import it from the working directory."""

from __future__ import annotations

import os
import signal
from datetime import datetime
from typing import Any

import msgspec

from millrace import App


class Deadly:
    """JSON; but the process that writes a payload which says so dies at its task's first attempt."""

    name = "deadly"

    def encode(self, value: Any, /) -> bytes:
        if isinstance(value, dict) and value.get("kills"):
            from pyspark import TaskContext

            task = TaskContext.get()
            if task is not None and task.attemptNumber() == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return msgspec.json.encode(value)

    def decode(self, data: bytes, /) -> Any:
        return msgspec.json.decode(data)


app = App(serdes=[Deadly()])


@app.task(queue="mail", priority=7, max_attempts=2, timeout="20s")
def send(to: str, n: int, at: datetime | None = None, copies: int = 1) -> None: ...


@app.task(serde="deadly")
def die(n: int, kills: bool) -> None: ...


@app.batch_task(size=10, linger=0.1)
def many(items: list[dict[str, Any]]) -> None: ...


@app.pool("laned", lanes=3, partition_by=lambda n: f"{n}")
def laned(n: int) -> None: ...
