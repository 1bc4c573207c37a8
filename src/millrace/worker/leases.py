"""Leases: how a worker extends the leases of its own jobs and reclaims those that have expired.

`LeaseKeeper` extends the leases of all held jobs (`run.py`), writes the worker's record and aborts runs whose lease is
lost; `heartbeat.py` calls it periodically. `Reaper` reclaims jobs whose lease has expired, of all workers, and settles
them by their retry policy.

A worker measures leases by its own monotonic clock; its wall clock is not used. For the store, a lease starts when the
store handles the claim or the extend. For the worker, it starts earlier, when the worker sends the call. So the worker
stops relying on a lease a little before the store lets it expire, which is safe.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from millrace.app.handler.verdict import Abort
from millrace.app.host import Runnable
from millrace.domain.job import Job
from millrace.domain.outcome import Failure, Lost
from millrace.domain.request import Extension, Receipt, Reclaim, WorkerInfo
from millrace.domain.rules.precedence import JobDefaults
from millrace.store.protocol import Store
from millrace.worker.backoff import Backoff, Chance, spread
from millrace.worker.run import HeldJob, HeldJobs

if TYPE_CHECKING:
    from millrace.worker.reporter import Reporter
    from millrace.worker.settler import Settler

BEATS_PER_LEASE = 3
PROGRESS_INTERVAL = 1.0  # seconds between two writes of progress
TTL_BEATS = 2.4  # a dead worker's record expires before its leases: the reaper can tell it from a stalled worker

RECLAIM_LIMIT = 500  # jobs per call
RECLAIM_LEASE = 30_000  # milliseconds within which a reclaimed job must be settled
ROUND = 5.0  # seconds that one round of reclaiming, or of upkeep, may take
LEAST_PAUSE = 1.0  # seconds between rounds that an idle worker asks for


class LeaseKeeper:
    """Extends the leases of all held jobs. It runs on the event loop of the heartbeat, often in a separate thread.

    The functions `info`, `abort` and `failed` are called on that loop.
    """

    def __init__(
        self,
        held: HeldJobs,
        info: Callable[[], WorkerInfo],
        abort: Callable[[HeldJob, Abort], None],
        failed: Callable[[Exception], None],
        *,
        lease: float,
        interval: float | None,
        chance: Chance,
    ) -> None:
        self._held = held
        self._info = info
        self._abort = abort
        self._failed = failed
        self._lease = lease  # lease duration in seconds: the default of a job
        self._max_interval = math.inf if interval is None else interval
        self._chance = chance
        self._shortest = 0.0  # the shortest lease duration that the current interval was made for
        self._written_at = -math.inf
        self._hurried = False  # a beat is wanted now
        self._progressed = False  # there is progress to write, or a log
        self.beats = 0

    def request_beat(self) -> None:
        self._hurried = True

    def request_write(self) -> bool:
        """Request that progress is written.

        Return False if this was already requested. Can be called from any thread.
        """
        requested, self._progressed = self._progressed, True
        return not requested

    def too_slow_for(self, length: float) -> bool:
        """Return whether heartbeats are too rare for a new lease of `length` seconds."""
        return length < self._shortest

    def _interval(self) -> float:
        """Return the seconds between heartbeats: a third of the shortest lease duration.

        `_shortest` is infinite during the computation. So `too_slow_for` is True for a job that another thread adds in
        this time, and the job gets a heartbeat at once.
        """
        self._shortest = math.inf
        self._shortest = min([self._lease, *(held.length for held in list(self._held.values()))])
        return min(self._max_interval, self._shortest / BEATS_PER_LEASE)

    async def run(self, store: Callable[[], Awaitable[Store]], wake: asyncio.Event) -> None:
        """Extend leases periodically until cancelled, and write progress in between. `wake` ends a sleep early."""
        backoff = Backoff(0.05, 1.0, self._chance)
        clock = asyncio.get_running_loop().time
        beat_at = clock()
        only_progress = False
        while True:
            self._hurried = False
            try:
                async with asyncio.timeout(self._call_timeout()):
                    if only_progress:
                        await self.write_progress(await store())
                    else:
                        await self.beat(await store())
                        beat_at = clock() + self._interval() * (0.9 + 0.1 * self._chance())
                backoff.reset()
            except Exception as error:
                self._failed(error)
                beat_at = clock() + backoff.next()
            self.abort_expiring()
            only_progress = await self._sleep(wake, min(beat_at, clock() + self._until_abort()))

    async def _sleep(self, wake: asyncio.Event, until: float) -> bool:
        """Sleep until the next heartbeat or write of progress is due. Return True if only progress is to be written."""
        clock = asyncio.get_running_loop().time
        while not self._hurried and clock() < until:
            write_at = self._written_at + PROGRESS_INTERVAL if self._progressed else math.inf
            if clock() >= write_at:
                return True
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(until, write_at)):
                    await wake.wait()
            wake.clear()
        return False

    async def beat(self, store: Store) -> None:
        """Extend all leases in one call, then write the worker's record."""
        await self._extend(store, self._extendable())
        await store.beat(self._info(), max(1, round(self._interval() * TTL_BEATS * 1000)))
        self.beats += 1

    async def write_progress(self, store: Store) -> None:
        """Write the new progress and log lines of all jobs in one call. It also extends the leases of these jobs."""
        changed = [held for held in self._extendable() if held.progress is not None or held.unwritten_log is not None]
        await self._extend(store, changed)

    def _extendable(self) -> list[HeldJob]:
        now = asyncio.get_running_loop().time()
        return [held for held in list(self._held.values()) if now < held.extend_until]  # list() is atomic: no lock

    async def _extend(self, store: Store, jobs: Sequence[HeldJob]) -> None:
        now = asyncio.get_running_loop().time()
        self._progressed, self._written_at = False, now
        if not jobs:
            return
        extensions = [
            Extension(held.lease, round(held.length * 1000), held.progress, held.unwritten_log) for held in jobs
        ]
        receipts = await store.extend(extensions)
        for held, extension, receipt in zip(jobs, extensions, receipts, strict=True):
            self._apply(held, extension, receipt, now)

    def _apply(self, held: HeldJob, extension: Extension, receipt: Receipt, sent: float) -> None:
        if receipt is Receipt.LOST:
            self._end(held, Abort.LOST)
            return
        held.lease_from(sent, held.length)
        held.progress_written(extension.progress)
        if extension.log is not None:
            held.log_written(extension.log)
        if receipt is Receipt.CANCELLING:
            self._end(held, Abort.CANCEL)

    def abort_expiring(self) -> None:
        """Abort runs whose lease could not be extended and is about to expire."""
        now = asyncio.get_running_loop().time()
        for held in self._running():
            if held.abort_at <= now:
                self._end(held, Abort.SILENT)

    def _end(self, held: HeldJob, why: Abort) -> None:
        if not held.ended and not held.completing:  # otherwise its settle is under way, and gets the answer
            held.signal(why)  # here, for a handler in a thread: the worker's loop may be blocked
            if why is not Abort.CANCEL:
                held.give_up()
            self._abort(held, why)

    def _running(self) -> list[HeldJob]:
        jobs = list(self._held.values())
        return [held for held in jobs if not (held.ended or held.given_up or held.completing)]

    def _until_abort(self) -> float:
        """Return the seconds until the next run must be aborted if its lease cannot be extended."""
        now = asyncio.get_running_loop().time()
        return max(0.005, min((held.abort_at - now for held in self._running()), default=60.0))

    def _call_timeout(self) -> float:
        return max(0.05, min(self._until_abort(), self._lease))


class Reaper:
    """Reclaims jobs whose lease has expired, and runs the store's upkeep.

    The reaper runs concurrently with the dispatcher, so that it never delays claims. It reclaims jobs of all queues and
    tasks, even those that this worker does not serve: the retry policy is stored with the job. It does not reclaim jobs
    that this worker holds. A round continues as long as it finds jobs, for about 5 seconds at most.
    """

    def __init__(
        self,
        store: Store,
        worker: str,
        tasks: Mapping[str, Runnable],
        held: HeldJobs,
        settler: Settler,
        reporter: Reporter,
        *,
        interval: float,
        maintain_interval: float,
        defaults: Mapping[str, JobDefaults | None],
        chance: Chance,
    ) -> None:
        self._store = store
        self._worker = worker
        self._tasks = tasks
        self._held = held
        self._settler = settler
        self._reporter = reporter
        self._interval = interval
        self._maintain_interval = maintain_interval
        self._defaults = defaults
        self._chance = chance
        self._last_round = -math.inf
        self._stopping = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def hurry(self) -> None:
        """Start a round now, unless the last round began less than LEAST_PAUSE ago. Called when a slot is idle."""
        if asyncio.get_running_loop().time() - self._last_round >= min(LEAST_PAUSE, self._interval):
            self._wake.set()

    async def stop(self, timeout: float) -> None:
        """Stop the reaper. Wait at most `timeout` seconds for a call that is under way.

        If the call is cancelled, the jobs that it reclaimed wait until their new leases expire.
        """
        if self._task is None:
            return
        self._stopping = True
        self._wake.set()
        await asyncio.wait([self._task], timeout=timeout)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        maintain_at = clock() + self._maintain_interval * self._chance()
        while not self._stopping:
            self._wake.clear()
            timeout = min(spread(self._interval, self._chance), max(0.0, maintain_at - clock()))
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            try:
                if clock() >= maintain_at:
                    maintain_at = clock() + spread(self._maintain_interval, self._chance)
                    await self.maintain()
                await self.reap()
            except Exception as error:  # the store may be unavailable; the next round tries again
                self._reporter.error(error)

    async def reap(self) -> int:
        """Reclaim and settle expired jobs in one round. Return how many jobs were reclaimed."""
        clock = asyncio.get_running_loop().time
        self._last_round = clock()
        count = 0
        while not self._stopping:
            sent = clock()
            request = Reclaim(self._worker, RECLAIM_LIMIT, RECLAIM_LEASE, ignore=frozenset(self._held))
            jobs = await self._store.reclaim(request)
            for job in jobs:
                self._settle(job, sent)
            count += len(jobs)
            if len(jobs) < RECLAIM_LIMIT or clock() - self._last_round > ROUND:
                break
            await self._settler.room()
        return count

    def _settle(self, job: Job, sent: float) -> None:
        if defaults := self._defaults.get(job.task):
            job.spec = defaults.applied_to(job.spec)
        held = HeldJob(job, self._tasks.get(job.task), RECLAIM_LEASE / 1000, sent, math.inf)
        self._held[held.lease.id] = held
        self._settler.submit(held, lost(job))
        self._reporter.reaped(job)

    async def maintain(self) -> None:
        clock = asyncio.get_running_loop().time
        begun = clock()
        more = True
        while more and not self._stopping and clock() - begun < ROUND:
            more = (await self._store.maintain()).more
            await asyncio.sleep(0)  # the memory store never waits; let jobs run in between


def lost(job: Job) -> Lost:
    """Return the outcome with which to settle a job that `reclaim` returned."""
    attempt, worker = job.attempt, job.worker
    if job.lost_worker:
        failure = Failure("WorkerLost", f"attempt {attempt} ended with its worker {worker}, which no longer beats")
    else:
        failure = Failure("LeaseLost", f"attempt {attempt} lost its lease while its worker {worker} was alive")
    return Lost(failure, worker_gone=bool(job.lost_worker))
