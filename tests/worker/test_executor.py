"""The executor on its own, with a task that is nothing but a function."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from millrace import InvalidInput, Spec
from millrace.app.handler.verdict import Abort, Aborted
from millrace.app.job_status import JobStatus
from millrace.domain.job import Job, State
from millrace.domain.outcome import CancelledOnRequest, Outcome, Released, Returned, TimedOut
from millrace.store.protocol import Within
from millrace.worker.dispatcher import WakeUp
from millrace.worker.executor import Executor
from millrace.worker.run import HeldJob, Run
from millrace.worker.scope import WorkerScope
from millrace.worker.settler import Settler
from tests.worker.stage import Stage, virtual


@dataclass(frozen=True)
class PlainOptions:
    queue: str = "default"
    lease: int = 30_000
    backoff: Callable[[int], float] | None = None
    process: bool = False
    serde: str = "json"
    keep_log: bool = False


class PlainTask:
    """The smallest thing that can be run."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.name = "plain"
        self.handler = handler
        self.is_async = asyncio.iscoroutinefunction(handler)
        self.context_parameter = None
        self.options = PlainOptions()
        self.layers = ()
        self.inherits = True
        self.injection = None
        self.explicit_options: dict[str, Any] = {}

    def retries(self, error: BaseException) -> bool:
        return True

    def load(self, payload: bytes, serde: str) -> dict[str, Any]:
        return {}

    def load_result(self, data: bytes | None, serde: str | None = None) -> Any:
        return data

    def dump_result(self, value: Any, serde: str | None = None) -> bytes:
        return repr(value).encode()

    async def parents_of(self, job: Job) -> list[JobStatus]:
        return []

    def parents_of_sync(self, job: Job) -> list[JobStatus]:
        return []

    def join(self, connection: object) -> Within:
        raise InvalidInput("there is no store")


class Outcomes(Settler):
    """A settler that only keeps what it is given."""

    def __init__(self) -> None:
        self.kept: list[Outcome | None] = []

    def submit(self, held: HeldJob, outcome: Outcome | None) -> None:
        self.kept.append(outcome)


def make(handler: Callable[..., Any], timeout: int | None = None) -> tuple[Executor, Run, list[Outcome | None]]:
    task, outcomes = PlainTask(handler), Outcomes()
    executor = Executor(
        {"plain": task}, outcomes, WakeUp(), slots=2, threads=2, grace=3.0, name="test", on_empty=lambda: None
    )
    loop = asyncio.get_running_loop()
    spec = Spec(id="a", task="plain", timeout=timeout)
    job = Job(spec, 1, 1, State.RUNNING, 0, 0, attempt=1, lease_id="x")
    run = Run(job, task, 30.0, loop.time(), WorkerScope(loop.time), executor.grace)
    executor.start(run)
    return executor, run, outcomes.kept


@virtual
async def test_a_run_that_is_aborted_before_its_first_step_ends_like_any_other(stage: Stage):
    async def handler() -> None:
        raise AssertionError("must not begin")

    executor, run, outcomes = make(handler)
    executor.abort(run, Abort.SHUTDOWN)
    await asyncio.sleep(0.01)

    assert outcomes == [Released()]
    assert (executor.running, executor.zombies) == ({}, 0)


@virtual
async def test_a_handler_that_stops_before_the_loop_knows_of_the_abort_is_cancelled(stage: Stage):
    async def handler() -> None:
        await asyncio.sleep(1_000)

    executor, run, _ = make(handler)
    context = run.own_context()
    run.signal(Abort.CANCEL)  # in the thread of the heartbeat
    with pytest.raises(Aborted) as stopped:
        context.check()

    assert run.why is None
    assert run.raised(stopped.value) == CancelledOnRequest()
    executor.abort(run, Abort.SHUTDOWN)
    await asyncio.sleep(10)


@virtual
async def test_a_run_ends_once_however_often_it_is_aborted(stage: Stage):
    async def handler() -> None:
        await asyncio.sleep(1_000)

    executor, run, outcomes = make(handler)
    await asyncio.sleep(1)
    for why in (Abort.SHUTDOWN, Abort.CANCEL, Abort.SHUTDOWN, Abort.LOST, Abort.LOST):
        executor.abort(run, why)
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

    executor, _, outcomes = make(handler, timeout=2_000)
    await asyncio.sleep(6)
    assert isinstance(outcomes[0], TimedOut)
    assert (executor.zombies, executor.abandoned) == (1, 1)

    await asyncio.sleep(60)
    assert (executor.zombies, executor.abandoned) == (0, 1)
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

    executor, run, outcomes = make(handler)
    assert (run.deadline, executor._timer) == (math.inf, None)
    await asyncio.sleep(1_000_001)

    assert outcomes == [Returned(b"'done'")]
