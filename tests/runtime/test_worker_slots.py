"""Slots on their own, with a task that is nothing but a function."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from millrace import Spec
from millrace.domain.job import Job, State
from millrace.domain.outcome import Outcome, Released, Returned, TimedOut
from millrace.runtime.hold import Abort
from millrace.runtime.run import Run
from millrace.runtime.slots import Slots
from tests.runtime.stage import Stage, virtual


class PlainTask:
    """The smallest thing that can be run."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.name = "plain"
        self.handler = handler
        self.is_async = asyncio.iscoroutinefunction(handler)
        self.context_parameter = None
        self.options = SimpleNamespace(queue="default", lease=30_000, backoff=None)

    def load(self, payload: bytes, serde: str) -> dict[str, Any]:
        return {}

    def dump_result(self, value: Any, serde: str | None = None) -> bytes:
        return repr(value).encode()


def make(handler: Callable[..., Any], timeout: int | None = None) -> tuple[Slots, Run, list[Outcome | None]]:
    slots = Slots(size=2, threads=2, grace=3.0, name="test")
    outcomes: list[Outcome | None] = []
    slots.ended = lambda run, outcome: outcomes.append(outcome)
    loop = asyncio.get_running_loop()
    spec = Spec(id="a", task="plain", timeout=timeout)
    job = Job(spec, 1, 1, State.RUNNING, 0, 0, attempt=1, lease_id="x")
    run = Run(job, PlainTask(handler), 30.0, loop.time(), loop.time, slots.grace)
    slots.start(run, loop)
    return slots, run, outcomes


@virtual
async def test_a_run_that_is_aborted_before_its_first_step_ends_like_any_other(stage: Stage):
    async def handler() -> None:
        raise AssertionError("must not begin")

    slots, run, outcomes = make(handler)
    slots.abort(run, Abort.SHUTDOWN)
    await asyncio.sleep(0.01)

    assert outcomes == [Released()]
    assert (slots.running, slots.zombies) == ({}, 0)


@virtual
async def test_a_run_ends_once_however_often_it_is_aborted(stage: Stage):
    async def handler() -> None:
        await asyncio.sleep(1_000)

    slots, run, outcomes = make(handler)
    await asyncio.sleep(1)
    for why in (Abort.SHUTDOWN, Abort.CANCEL, Abort.SHUTDOWN, Abort.LOST, Abort.LOST):
        slots.abort(run, why)
    await asyncio.sleep(10)

    assert outcomes == [None]  # a lost lease leaves nothing to write


@virtual
async def test_a_handler_that_outlives_its_abort_is_a_zombie_until_it_ends(stage: Stage):
    async def handler() -> None:
        for _ in range(20):
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue

    slots, _, outcomes = make(handler, timeout=2_000)
    await asyncio.sleep(6)
    assert isinstance(outcomes[0], TimedOut)
    assert (slots.zombies, slots.abandoned) == (1, 1)

    await asyncio.sleep(60)
    assert (slots.zombies, slots.abandoned) == (0, 1)
    assert len(outcomes) == 1


@virtual
async def test_a_value_that_comes_after_the_timeout_does_not_count(stage: Stage):
    async def handler() -> str:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            return "late"
        return "never"

    _, _, outcomes = make(handler, timeout=500)
    await asyncio.sleep(1)

    assert isinstance(outcomes[0], TimedOut)


@virtual
async def test_a_run_without_a_timeout_has_no_deadline_and_arms_no_timer(stage: Stage):
    async def handler() -> str:
        await asyncio.sleep(1_000_000)
        return "done"

    slots, run, outcomes = make(handler)
    assert (run.deadline, slots._timer) == (math.inf, None)
    await asyncio.sleep(1_000_001)

    assert outcomes == [Returned(b"'done'")]
