"""What type checkers must see of batch tasks that take tables, and of drains."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type

from millrace import App, Drain, DrainOutcome, DrainProgress, JobHandle

ROOT = Path(__file__).resolve().parents[2]

app = App("memory://")


@dataclass
class Reading:
    sensor: str
    value: float = 0.0


@app.batch_task(frame="arrow", row=Reading, max_rows=500, queue="readings", linger="1s")
def score(table: object) -> list[float]:
    return []


@app.batch_task(frame="pandas", row={"sensor": str})
async def follow(frame: object) -> None: ...


async def a_row_is_enqueued_by_the_parameters_that_were_declared() -> None:
    assert_type(await score.enqueue("s1", 2.0), JobHandle[Any])
    assert_type(await score.enqueue(sensor="s1"), JobHandle[Any])
    assert_type(await follow.enqueue(sensor="s1"), JobHandle[Any])
    assert_type(score(object()), list[float])

    await score.enqueue(7)  # type: ignore[arg-type]
    await score.enqueue("s1", colour="red")  # type: ignore[call-arg]
    app.batch_task(frame="polars", row=Reading)  # type: ignore[call-overload]


def a_drain_is_waited_for(spark: Any) -> None:
    drain = app.on_spark(spark, queues=["mail"], partitions=4, duration="10m", until="stopped")
    assert_type(drain, Drain)
    assert_type(drain.progress(), DrainProgress)
    assert_type(drain.wait(60), DrainOutcome)
    drain.stop(grace="5s")

    app.on_spark(spark, partition=4)  # type: ignore[call-arg]
    app.on_spark(spark, until="done")  # type: ignore[arg-type]


def test_mypy_sees_it_the_same_way() -> None:
    command = [sys.executable, "-m", "mypy", "--warn-unused-ignores", str(Path(__file__).relative_to(ROOT))]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
