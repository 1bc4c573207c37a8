"""`retry_on` and `dont_retry_on`: which exceptions of a handler are retried."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace import App, InvalidInput, JobHandle, Retry
from tests.worker.process import handlers, picky


class Declined(ValueError): ...


@pytest.fixture
def app() -> App:
    return App("memory://", retry=[0], max_attempts=2)


async def ended(app: App, job: JobHandle[Any]) -> tuple[str | None, int]:
    async with asyncio.timeout(60):
        await app.worker(burst=True, processes=1).run(handle_signals=False)
    status = await job.status()
    assert status.state == "dead"
    return status.reason, status.failures


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"retry_on": ConnectionError}, ConnectionResetError("x"), "max_attempts_exceeded"),
        ({"retry_on": [ConnectionError, OSError]}, ValueError("x"), "not_retried"),
        ({"retry_on": []}, ValueError("x"), "not_retried"),
        ({"dont_retry_on": ValueError}, Declined("x"), "not_retried"),
        ({"dont_retry_on": [Declined]}, ValueError("x"), "max_attempts_exceeded"),
        ({"retry_on": ValueError, "dont_retry_on": (Declined,)}, Declined("x"), "not_retried"),
        ({"retry_on": ValueError, "dont_retry_on": (Declined,)}, ValueError("x"), "max_attempts_exceeded"),
        ({"retry_on": None, "dont_retry_on": ()}, ValueError("x"), "max_attempts_exceeded"),
        ({"retry_on": ConnectionError}, Retry("x"), "max_attempts_exceeded"),  # the handler has decided
    ],
)
async def test_the_class_of_the_exception_decides(app: App, options: Any, error: Exception, reason: str):
    @app.task(**options)
    async def work() -> None:
        raise error

    assert await ended(app, await work.enqueue()) == (reason, 1 if reason == "not_retried" else 2)


@pytest.mark.parametrize("how", ["def", "middleware", "batch"])
async def test_it_holds_for_every_way_to_run_a_handler(app: App, how: str):
    async def layer(ctx: Any, call_next: Any) -> Any:
        return await call_next()

    def boom() -> None:
        raise Declined("no")

    def boom_for_each(numbers: list[int]) -> list[Exception]:
        return [Declined("no") for _ in numbers]

    job: JobHandle[Any]
    if how == "batch":
        job = await app.batch_task(dont_retry_on=ValueError)(boom_for_each).enqueue(1)
    else:
        layers = [layer] if how == "middleware" else []
        job = await app.task(dont_retry_on=ValueError, middleware=layers, name="boom")(boom).enqueue()

    assert await ended(app, job) == ("not_retried", 1)
    status = await job.status()
    assert status.error is not None and "no" in status.error.message


async def test_it_holds_in_child_processes():
    jobs = [await picky.charge.enqueue("ada"), *await picky.charge_all.enqueue_many([("ada",), ("",)])]
    ends = [await ended(picky.app, job) for job in jobs]

    assert ends == [("not_retried", 1), ("not_retried", 1), ("max_attempts_exceeded", 2)]


async def test_a_child_process_that_cannot_know_the_classes_is_refused(app: App):
    """A child makes the task of a plain function again, from its name alone."""
    app.task(process=True, dont_retry_on=ValueError)(handlers.fail)

    with pytest.raises(InvalidInput, match=r"task 'fail': with process=True, retry_on and .* need.*@app\.task"):
        await app.worker(burst=True).run(handle_signals=False)


async def test_a_timeout_is_not_an_exception_of_the_handler(app: App):
    """`on_timeout` decides about timeouts."""

    @app.task(timeout=0.02, retry_on=ConnectionError)
    async def work() -> None:
        await asyncio.sleep(60)

    assert await ended(app, await work.enqueue()) == ("timeout", 2)


@pytest.mark.parametrize(
    "options",
    [{"retry_on": "ValueError"}, {"retry_on": [int]}, {"dont_retry_on": None}, {"dont_retry_on": ValueError("x")}],
)
def test_what_is_no_class_of_exceptions_is_refused(app: App, options: Any):
    with pytest.raises(InvalidInput, match=r"retry_on takes classes of exceptions, such as .*retry_on=\[Connection"):
        app.task(**options)(print)
