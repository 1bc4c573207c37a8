"""Runs a handler once, without a store. Arguments and result are encoded and decoded like those of a job.

`run(task, …)` returns the task's result and raises the handler's exceptions. So a test finds values that cannot be
encoded, or that change when they are encoded and decoded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec

from millrace.app.batch_task import BatchTask
from millrace.app.handler.batch_results import answers
from millrace.app.handler.context import Context
from millrace.app.handler.in_thread import in_thread
from millrace.app.handler.verdict import Verdict
from millrace.app.task import Task
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Job, Spec, State
from millrace.testing.harness import run_to_end
from millrace.worker.run import Run
from millrace.worker.scope import WorkerScope

P = ParamSpec("P")
R = TypeVar("R")

GRACE = 3.0


async def run(task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a task's handler once, as a worker does, and return its result.

    An `async def` handler runs in the current event loop, a `def` handler in a thread (even with process=True).
    Middleware does not run. To set properties of the job, pass options: `run(task.options(id="7"), …)`. Retry, Snooze
    and Bury are raised, even if the handler returns them. The handler of a batch task gets a batch with this one job.
    """
    return await rehearse(task).run(*args, **kwargs)


def run_sync(task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a task's handler once, like `run`, in a test without an event loop. A `def` handler runs in the current
    thread.
    """
    return rehearse(task).run_sync(*args, **kwargs)


def rehearse(
    task: Task[P, R], *, attempt: int = 1, failures: int | None = None, generation: int = 1, lane: int | None = None
) -> Rehearsal[P, R]:
    """Return a run of the task that can be started later: `await rehearse(task, attempt=3).run(…)`. The given values
    are set in the context of the handler.
    """
    if not isinstance(task, Task):
        raise InvalidInput(f"rehearse takes a task, not {task!r}: put @app.task over it, or call the function itself")
    return Rehearsal(task, attempt, attempt - 1 if failures is None else failures, generation, lane)


class Rehearsal(Generic[P, R]):
    """One run of a handler without a store.

    After the run, `children` holds the jobs that the handler enqueued through its context, and `progress` the last
    progress that it reported.
    """

    def __init__(self, task: Task[P, R], attempt: int, failures: int, generation: int, lane: int | None) -> None:
        self._task = task
        self._facts = {"attempt": attempt, "failures": failures, "generation": generation, "lane": lane}
        self.children: list[Spec] = []
        self.progress: Any = None
        self.context: Context | None = None

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        run = self._begin(self._task.spec(*args, **kwargs))
        await run.scope.enter()
        try:
            return self._end(run, await self._run(run))
        finally:
            self._note(run)
            await run.scope.leave()

    def run_sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        task = self._task
        if task.is_async or task.lifespan_factory is not None or task.injection is not None:
            return run_to_end(self.run(*args, **kwargs), "run(task, …)")
        run = self._begin(self._task.spec(*args, **kwargs))
        handler = self._call(run)
        try:
            return self._end(run, handler())
        finally:
            self._note(run)

    def _begin(self, spec: Spec) -> Run:
        now = time.time_ns() // 1_000_000
        job = Job(
            spec=spec,
            seq=1,
            state=State.RUNNING,
            enqueued_at=now,
            available_at=now,
            started_at=now,
            worker="rehearsal",
            lease_id="rehearsal",
            lease_until=now + spec.lease,
            **self._facts,  # type: ignore[arg-type]  # a generation is never None
        )
        scope = WorkerScope(time.monotonic, self._task.lifespan_factory)
        return Run(job, self._task, spec.lease / 1000, time.monotonic(), scope, GRACE)

    async def _run(self, run: Run) -> Any:
        if self._task.injection is None:
            return await self._awaited(self._call(run))
        async with self._task.injection.open(run.own_context(), run.scope) as values:
            return await self._awaited(self._call(run, values.injected_into(self._task.handler)))

    async def _awaited(self, call: Callable[[], Any]) -> Any:
        return await (call() if self._task.is_async else in_thread(call))

    def _call(self, run: Run, handler: Callable[..., Any] | None = None) -> Callable[[], Any]:
        arguments = run.arguments()
        if not isinstance(self._task, BatchTask):
            return partial(handler or self._task.handler, **arguments)
        contexts = [run.own_context()] if self._task.takes_contexts else None
        return partial(self._task.invoke, contexts, [self._task.item_of(run.job.id, arguments)])

    def _end(self, run: Run, value: Any) -> R:
        if isinstance(self._task, BatchTask):
            [value] = answers(self._task.name, [run.job.id], value)
            if isinstance(value, BaseException):
                raise value
        if isinstance(value, Verdict):
            raise value
        serde = run.job.spec.serde
        return self._task.load_result(self._task.dump_result(value, serde), serde)

    def _note(self, run: Run) -> None:
        self.context = run.context
        self.children = list(run.children or ())
        self.progress = None if run.progress is None else msgspec.json.decode(run.progress)
