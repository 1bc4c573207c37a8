"""What type checkers must see of middleware and of batch tasks."""

import subprocess
import sys
from pathlib import Path
from typing import Any, assert_type

from millrace import App, CallNext, Context, JobHandle, Retry

ROOT = Path(__file__).resolve().parents[2]

app = App("memory://")


@app.middleware
async def timed(ctx: Context, call_next: CallNext) -> Any:
    return await call_next()


@app.task(process=True, middleware=[timed], inherit_middleware=False)
def shrink(path: str) -> int:
    return len(path)


@app.batch_task(size=50, linger="100ms", queue="mail", max_attempts=3)
async def send_many(mails: list[str]) -> list[int | Retry]:
    return [len(mail) for mail in mails]


@app.batch_task
def weigh(parcels: list[float]) -> None: ...


@app.batch_task(size=5)
async def with_contexts(contexts: list[Context], names: list[str]) -> list[str]:
    return [ctx.id for ctx in contexts] + names


@app.batch_task
def route(contexts: list[Context], parcels: list[float]) -> None: ...


@app.batch_task
async def route_later(contexts: list[Context], parcels: list[float]) -> list[str]:
    return [ctx.id for ctx in contexts]


async def a_batch_task_is_enqueued_item_by_item_and_called_as_its_function() -> None:
    assert_type(await send_many.enqueue("ada"), JobHandle[Any])
    assert_type(await weigh.enqueue(1.5), JobHandle[Any])
    assert_type(await with_contexts.enqueue("ada"), JobHandle[Any])
    assert_type(await route.enqueue(1.5), JobHandle[Any])
    assert_type(await route_later.enqueue(1.5), JobHandle[Any])
    assert_type(await send_many(["ada"]), list[int | Retry])

    await send_many.enqueue(7)  # type: ignore[arg-type]
    await send_many.enqueue(["ada"])  # type: ignore[arg-type]
    await with_contexts.enqueue(7)  # type: ignore[arg-type]
    await route.enqueue("heavy")  # type: ignore[arg-type]
    app.batch_task(size="many")  # type: ignore[call-overload]


async def middleware_has_a_shape() -> None:
    async def wrong(ctx: Context) -> None: ...

    app.middleware(wrong)  # type: ignore[type-var]
    app.task(process="yes")  # type: ignore[call-overload]


def test_mypy_sees_it_the_same_way() -> None:
    command = [sys.executable, "-m", "mypy", "--warn-unused-ignores", str(Path(__file__).relative_to(ROOT))]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
