"""What type checkers must see of pools; see `test_public_api.py` for how this file is checked."""

import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, assert_type

from millrace import App, Context, DeadJob, Emptied, JobHandle, Pool, PoolStatus, SyncJobHandle, Task

ROOT = Path(__file__).resolve().parents[2]

app = App("memory://")


@app.pool("orders", lanes=8, max_depth=100, partition_by=lambda customer, amount: customer, timeout="30s")
async def handle(ctx: Context, customer: str, amount: int = 1) -> float:
    return amount / ctx.attempt


later = app.pool("later", lanes=1, max_depth=None)


@later.handler
def plain(name: str) -> None: ...


@later.on_dead_letter
async def mourn(job: DeadJob) -> None:
    assert_type(job.args, dict[str, Any])
    assert_type(job.instance, str | None)


@handle.pool.on_empty
def empty(ctx: Context, lane: Emptied) -> None:
    assert_type(lane.processed, int)


async def a_pool_keeps_the_parameters_of_its_handler(ctx: Context) -> None:
    assert_type(await handle.enqueue("ada", amount=2), JobHandle[float])
    assert_type(await handle.options(partition="ada", priority=3, wait_for_room="30s").enqueue("ada"), JobHandle[float])
    assert_type(await handle.options(partition=None).call("ada"), float)
    assert_type(await handle.enqueue_many([("ada", 2), {"customer": "bob"}]), list[JobHandle[float]])
    assert_type(await assert_type(handle(ctx, "ada"), Coroutine[Any, Any, float]), float)
    assert_type(plain("ada"), None)
    assert_type((await plain.enqueue("ada")).instance, str | None)

    await handle.enqueue(7)  # type: ignore[arg-type]
    await handle.enqueue("ada", 1, 2)  # type: ignore[call-arg]
    await plain.enqueue()  # type: ignore[call-arg]
    await handle.options(partition=1.5).enqueue("ada")  # type: ignore[arg-type]
    handle.options(prio=3)  # type: ignore[call-arg]
    app.pool("none")  # type: ignore[call-arg]
    app.pool("many", lanes="many")  # type: ignore[arg-type]


def a_pool_keeps_its_types_without_an_event_loop() -> None:
    assert_type(handle.sync.enqueue("ada", amount=2), SyncJobHandle[float])
    assert_type(handle.options(partition="ada").sync.enqueue_many([("ada",)], chunk=10), list[SyncJobHandle[float]])
    assert_type(handle.sync.call("ada"), float)

    handle.sync.enqueue(7)  # type: ignore[arg-type]


async def a_pool_is_controlled() -> None:
    assert_type(handle.pool, Pool)
    assert_type(app.pool_named("orders"), Pool)
    status = await handle.pool.pause(lane=2)
    assert_type(status, PoolStatus)
    assert_type([lane.current for lane in status.lanes], list[int | None])
    assert_type(await later.drain(), int)

    await later.pause("lane")  # type: ignore[arg-type]
    later.on_empty(mourn)  # type: ignore[type-var]


async def a_pool_will_do_where_a_task_is_wanted() -> None:
    async def send(task: Task[[str], None]) -> None:
        await task.enqueue("ada")

    await send(plain)
    await send(handle)  # type: ignore[arg-type]


def test_mypy_agrees_with_this_file() -> None:
    command = [sys.executable, "-m", "mypy", "--warn-unused-ignores", str(Path(__file__))]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_functions_above_run_as_written() -> None:
    assert plain("ada") is None
    assert handle.pool.lanes == 8
