"""Batches: one call of a handler runs many jobs, each with its own lease, attempt, outcome and history.

Jobs are collected until there are `size` of them, or until the first has waited for `linger` seconds. If the process
or the worker died in an earlier run of a job, the job runs in a batch of its own, so that it cannot harm other jobs. A
batch takes one slot, whatever its size. If one job is cancelled, loses its lease or exceeds its timeout, only its own
run ends. The handler is stopped only when all jobs of the batch have been aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

from millrace.app.handler.batch_results import answers
from millrace.app.handler.verdict import Abort, Aborted
from millrace.app.host import Runnable
from millrace.worker.process.remote import for_future

if TYPE_CHECKING:
    from millrace.app.handler.context import Context
    from millrace.worker.executor import Executor
    from millrace.worker.process.child import Child
    from millrace.worker.process.children import Children
    from millrace.worker.run import Run


class BatchRunnable(Runnable, Protocol):
    """A task whose handler takes many jobs at once."""

    @property
    def size(self) -> int: ...
    @property
    def linger(self) -> float: ...
    @property
    def takes_contexts(self) -> bool: ...
    def item_of(self, job: str, arguments: dict[str, Any]) -> object: ...
    def invoke(self, contexts: list[Context] | None, items: list[Any]) -> Any: ...


class Batcher:
    """Collects the runs of one batch task into batches.

    The executor calls the method `run` for each run of the task: it is the strategy of the task (see `executor.py`).
    """

    def __init__(self, task: BatchRunnable, executor: Executor, children: Children | None) -> None:
        self.task = task
        self._executor = executor
        self._children = children
        self._open: _Batch | None = None  # the batch that collects now
        self._filling = False
        self._due: _Batch | None = None  # a batch whose linger time is over, and which waits for a claim that fills it

    @property
    def missing(self) -> int:
        """The number of jobs that still fit into the current batch, or 0 if no batch is collecting jobs."""
        return 0 if self._open is None else self.task.size - len(self._open.members)

    async def run(self, run: Run) -> object:
        """Add a run to a batch, wait for the handler, and return the result for the job of this run."""
        item = self.task.item_of(run.job.id, run.arguments())
        run.wait_to_begin()
        loop = asyncio.get_running_loop()
        alone = run.job.stalls > 0  # it may be the one that killed the process or worker
        batch = None if alone else self._open
        if batch is None:
            batch = _Batch(self.task, self._executor, self._children, loop)
        member = batch.join(run, item)
        if alone:
            batch.start()
        elif len(batch.members) == 1:
            self._open = batch
            loop.call_later(self.task.linger, self._start_due, batch)
        if len(batch.members) >= self.task.size:
            self._start(batch)
        try:
            return await member.end
        finally:
            batch.leave(member)

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Inside the `with` block, do not start the current batch: the dispatcher is claiming more jobs for it."""
        self._filling = True
        try:
            yield
        finally:
            self._filling = False
            if self._due is not None:
                due, self._due = self._due, None
                self._start(due)

    def start_now(self) -> None:
        """Start the current batch with the jobs that it has, because no more jobs will be claimed."""
        if self._open is not None:
            self._start_due(self._open)

    def _start_due(self, batch: _Batch) -> None:
        if self._filling:
            self._due = batch
        else:
            self._start(batch)

    def _start(self, batch: _Batch) -> None:
        if self._open is batch:
            self._open = None
            batch.start()


class _Member:
    """One job of a batch. It implements `Execution` for the run of this job."""

    def __init__(self, batch: _Batch, run: Run, item: object) -> None:
        self.batch = batch
        self.run = run
        self.item = item
        self.end: asyncio.Future[object] = batch.loop.create_future()
        self.abandoned = False

    def stop(self, why: Abort) -> None:
        if not self.batch.started:
            self.finish(Aborted(self.run.job.id, why))
        else:
            self.batch.stop_if_unwanted(why)

    def abandon(self) -> bool:
        if self.batch.kill_if_unwanted():
            return True
        self.abandoned = True
        self.batch.member_abandoned()
        return False

    def finish(self, value: object) -> None:
        if self.end.done():
            return
        if isinstance(value, BaseException):
            self.end.set_exception(for_future(value))
        else:
            self.end.set_result(value)


class _Batch:
    def __init__(
        self,
        task: BatchRunnable,
        executor: Executor,
        children: Children | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.loop = loop
        self.members: list[_Member] = []
        self.started = False
        self._task = task
        self._executor = executor
        self._children = children
        self._child: Child | None = None
        self._present = 0  # members whose runs have not ended
        self._loop_task: asyncio.Task[Any] | None = None
        self._thread_abandoned = False

    def join(self, run: Run, item: object) -> _Member:
        member = _Member(self, run, item)
        self.members.append(member)
        run.runs_in(member)
        self._executor.joined_batch(first=self._present == 0)
        self._present += 1
        return member

    def leave(self, member: _Member) -> None:
        self._present -= 1
        self._executor.left_batch(last=self._present == 0)
        if not self.started and member in self.members:
            self.members.remove(member)
        if not member.abandoned:
            member.run.runs_in(None)

    # ── the call of the handler ───────────────────────────────────────────────────────────────

    def start(self) -> None:
        self.started = True
        self.members = [member for member in self.members if not member.end.done()]
        if not self.members:
            return
        if self._children is not None:
            runs = [member.run for member in self.members]
            self._loop_task = self.loop.create_task(self._children.call_many(runs, self._started_in))
            self._loop_task.add_done_callback(self._task_ended)
            return
        call = self._call()

        def call_unless_unwanted() -> object:
            if self._unwanted():  # the jobs had to wait for a thread, and all were aborted meanwhile
                raise Aborted(self._task.name, "every job of the batch was aborted before it started")
            return call()

        if self._task.is_async:
            self._begin()
            self._loop_task = self.loop.create_task(_awaited(cast("Callable[[], Awaitable[object]]", call)))
            self._loop_task.add_done_callback(self._task_ended)
        elif self._executor.threads.call(self.loop, call_unless_unwanted, self._begin, self._ended):
            self._begin()

    def _started_in(self, child: Child) -> None:
        self._child = child

    def _begin(self) -> None:
        for member in self.members:
            self._executor.begin(member.run)

    def _call(self) -> Callable[[], object]:
        items = [member.item for member in self.members]
        contexts = [member.run.own_context() for member in self.members] if self._task.takes_contexts else None
        return lambda: self._task.invoke(contexts, items)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._ended(None, asyncio.CancelledError())
        else:
            error = task.exception()
            self._ended(None if error else task.result(), error)

    def _ended(self, value: object, error: BaseException | None) -> None:
        """Give each job its own result after the handler has ended. If the call raised, every job gets that error."""
        abandoned = sum(member.abandoned for member in self.members)
        self._executor.zombies_ended(abandoned, in_thread=self._thread_abandoned)
        ids = [member.run.job.id for member in self.members]
        ends = [error] * len(ids) if error is not None else answers(self._task.name, ids, value)
        for member, end in zip(self.members, ends, strict=True):
            member.finish(end)

    # ── abort ─────────────────────────────────────────────────────────────────────────────────

    def stop_if_unwanted(self, why: Abort) -> None:
        if self._loop_task is None or not self._unwanted():
            return
        if self._child is not None:
            self._child.halt(why)
        else:
            self._loop_task.cancel(why.value)

    def kill_if_unwanted(self) -> bool:
        """Kill the child process of the batch if all jobs of the batch were aborted. Return whether it was killed."""
        if self._child is None or not self._unwanted():
            return False
        self._child.kill()
        return True

    def _unwanted(self) -> bool:
        return all(member.run.why is not None for member in self.members)

    def member_abandoned(self) -> None:
        """Abandon the call of the handler if all runs of the batch are abandoned."""
        if not all(member.abandoned for member in self.members):
            return
        if self._loop_task is not None:
            self._executor.keep(self._loop_task)
        elif not self._thread_abandoned:
            self._thread_abandoned = True
            self._executor.threads.abandoned()


async def _awaited(call: Callable[[], Awaitable[object]]) -> object:
    try:
        return await call()
    except (SystemExit, KeyboardInterrupt, StopIteration) as error:
        raise for_future(error) from error
