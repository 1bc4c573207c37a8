"""What type checkers must see of the public API.

pyright (`make types`) and mypy (the test below) both check this file. Each line that says `ignore` holds a mistake:
both report an ignore that ignores nothing, so the mistake must stay one in the eyes of both.
"""

import asyncio
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, assert_type

from millrace import App, Cancelled, Context, Event, JobHandle, JobStatus, Task

ROOT = Path(__file__).resolve().parents[2]

app = App("memory://")


@app.task
async def send(to: str, copies: int = 1) -> str:
    return to * copies


@app.task
def add(left: int, right: int) -> int:
    return left + right


@app.task
async def watched(ctx: Context, name: str) -> list[int]:
    return [ctx.attempt, len(name)]


@app.task
def watched_in_a_thread(ctx: Context, name: str) -> bytes:
    return ctx.id.encode() + name.encode()


@app.task(queue="mail", timeout="30s", max_attempts=None, retry=[1, "10s"], on_dead_letter=send)
async def tuned(to: str) -> None: ...


@app.task(name="tuned.watched", keep_result=None)
def tuned_watched(ctx: Context, to: str) -> float:
    return len(to) / ctx.attempt


async def a_task_keeps_the_parameters_of_its_function() -> None:
    assert_type(await send.enqueue("ada", copies=2), JobHandle[str])
    assert_type(await add.enqueue(1, 2), JobHandle[int])
    await send.enqueue(to="ada")
    await tuned.enqueue(to="ada")

    await send.enqueue()  # type: ignore[call-arg]
    await send.enqueue(7)  # type: ignore[arg-type]
    await send.enqueue("ada", cc="bob")  # type: ignore[call-arg]
    await add.enqueue(left=1, right="2")  # type: ignore[arg-type]
    await tuned.enqueue(7)  # type: ignore[arg-type]
    send.spec(to=7)  # type: ignore[arg-type]


async def call_gives_the_result_of_the_function() -> None:
    assert_type(await send.call("ada"), str)
    assert_type(await add.call(1, 2), int)
    assert_type(await watched.call("ada"), list[int])
    assert_type(await watched_in_a_thread.call(name="ada"), bytes)
    assert_type(await tuned_watched.call("ada"), float)
    assert_type(await tuned.call("ada"), None)

    await add.call(1)  # type: ignore[call-arg]


async def the_context_is_not_a_parameter_of_an_enqueue() -> None:
    await watched.enqueue("ada")
    await watched_in_a_thread.enqueue(name="ada")
    await tuned_watched.enqueue("ada")

    await watched.enqueue(name=1)  # type: ignore[arg-type]
    await watched.enqueue("context", "ada")  # type: ignore[call-arg]


async def options_keep_the_types() -> None:
    bound = send.options(id="mail-7", delay="10m", priority=5, group="ada", after=[await add.enqueue(1, 2)], wait=60)
    assert_type(await bound.enqueue("ada"), JobHandle[str])
    assert_type(await bound.call("ada", copies=2), str)
    assert_type(await watched.options(reuse=False).call("ada"), list[int])
    assert_type(send.options.timeout, int | None)

    await bound.enqueue(7)  # type: ignore[arg-type]
    send.options(prio=5)  # type: ignore[call-arg]
    send.options(scope="forever")  # type: ignore[arg-type]
    app.task(timeout=[1])  # type: ignore[call-overload]


async def a_task_is_still_its_function(ctx: Context) -> None:
    assert_type(await assert_type(send("ada"), Coroutine[Any, Any, str]), str)
    assert_type(add(1, 2), int)
    assert_type(await watched(ctx, "ada"), list[int])
    assert_type(watched_in_a_thread(ctx, "ada"), bytes)

    add("1", 2)  # type: ignore[arg-type]
    watched_in_a_thread("ada")  # type: ignore[call-arg, arg-type]


async def any_task_of_the_right_shape_will_do() -> None:
    async def send_to(task: Task[[str, int], str]) -> str:
        return await task.call("ada", 2)

    @app.task
    async def exact(to: str, copies: int) -> str:
        return to * copies

    assert_type(await send_to(exact), str)
    await send_to(add)  # type: ignore[arg-type]


async def one_job_gives_one_answer_and_many_give_a_list() -> None:
    job = await add.enqueue(1, 2)
    assert_type(await app.jobs.get("id"), JobStatus | None)
    assert_type(await app.jobs.get(["id", job]), list[JobStatus | None])
    assert_type(await app.jobs.cancel(job), Cancelled)
    assert_type(await app.jobs.cancel([job]), list[Cancelled])
    async for found in app.jobs.find(queue="mail", state="failed"):
        assert_type(found, JobStatus)
    async for event in app.events():
        assert_type(event, Event)


def test_mypy_agrees_with_this_file() -> None:
    command = [sys.executable, "-m", "mypy", "--warn-unused-ignores", str(Path(__file__))]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_functions_above_run_as_written() -> None:
    assert add(1, 2) == 3
    assert asyncio.run(send("ada", 2)) == "adaada"
