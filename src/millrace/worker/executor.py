"""The executor: runs handlers, from the start of a run to its end.

The dispatcher creates a `Run` for each claimed job and passes it to `Executor.start`. When the run has ended, the
executor passes its outcome to the settler and wakes the dispatcher, because a slot is free.

- Wait: if no slot is free, the run waits until one is (`ahead.py` says why the dispatcher claims such jobs).
- Start: an `async def` handler runs in an asyncio task on the worker's loop, a `def` handler in a thread
  (`thread_runs.py`). A handler with middleware or injected parameters, in a child process or in a batch has a
  *strategy*: a coroutine function that the asyncio task awaits instead of the handler. The strategy of each task is
  determined once, when the worker starts.
- Timeout: there is one timer for all runs, set to the earliest deadline.
- Abort: the asyncio task is cancelled, or the handler is asked to stop in its thread, process or batch (`Execution`).
  A handler may ignore this. When the grace period is over, a child process is killed; a coroutine or thread is
  abandoned. An abandoned handler that still runs is called a zombie. It cannot change the job, because of the fence.
- End: what the handler returned or raised, or why it was aborted, becomes an `Outcome` (`run.py`).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from millrace.app.batch_task import BatchTask
from millrace.app.handler.verdict import Abort
from millrace.app.host import Middleware, Runnable
from millrace.app.payloads.inputs import has_inputs
from millrace.app.telemetry.log_context import current_job
from millrace.domain.outcome import Outcome, Released
from millrace.worker.batch import Batcher, BatchRunnable
from millrace.worker.middleware import Strategy, run_on_loop, with_injection, with_middleware
from millrace.worker.run import Run
from millrace.worker.thread_runs import ThreadEnd, ThreadRuns
from millrace.worker.threads import Threads, call_in_loop

if TYPE_CHECKING:
    from millrace.app.task import Task
    from millrace.worker.dispatcher import WakeUp
    from millrace.worker.handover import Handover
    from millrace.worker.process.children import Children
    from millrace.worker.settler import Settler

KILL_WAIT = 1.0  # seconds within which the end of a killed process is noticed
RECENT = 32  # runs; the weight of a run in the average is 1 / RECENT


class Executor:
    """Runs up to `slots` jobs, or batches of jobs, at a time.

    All methods must be called on the event loop, except those with `thread` in their names that say otherwise.
    """

    def __init__(
        self,
        tasks: Mapping[str, Runnable],
        settler: Settler,
        wake_up: WakeUp,
        *,
        slots: int,
        threads: int,
        grace: float,
        name: str,
        middleware: Sequence[Middleware] = (),
        processes: int = 1,
        max_jobs_per_child: int | None = None,
        max_memory_per_child: int | None = None,
        on_empty: Callable[[], None],
        handover: Handover | None = None,
    ) -> None:
        self.slots = slots
        self.grace = grace
        self.running: dict[str, Run] = {}  # by lease id, until their outcome is passed to the settler
        self.waiting: deque[Run] = deque()  # for a slot, in the order in which they will start
        self.refill_at = 0  # waiting runs; with more, the dispatcher is not woken when a run ends
        self.slot_time = 0.0  # seconds for which the recent runs held their slots, on average
        self.abandoned = 0
        self.zombies = 0  # abandoned handlers that still run
        self.threads = Threads(threads, name)
        self._thread_runs = ThreadRuns(self, self.threads)
        self._used = 0  # slots
        self._settler = settler
        self._wake_up = wake_up
        self._on_empty = on_empty
        self._handover = handover
        self._loop = asyncio.get_running_loop()
        self._shared = 0  # runs that need no slot of their own, because their batch has one
        self._orphans: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self.children = self._make_children(tasks, processes, max_jobs_per_child, max_memory_per_child)
        self.batchers = {
            name: Batcher(cast("BatchRunnable", task), self, self.children if task.options.process else None)
            for name, task in tasks.items()
            if isinstance(task, BatchTask)
        }
        self.strategies: dict[str, Strategy] = {}  # by task; a task without one is called directly
        for task in tasks.values():
            layers = (*middleware, *task.layers) if task.inherits else task.layers
            if (strategy := self._strategy(task, layers)) is not None:
                self.strategies[task.name] = strategy

    def _make_children(
        self, tasks: Mapping[str, Runnable], processes: int, max_jobs: int | None, max_memory: int | None
    ) -> Children | None:
        in_process = [task for task in tasks.values() if task.options.process]
        if not in_process:
            return None
        from millrace.app.handler.address import address_of
        from millrace.worker.process.children import Children

        addresses = [address_of(cast("Task[..., Any]", task)) for task in in_process]
        cleans_up = any(cast("Task[..., Any]", task).lifespan_factory is not None for task in in_process)
        return Children(
            addresses, processes, begin=self.begin, max_jobs=max_jobs, max_memory=max_memory, cleans_up=cleans_up
        )

    def _strategy(self, task: Runnable, layers: Sequence[Middleware]) -> Strategy | None:
        strategy: Strategy
        if task.name in self.batchers:
            strategy = self.batchers[task.name].run
        elif task.options.process:
            assert self.children is not None
            strategy = self.children.call
        elif task.injection is not None:
            strategy = with_injection(task.injection, run_on_loop if task.is_async else self._thread_runs.run)
        elif not layers:
            return None
        else:
            strategy = run_on_loop if task.is_async else self._thread_runs.run
        return with_middleware(layers, strategy) if layers else strategy

    @property
    def free(self) -> int:
        """The number of free slots. It is negative while runs wait for a slot."""
        return self.slots - self._used + self._shared - len(self.waiting)

    @property
    def in_slots(self) -> list[Run]:
        """The runs whose handlers have not ended. Can be called from any thread."""
        return [run for run in list(self.running.values()) if not run.ended]

    # ── start ─────────────────────────────────────────────────────────────────────────────────

    def start(self, run: Run) -> None:
        """Start a run, now or when a slot is free. When it ends, its outcome is passed to the settler."""
        if self.free > 0 or self.batchers:  # a run of a batch may need no slot of its own
            self._start_in_slot(run)
        else:
            run.wait_for_slot()
            self.waiting.append(run)

    def _start_in_slot(self, run: Run) -> None:
        self._used += 1
        self.running[run.lease.id] = run
        strategy = self.strategies.get(run.task.name) if self.strategies else None
        if run.job.spec.after and has_inputs(run.job.spec):
            strategy = self._with_inputs(run, strategy)
        if strategy is not None or run.task.is_async:
            run.loop_task = self._loop.create_task(self._execute(run, strategy))
        else:
            self._thread_runs.start(run)
        if run.deadline < self._timer_at:
            self._set_timer(run.deadline)

    def _with_inputs(self, run: Run, strategy: Strategy | None) -> Strategy:
        """Return a strategy that first completes the payload with the results of the job's parents."""
        then = strategy or (run_on_loop if run.task.is_async else self._thread_runs.run)
        handover = self._handover
        assert handover is not None, "this executor has no store to read results from"

        async def complete_and_run(run: Run) -> object:
            await handover.complete(run)
            return await then(run)

        return complete_and_run

    async def _execute(self, run: Run, strategy: Strategy | None) -> None:
        """Await the handler, or its strategy, and end the run. This is the body of the run's asyncio task."""
        current_job.set(run.job)
        try:
            if strategy is None:
                value = await run.task.handler(**run.arguments())
            else:
                value = await strategy(run)
            outcome = run.returned(value)
        except KeyboardInterrupt:
            self._handler_ended(run, Released())
            raise
        except BaseException as error:  # CancelledError and SystemExit too: a handler cannot end its worker
            if isinstance(error, GeneratorExit) and not _in_own_task(run):
                raise  # not raised by the handler: the loop is closed and discards this coroutine
            outcome = run.raised(error)
        self._handler_ended(run, outcome)

    def begin(self, run: Run) -> None:
        """Start the timeout of a run.

        This is called for a handler that had to wait for a thread, a process or a batch.
        """
        if not run.ended and run.why is None:
            run.begin(self._loop.time(), self.grace)
            self._watch_deadline(run)

    # ── timeout ───────────────────────────────────────────────────────────────────────────────

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = None if math.isinf(at) else self._loop.call_at(at, self._abort_overdue)

    def _watch_deadline(self, run: Run) -> None:
        if run.deadline < self._timer_at and not run.ended:
            self._set_timer(run.deadline)

    def _abort_overdue(self) -> None:
        now = self._loop.time()
        earliest = self._timer_at = math.inf  # first: a run that a thread starts from now on sets the timer again
        for run in list(self.running.values()):
            if run.why is not None:
                continue
            if run.deadline <= now:
                self.abort(run, Abort.TIMEOUT)
            elif run.deadline < earliest:
                earliest = run.deadline
        self._set_timer(earliest)

    # ── wait ──────────────────────────────────────────────────────────────────────────────────

    def _start_waiting(self) -> None:
        while self._used < self.slots + self._shared:
            with self._thread_runs.lock:
                if not self.waiting:
                    return
                run = self.waiting.popleft()
                run.got_slot(self._loop.time(), self.grace)
            self._start_in_slot(run)

    def give_back(self) -> int:
        """Release all runs that wait for a slot. Return their number."""
        with self._thread_runs.lock:
            runs = list(self.waiting)
            self.waiting.clear()
        for run in runs:
            self._end_waiting(run, Released())
        return len(runs)

    def _withdraw(self, run: Run) -> bool:
        """Remove a run from the waiting ones. Return False if it does not wait."""
        with self._thread_runs.lock:
            if run.waiting:
                self.waiting.remove(run)
            return run.waiting

    def _end_waiting(self, run: Run, outcome: Outcome | None) -> None:
        run.ended = True
        self._settler.submit(run, outcome)

    # ── called by `ThreadRuns` ────────────────────────────────────────────────────────────────

    def begin_in_thread(self, run: Run) -> None:
        """Start the timeout of a run. Called in the thread that calls its handler."""
        run.begin(self._loop.time(), self.grace)
        if run.deadline < self._timer_at:
            call_in_loop(self._loop, self._watch_deadline, run)

    def take_waiting_in_thread(self) -> Run | None:
        """Return the next waiting run if a thread can continue with it. Called in the thread, which holds the lock."""
        if not self.waiting:
            return None
        run = self.waiting[0]
        if run.task.is_async or run.task.name in self.strategies or run.job.spec.after:
            return None  # the loop starts it
        self.waiting.popleft()
        run.got_slot(self._loop.time(), self.grace)
        self.running[run.lease.id] = run
        return run

    def threads_ended(self, ends: Iterable[ThreadEnd]) -> None:
        """End the runs of handlers that have ended in threads."""
        for end in ends:
            self._used += not end.frees_slot  # `_finish` frees a slot, but the thread uses it for another run
            self._finish(end.run, end.outcome)

    # ── abort ─────────────────────────────────────────────────────────────────────────────────

    def abort(self, run: Run, why: Abort) -> None:
        """Ask a handler to stop. If its run has not ended when the grace period is over, the handler is abandoned."""
        if run.ended or run.why is why or (run.why is not None and why is not Abort.LOST):
            return
        if run.waiting and self._withdraw(run):
            self._end_waiting(run, run.aborted(why))
            return
        first = run.why is None
        run.abort(why)
        if run.execution is not None:
            run.execution.stop(why)
        elif run.loop_task is not None:
            run.loop_task.cancel(why.value)
            run.loop_task.add_done_callback(lambda _: self._end_unstarted(run, why))
        if first:
            self._loop.call_later(self.grace, self.abandon, run)

    def _end_unstarted(self, run: Run, why: Abort) -> None:
        """End an aborted run if `_execute` has not done so. It never runs if its task is cancelled before it starts."""
        if not run.ended:
            self._finish(run, run.aborted(why))

    def abandon(self, run: Run) -> None:
        """Kill the child process of an aborted handler, or leave the handler behind. Called after the grace period."""
        if run.ended or run.why is None:
            return
        if run.execution is not None and run.execution.abandon():
            self._loop.call_later(KILL_WAIT, self.leave_behind, run)
        else:
            self.leave_behind(run)

    def leave_behind(self, run: Run) -> None:
        """End an aborted run although its handler still runs. The handler is counted as a zombie from now on."""
        if run.ended or run.why is None or (run.loop_task is None and not self._thread_runs.abandon(run)):
            return
        self.abandoned += 1
        self.zombies += 1
        if run.loop_task is not None:
            run.loop_task.cancel(run.why.value)
            self.keep(run.loop_task)
        self._finish(run, run.aborted(run.why))

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Keep a reference to an abandoned asyncio task, because the event loop has only a weak reference."""
        self._orphans.add(task)
        task.add_done_callback(self._orphans.discard)

    def abort_all(self, why: Abort) -> None:
        for run in list(self.running.values()):
            self.abort(run, why)

    def abandon_all(self) -> None:
        for run in list(self.running.values()):
            self.abandon(run)

    def leave_all_behind(self) -> None:
        for run in list(self.running.values()):
            self.leave_behind(run)

    # ── end ───────────────────────────────────────────────────────────────────────────────────

    def _handler_ended(self, run: Run, outcome: Outcome | None) -> None:
        """End the run of a handler that has ended.

        If the handler was left behind before, only count one zombie less.
        """
        if not run.ended:
            self._finish(run, outcome)
        elif run.execution is None:  # otherwise the handler still runs, and its execution counts its end
            self.zombies -= 1

    def _finish(self, run: Run, outcome: Outcome | None) -> None:
        """End a run: free its slot and pass its outcome to the settler. Called once per run."""
        run.ended = True
        self._used -= 1
        del self.running[run.lease.id]
        self.slot_time += (self._loop.time() - run.slot_at - self.slot_time) / RECENT
        self._settler.submit(run, outcome)
        if self.waiting:
            self._start_waiting()
        if len(self.waiting) <= self.refill_at:
            self._wake_up.slot_freed()
        if not self.running:
            self._on_empty()

    def zombies_ended(self, runs: int, *, in_thread: bool) -> None:
        """Count an abandoned handler that has ended. `runs` is the number of its runs, more than one for a batch."""
        self.zombies -= runs
        if in_thread:
            self.threads.returned()

    def joined_batch(self, *, first: bool) -> None:
        """Count a run that has joined a batch. Only the first run of a batch takes a slot."""
        self._shared += not first
        self._wake_up.joined_batch()

    def left_batch(self, *, last: bool) -> None:
        self._shared -= not last

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for orphan in self._orphans:
            _unregister(orphan)
        self.threads.close()


def _in_own_task(run: Run) -> bool:
    try:
        return asyncio.current_task() is run.loop_task
    except RuntimeError:  # no loop is running
        return False


def _unregister(task: asyncio.Task[Any]) -> None:
    """Hide an abandoned task from asyncio: if it ignores cancellation, `asyncio.run` would wait for it forever."""
    unregister = getattr(asyncio.tasks, "_unregister_task", None)
    if unregister is not None:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        unregister(task)
