"""testing.run: one handler, through the bytes that a job would take, raising what the handler raises."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from millrace import App, Bury, Context, InvalidInput, PayloadInvalid, Retry, Snooze
from millrace.testing import rehearse, run, run_sync

app = App("sqlite:////nowhere/at-all.db")  # never opened: a rehearsal needs no store


@dataclass
class Order:
    id: int
    total: Decimal


@app.task
async def double(order: Order, times: int = 2) -> Order:
    assert isinstance(order.total, Decimal)
    return Order(order.id, order.total * times)


@app.task
def in_a_thread(name: str) -> str:
    return f"{name} {threading.current_thread() is threading.main_thread()}"


@app.task
async def told(ctx: Context, steps: int) -> tuple[int, int, str]:
    ctx.progress({"done": steps})
    ctx.enqueue(in_a_thread.options(delay="1m"), name="child")
    return (ctx.attempt, ctx.failures, ctx.id)


@app.task
def ends(how: str, returned: bool = False) -> None:
    verdict = {"retry": Retry("busy", after=5), "snooze": Snooze(1), "bury": Bury("no"), "error": KeyError("x")}[how]
    if returned:
        return verdict  # type: ignore[return-value]
    raise verdict


@app.task
async def loose(value: Any) -> Any:
    return (value, {1, 2} & {2})


@app.task
async def leaks() -> Any:
    return object()


async def test_arguments_and_result_come_out_as_the_annotations_say():
    order = Order(7, Decimal("1.10"))

    assert await run(double, order) == Order(7, Decimal("2.20"))
    assert await run(double, order=order, times=3) == Order(7, Decimal("3.30"))
    with pytest.raises(InvalidInput, match="an event loop is running"):
        run_sync(double, order)


async def test_what_bytes_would_change_is_changed():
    assert await run(loose, (1, 2)) == [[1, 2], [2]]


def test_it_works_without_a_loop_for_both_kinds_of_handlers():
    assert run_sync(double, Order(1, Decimal(2))) == Order(1, Decimal(4))
    assert run_sync(in_a_thread, "here") == "here True"


async def test_a_plain_function_runs_in_a_thread_as_it_would():
    assert await run(in_a_thread, name="there") == "there False"


async def test_what_no_job_could_carry_is_refused():
    with pytest.raises(PayloadInvalid, match="'order'"):
        await run(double, "not an order")  # type: ignore[arg-type]
    with pytest.raises(PayloadInvalid, match="needs parameter 'order'"):
        await run(double)  # type: ignore[call-arg]
    with pytest.raises(PayloadInvalid, match="result of task 'leaks'"):
        await run(leaks)


async def test_the_handlers_own_exception_is_raised():
    with pytest.raises(KeyError) as error:
        await run(ends, "error")
    assert error.traceback[-1].name == "ends"


@pytest.mark.parametrize("returned", [False, True])
async def test_verdicts_are_raised_also_when_they_were_returned(returned: bool):
    with pytest.raises(Retry, match="busy") as retry:
        await run(ends, "retry", returned)
    assert retry.value.after == 5_000
    with pytest.raises(Snooze):
        await run(ends, "snooze", returned)
    with pytest.raises(Bury, match="no"):
        await run(ends, "bury", returned)


async def test_a_context_tells_what_it_was_given():
    assert await run(told.options(id="told-7"), 1) == (1, 0, "told-7")

    rehearsal = rehearse(told.options(id="told-8"), attempt=3)
    assert await rehearsal.run(steps=2) == (3, 2, "told-8")
    assert rehearsal.progress == {"done": 2}
    assert [(child.task, child.delay) for child in rehearsal.children] == [("in_a_thread", 60_000)]


async def test_what_a_failing_run_said_before_is_known_too():
    @App().task
    async def fails(ctx: Context) -> None:
        ctx.progress(1)
        raise ValueError("then")

    rehearsal = rehearse(fails)
    with pytest.raises(ValueError, match="then"):
        await rehearsal.run()

    assert rehearsal.progress == 1
    assert rehearsal.context is not None and rehearsal.context.remaining is not None


@app.batch_task
async def index(items: list[int]) -> list[int | Exception]:
    return [ValueError(f"no {item}") if item < 0 else 2 * item for item in items]


@app.batch_task
def index_with_contexts(contexts: list[Context], items: list[int]) -> dict[str, int]:
    contexts[0].enqueue(index, items[0])
    return {context.id: item for context, item in zip(contexts, items, strict=True)}


async def test_a_batch_task_runs_as_a_batch_of_one():
    assert await run(index, 21) == 42
    with pytest.raises(ValueError, match="no -1"):
        await run(index, -1)

    rehearsal = rehearse(index_with_contexts.options(id="7"))
    assert await rehearsal.run(3) == 3
    assert [child.task for child in rehearsal.children] == ["index"]


def test_a_batch_task_runs_without_an_event_loop_too():
    assert (run_sync(index, 21), run_sync(index_with_contexts, 4)) == (42, 4)


def test_a_function_that_is_no_task_is_refused_with_what_to_do():
    def plain(n: int) -> int:
        return n

    with pytest.raises(InvalidInput, match=r"rehearse takes a task, not .*plain.*@app\.task"):
        run_sync(plain, 1)  # type: ignore[arg-type]
