"""The settler: decides what happens to each job whose run has ended, and settles many jobs per call.

There is no timer. If no call is under way, a job is settled at once; otherwise it joins the next call. So a single job
is not delayed, and a busy worker makes few, large calls. A settle is safe to repeat, because it names its lease. A
failed call is repeated until the store answers, or until twice the lease duration has passed since the end of the run.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from millrace.app.host import Runnable
from millrace.domain.change import Change, Verb
from millrace.domain.errors import QueueError, StoreError
from millrace.domain.job import Job
from millrace.domain.outcome import Failure, Outcome, Raised
from millrace.domain.request import Receipt
from millrace.domain.retry import DEFAULT_RETRY
from millrace.domain.rules.decide import decide
from millrace.store.protocol import Consumer
from millrace.worker.backoff import Backoff, Chance
from millrace.worker.reporter import Reporter
from millrace.worker.run import HeldJob, HeldJobs

if TYPE_CHECKING:
    from millrace.worker.dispatcher import WakeUp

log = logging.getLogger("millrace.worker")

BATCH = 1_000
CALL_TIMEOUT = 30.0  # seconds; a call that hangs is given up and repeated
PATIENCE = 2.0  # lease durations after the end of a run; its settle is given up then
_ENQUEUES_CHILDREN = frozenset({Verb.COMPLETE, Verb.SNOOZE})


class Settlement:
    """One change to be written to the store. The lease of `held` is extended until the store has answered.

    After `give_up_at` the settle is no longer repeated.
    """

    __slots__ = ("change", "give_up_at", "held", "refused")

    def __init__(self, held: HeldJob, change: Change, now: float) -> None:
        self.held = held
        self.change = change
        self.give_up_at = now + held.length * PATIENCE
        self.refused = False
        held.extend_only_until(self.give_up_at)

    def replace(self, error: Exception, chance: float, now: float) -> None:
        """The store has refused the change: write a failure of the run instead. One cause of a refusal is an invalid
        job that the handler added with `ctx.enqueue`.

        If the store refuses the failure too, the settle is given up.
        """
        if self.refused:
            self.give_up_at = now
        else:
            self.refused = True
            self.change = decide(self.held.job, Raised(Failure.from_exception(error)), chance)


class Settler:
    """Settles the jobs of one worker. All methods must be called on the event loop."""

    def __init__(self, store: Consumer, held: HeldJobs, reporter: Reporter, wake_up: WakeUp, chance: Chance) -> None:
        self._store = store
        self._held = held
        self._reporter = reporter
        self._wake_up = wake_up
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Settlement] = deque()
        self._under_way = 0
        self._batch = BATCH
        self._backoff = Backoff(0.05, 5.0, chance)
        self._task: asyncio.Task[None] | None = None
        self._progress = asyncio.Event()

    @property
    def pending(self) -> int:
        return len(self._queue) + self._under_way

    def submit(self, held: HeldJob, outcome: Outcome | None) -> None:
        """Settle a job with the outcome of its run.

        If the outcome is None, the lease is lost and nothing is written.
        """
        if outcome is None:
            del self._held[held.lease.id]  # no longer extended: the reaper of some worker decides
            self._reporter.lost(held.job)
            return
        now = self._loop.time()
        change = change_after(held, outcome, self._chance(), now)
        self._queue.append(Settlement(held, change, now))
        if self._task is None:
            # It starts in the next iteration of the loop: runs that end in this one are in the same batch.
            self._task = self._loop.create_task(self._settle_all())

    async def room(self) -> None:
        """Wait until the pending jobs fit into one call."""
        while self.pending >= BATCH:
            self._progress.clear()
            await self._progress.wait()

    async def flush(self, timeout: float) -> int:
        """Wait up to `timeout` seconds until all jobs are settled. Return the number of jobs that are not settled."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout)
        return self.pending

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _settle_all(self) -> None:
        try:
            while self._queue:
                batch = self._next_batch()
                self._under_way = len(batch)
                try:
                    await self._settle(batch)
                finally:
                    self._under_way = 0
                    self._progress.set()
        finally:
            self._task = None

    def _next_batch(self) -> list[Settlement]:
        if len(self._queue) <= self._batch:
            batch = list(self._queue)
            self._queue.clear()
            return batch
        return [self._queue.popleft() for _ in range(self._batch)]

    async def _settle(self, batch: list[Settlement]) -> None:
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                receipts = await self._store.settle([(item.held.lease, item.change) for item in batch])
        except Exception as error:
            self._reporter.error(error)
            await self._after_failure(batch, error)
            return
        self._backoff.reset()
        self._batch = min(BATCH, self._batch * 2)
        self._settled(batch, receipts)

    async def _after_failure(self, batch: list[Settlement], error: Exception) -> None:
        """Put the settles of a failed call at the end of the queue, and make the next calls half as large.

        A change that the store cannot write is thus isolated in a call of its own, and does not block other changes.
        """
        refused = isinstance(error, QueueError) and not isinstance(error, StoreError)
        self._batch = max(1, len(batch) // 2)
        now = self._loop.time()
        if refused and len(batch) == 1:
            batch[0].replace(error, self._chance(), now)
        late = [item for item in batch if item.give_up_at <= now]
        self._queue.extend(item for item in batch if item.give_up_at > now)
        if late:
            log.error("gave up settling %d jobs after: %s; they will run again", len(late), error)
            self._settled(late, [Receipt.LOST] * len(late))
        if not refused:
            self._under_way = 0
            await asyncio.sleep(self._backoff.next())

    def _settled(self, batch: list[Settlement], receipts: Sequence[Receipt]) -> None:
        held = self._held
        for item in batch:
            held.pop(item.held.lease.id, None)
        self._reporter.settled(batch, receipts)
        self._wake_up.settled(batch)


def change_after(held: HeldJob, outcome: Outcome, chance: float, now: float) -> Change:
    """Return the change to settle a job with.

    If its handler has run, the change includes the duration of the run, the job's log if it has changed, and, if the
    job is completed or snoozed, the jobs that it has enqueued with `ctx.enqueue`.
    """
    change = decide_change(held.job, held.task, outcome, chance)
    if held.started is None or held.waiting:  # no handler has run
        return change
    children = tuple(held.children) if held.children and change.verb in _ENQUEUES_CHILDREN else ()
    duration = max(0, int((now - held.started) * 1000))
    kept = {"keep_result": held.keep_result, "log": held.unwritten_log}
    return msgspec.structs.replace(change, duration=duration, jobs=children, **kept)


def decide_change(job: Job, task: Runnable | None, outcome: Outcome, chance: float) -> Change:
    """Return the change for an outcome, as `decide` does. If the task has a backoff function, it sets the delay.

    The backoff function is not called if the handler chose a delay, or if the job has its own retry policy.
    """
    change = decide(job, outcome, chance)
    if change.verb is not Verb.RETRY or task is None or task.options.backoff is None:
        return change
    if (isinstance(outcome, Raised) and outcome.after is not None) or job.spec.retry != DEFAULT_RETRY:
        return change
    try:
        seconds = float(task.options.backoff(job.failures + 1))
        if not math.isfinite(seconds) or seconds < 0:
            raise ValueError(f"a backoff must be a number of seconds from 0 up, not {seconds!r}")
    except Exception:
        log.exception("the backoff function of task %s failed; its retry policy is used", task.name)
        return change
    return msgspec.structs.replace(change, delay=round(seconds * 1000))
