"""The dispatcher: one loop that claims jobs and keeps the slots of the executor full.

The dispatcher fills all free slots with one claim. While no slot is free, it waits for a run to end. If several runs
end in the same iteration of the event loop, one claim fills their slots. When there is nothing to claim, it waits for a
wake-up from the store and also polls. Polling alone finds every job; wake-ups only make this faster.

If handlers are short, the dispatcher also claims jobs for slots that will soon be free (`ahead.py`), once half of them
are missing. On a store that sets `Store.small_claims`, such a claim, or one for many slots, takes at most half of the
jobs that the worker may hold, and at most `LARGEST_HALF`. If it returned as many as it could, the next claim is sent
before these jobs start, so that the store works while handlers run.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from millrace.app.host import Runnable
from millrace.domain.errors import InvalidInput
from millrace.domain.job import SECOND, Job
from millrace.domain.outcome import Buried, Failure, Outcome, Released
from millrace.domain.request import Claim
from millrace.domain.rules.precedence import JobDefaults
from millrace.store.protocol import Store
from millrace.worker.ahead import ENOUGH, Ahead, may_wait
from millrace.worker.backoff import Backoff, Chance
from millrace.worker.executor import Executor
from millrace.worker.heartbeat import Heartbeat
from millrace.worker.leases import LeaseKeeper, Reaper
from millrace.worker.reporter import Reporter
from millrace.worker.run import HeldJob, HeldJobs, KeepingRun, Run
from millrace.worker.scope import WorkerScope
from millrace.worker.settler import Settlement, Settler

UNSETTLED = 2  # ended runs per slot that may wait for their settle; with more, nothing is claimed
LEAST_PAUSE = 0.01  # seconds between claims that find nothing, in case a store's `wait` returns too early
UNKNOWN_TASK_DELAY = 5 * SECOND
MIN_FOR_HALVES = 100  # jobs that a worker may hold; with fewer, a second claim costs more than it saves
LARGEST_HALF = 200  # jobs; with more, the worker and the store wait for each other more than larger calls save
ALONE_EVERY = 8  # claims

UnknownTask = Literal["leave", "bury"]
Burst = bool | Callable[[], Awaitable[bool]]  # a function is called when there is nothing to do: stop now?


class WakeUp:
    """Ends the dispatcher's sleep when a slot is free, a job may be claimable, or the worker stops."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sleeper: asyncio.Future[None] | None = None
        self._notified = False
        self._waiting_for_slot = False
        self.batch_joined = False  # since the dispatcher has last filled the batches

    def notify(self) -> None:
        """Wake the dispatcher, because a job may be claimable or the worker stops.

        If the dispatcher is not asleep, its next sleep ends at once.
        """
        self._notified = True
        self.wake()

    def wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def slot_freed(self) -> None:
        if self._waiting_for_slot:
            self.wake()

    def joined_batch(self) -> None:
        """Wake the dispatcher if it waits for a slot. The runs of a batch share one slot, so a slot may be free."""
        self.batch_joined = True
        if self._waiting_for_slot:
            self.wake()

    def filling_batches(self) -> None:
        self.batch_joined = False

    def settled(self, batch: Sequence[Settlement]) -> None:
        """Wake the dispatcher if it waits for a slot, or if these settles may have made another job claimable.

        A settle can make the next job of a group or lane claimable, or enqueue a new job.
        """
        if self._waiting_for_slot:
            self.wake()
        for item in batch:
            job = item.held.job
            if item.change.jobs or job.lane is not None or job.spec.group is not None:
                self.notify()
                return

    def pending(self) -> bool:
        """Return whether `notify` was called since the last sleep. The next call returns False."""
        notified, self._notified = self._notified, False
        return notified

    async def sleep(self, timeout: float | None) -> None:
        """Sleep until `notify`, `wake` or the timeout. Return at once if `notify` was called since the last sleep."""
        if not self._notified:
            self._sleeper = self._loop.create_future()
            timer = None if timeout is None else self._loop.call_later(timeout, self.wake)
            try:
                await self._sleeper
            finally:
                self._sleeper = None
                if timer is not None:
                    timer.cancel()
        self._notified = False

    async def sleep_until_run_ends(self) -> None:
        self._waiting_for_slot = True
        try:
            await self.sleep(None)
        finally:
            self._waiting_for_slot = False


class Rotation:
    """Chooses the queues of each claim.

    A claim from several queues takes jobs by priority and age, so one busy queue could take all slots. Therefore every
    eighth claim is for one queue only. The queues take turns in this.
    """

    def __init__(self, queues: tuple[str, ...]) -> None:
        self.queues = queues
        self._claims = 0
        self._turn = 0

    def next(self) -> tuple[str, ...]:
        self._claims += 1
        if len(self.queues) < 2 or self._claims % ALONE_EVERY:
            return self.queues
        self._turn = (self._turn + 1) % len(self.queues)
        return (self.queues[self._turn],)


class _PendingClaim(NamedTuple):
    jobs: asyncio.Task[list[Job]]
    queues: tuple[str, ...]
    limit: int
    since: float
    held: bool  # was any job held when it was sent? Its end may open the next job of a group or lane


class Dispatcher:
    def __init__(
        self,
        store: Store,
        worker: str,
        queues: tuple[str, ...],
        tasks: Mapping[str, Runnable],
        wake_up: WakeUp,
        executor: Executor,
        settler: Settler,
        held: HeldJobs,
        leases: LeaseKeeper,
        heartbeat: Heartbeat,
        reaper: Reaper,
        reporter: Reporter,
        *,
        poll: Backoff,
        lease: int | None,
        shortest_lease: float,
        scope: WorkerScope,
        defaults: Mapping[str, JobDefaults | None],
        unknown: UnknownTask,
        chance: Chance,
        max_jobs: int | None,
    ) -> None:
        self._store = store
        self._worker = worker
        self._tasks = tasks
        self._claimable_tasks = None if unknown == "bury" else frozenset(tasks)
        self._rotation = Rotation(queues)
        self._wake_up = wake_up
        self._executor = executor
        self._settler = settler
        self._held = held
        self._leases = leases
        self._heartbeat = heartbeat
        self._reaper = reaper
        self._reporter = reporter
        self._poll = poll
        self._store_backoff = Backoff(poll.least, poll.most, chance)
        self._lease = lease
        self._scope = scope
        self._defaults = defaults
        self._loop = asyncio.get_running_loop()
        self._claim: _PendingClaim | None = None
        self._empty_claims = 0  # in a row
        self._claimed_at = 0.0
        self._remaining = math.inf if max_jobs is None else max_jobs  # jobs that may still be claimed
        self._backlog = False  # the last claim returned as many jobs as it could, and it was not one of the first
        self._ahead = Ahead(
            store, executor, lease=shortest_lease, on_given_back=self._given_back, failed=reporter.error
        )
        self.stopping = False

    # ── the loop ──────────────────────────────────────────────────────────────────────────────

    async def run(self, *, burst: Burst = False) -> None:
        """Claim and start jobs until `stop` is called or `max_jobs` jobs are done.

        With `burst`, also return when no job is claimable, running or unsettled.
        """
        wake_up = self._wake_up
        agreed = False  # by the function `burst`: a job may have become due since, so one more claim follows
        while not self.stopping:
            claim = self._claim
            if claim is None:
                if self._remaining <= 0:
                    if not self._held:
                        return
                    await wake_up.sleep_until_run_ends()
                    continue
                limit = self._next_limit()
                if limit <= 0:
                    if wake_up.batch_joined:
                        await self._fill_batches(self._rotation.queues)
                    await self._wait_for_slot()
                    continue
                claim = self._send_claim(self._rotation.next(), limit, self._claimable_tasks)
            found = await self._start_jobs(claim)
            if found > 0 and self._executor.batchers:
                await self._fill_batches(claim.queues)
            if found < 0:
                await wake_up.sleep(self._store_backoff.next())
            elif found < claim.limit and len(claim.queues) == len(self._rotation.queues):
                self._reaper.hurry()
                if not burst:
                    if found > 0:
                        await self._let_jobs_start()
                    if not self._executor.waiting:  # otherwise a wake-up is better used by another worker
                        await self._wait_for_jobs()
                elif self._held:
                    await wake_up.sleep_until_run_ends()
                elif not found and not claim.held:
                    if burst is True or agreed:
                        return
                    agreed = await self._burst_is_over(burst)
                    if not agreed:
                        await self._wait_for_jobs()
                    continue
            agreed = False

    def stop(self) -> None:
        self.stopping = True
        self._ahead.give_back()
        for batcher in self._executor.batchers.values():
            batcher.start_now()
        self._wake_up.notify()

    async def _burst_is_over(self, burst: Callable[[], Awaitable[bool]]) -> bool:
        try:
            return await burst()
        except Exception as error:  # it asks the store, which may be unavailable
            self._reporter.error(error)
            return False

    def _next_limit(self, about_to_start: int = 0) -> int:
        """Return how many jobs to claim next: as many as there are free slots, or more if jobs may wait for a slot."""
        executor = self._executor
        free = executor.free - about_to_start
        ahead = self._ahead.room() if self._backlog else 0
        most = executor.slots + ahead  # jobs that the worker may hold
        wanted = free + ahead
        in_halves = self._store.small_claims and most >= MIN_FOR_HALVES
        executor.refill_at = max(0, most // 2 - executor.slots) if in_halves else 0
        if free < -executor.refill_at:
            return 0
        if in_halves:
            wanted = min(wanted, (most + 1) // 2, LARGEST_HALF)
        unsettled = UNSETTLED * most - self._settler.pending
        if unsettled < wanted // 2:  # a claim of few jobs costs as much as one of many, and a settle is under way
            return 0
        return int(min(wanted, unsettled, self._remaining))

    def _given_back(self, count: int) -> None:
        self._remaining += count

    async def _wait_for_slot(self) -> None:
        while self._next_limit() <= 0 and not self.stopping and not self._wake_up.batch_joined:
            await self._wake_up.sleep_until_run_ends()

    async def _let_jobs_start(self) -> None:
        """Let new runs start before the worker waits for jobs, so that very short jobs are settled without delay."""
        for _ in range(2):  # iterations of the loop: its handler runs in the first, its settle is sent in the second
            await asyncio.sleep(0)

    async def _wait_for_jobs(self) -> None:
        """Wait until the store reports that a job may be claimable, or until the next poll is due."""
        timeout = self._poll.next()
        if self._wake_up.pending():
            return
        waiting = self._loop.create_task(self._store.wait(self._rotation.queues, self._claimable_tasks, timeout))
        waiting.add_done_callback(lambda _: self._wake_up.wake())
        try:
            await self._wake_up.sleep(timeout * 2)  # twice: polling goes on even if `wait` hangs
        finally:
            error = await _end_of(waiting)
        if error is not None:
            self._reporter.error(error)
            await self._wake_up.sleep(timeout)
        if self._empty_claims > 1:
            too_early = self._claimed_at + LEAST_PAUSE - self._loop.time()
            if too_early > 0:
                await asyncio.sleep(too_early)

    # ── claim and start ───────────────────────────────────────────────────────────────────────

    def _send_claim(
        self, queues: tuple[str, ...], limit: int, tasks: frozenset[str] | None, *, about_to_start: int = 0
    ) -> _PendingClaim:
        since = self._loop.time()
        jobs = self._loop.create_task(self._store.claim(Claim(queues, self._worker, limit, tasks, self._lease)))
        held = bool(self._held) or about_to_start > 0
        claim = self._claim = _PendingClaim(jobs, queues, limit, since, held)
        return claim

    async def _start_jobs(self, claim: _PendingClaim) -> int:
        """Wait for the answer to a claim and start its jobs. Return the number of jobs, or -1 if the store failed."""
        try:
            jobs = await asyncio.shield(claim.jobs)  # a worker that is cancelled must give back what it has claimed
        except InvalidInput:  # a name that no store accepts: to ask again would not help
            self._claim = None
            raise
        except Exception as error:
            self._claim = None
            self._reporter.error(error)
            return -1
        self._claim = None
        self._claimed_at = claim.since
        self._store_backoff.reset()
        self._reporter.claimed(jobs)
        full = len(jobs) == claim.limit
        if full or len(claim.queues) == len(self._rotation.queues):
            self._backlog = full and self._reporter.stats.claimed > ENOUGH
        if not jobs:
            self._empty_claims += 1
            return 0
        self._empty_claims = 0
        self._remaining -= len(jobs)
        self._poll.reset()
        if full:
            self._start_backlog(jobs, claim)
        else:
            self._start(jobs, claim.since)
        if self._executor.waiting:
            if any(job.stalls for job in jobs):
                self._ahead.give_back()  # one of these jobs may kill this worker, as it may have killed another
            self._ahead.check_wait()
        return len(jobs)

    def _start_backlog(self, jobs: list[Job], claim: _PendingClaim) -> None:
        """Start the jobs of a claim that returned as many as it could. Send the next claim before, if it has room."""
        seconds = self._loop.time() - claim.since
        if self._store.small_claims and not self.stopping and not self._executor.batchers:
            limit = self._next_limit(len(jobs))
            if limit > 0:
                self._send_claim(self._rotation.next(), limit, self._claimable_tasks, about_to_start=len(jobs))
        self._start(jobs, claim.since)
        if self._backlog:
            self._ahead.claimed(jobs, seconds)

    async def _fill_batches(self, queues: tuple[str, ...]) -> None:
        """Claim more jobs for each batch that is collecting jobs. They share the slot of their batch."""
        self._wake_up.filling_batches()
        await asyncio.sleep(0)  # the runs just started join their batches
        for name, batcher in self._executor.batchers.items():
            if (missing := int(min(batcher.missing, self._remaining))) > 0 and not self.stopping:
                with batcher.filling():
                    await self._start_jobs(self._send_claim(queues, missing, frozenset({name})))
                    await asyncio.sleep(0)

    async def give_back_last_claim(self, timeout: float) -> None:
        """Wait for a claim that was under way when the worker began to stop, and release its jobs.

        If the claim takes longer than `timeout` seconds, cancel it.
        """
        await self._ahead.stop()
        if self._claim is None:
            return
        claim, self._claim = self._claim, None
        await asyncio.wait([claim.jobs], timeout=timeout)
        if not claim.jobs.done():
            claim.jobs.cancel()
        elif not claim.jobs.cancelled() and claim.jobs.exception() is None:
            self._start(claim.jobs.result(), claim.since)

    def _start(self, jobs: list[Job], since: float) -> None:
        scope, tasks, held, executor = self._scope, self._tasks, self._held, self._executor
        free = executor.free  # at least; a run that ends in a thread may free another slot
        for job in jobs:
            spec = job.spec
            granted = (spec.lease if self._lease is None else self._lease) / 1000
            task = tasks.get(spec.task)
            if task is None or self.stopping:
                self._turn_down(job, granted, since)
                continue
            kind = Run
            if defaults := self._defaults[spec.task]:
                kept, job.spec = spec.keep_result, (spec := defaults.applied_to(spec))
                kind = Run if spec.keep_result == kept else KeepingRun
            if free <= 0 and executor.free <= 0 and not executor.batchers and not may_wait(job):
                self._turn_down(job, granted, since)
                self._given_back(1)
                continue
            length = spec.lease / 1000
            run = kind(job, task, length, since, scope, executor.grace, self._heartbeat.write_progress)
            if granted < length:
                run.lease_from(since, granted)  # until the next beat, which extends it by the whole length
            held[run.lease.id] = run
            executor.start(run)
            free -= 1
            if self._leases.too_slow_for(length):
                self._heartbeat.hurry()

    def _turn_down(self, job: Job, length: float, since: float) -> None:
        """Release or bury a claimed job without starting it.

        Its task is unknown, the worker is stopping, or the job may not wait for a slot.
        """
        outcome: Outcome = Released()
        if job.task not in self._tasks:
            text = f"no task named {job.task!r} is registered here; register it, or let another worker run it"
            outcome = Buried(Failure("UnknownTask", text), "unknown_task")
            if self._claimable_tasks is not None:  # only known tasks were claimed; another worker may know this one
                outcome = Released(UNKNOWN_TASK_DELAY)
        held = HeldJob(job, None, length, since, since)
        self._held[held.lease.id] = held
        self._settler.submit(held, outcome)


async def _end_of(task: asyncio.Task[None]) -> Exception | None:
    """Cancel an asyncio task if it has not ended. Return the exception that it raised, or None."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    error = None if task.cancelled() else task.exception()
    return error if isinstance(error, Exception) else None
