"""Claims ahead of free slots: how many jobs a worker may hold whose handlers cannot start yet.

With few slots and short handlers, most of the time would be spent on claims. Therefore a worker that has a backlog
claims more jobs than it has free slots, and the others wait in the executor. For the store they are running, so they
must start soon: the worker claims as many as should start within `HORIZON`, judged by how long the recent runs held
their slots. If a job waits for `LONGEST_WAIT` nevertheless, all waiting jobs are given back, and the worker does not
claim ahead until it has claimed `ENOUGH` more jobs.

A job does not wait if this could delay other jobs, exceed the purpose of a limit, or cost the job its last attempt:
see `may_wait` and `_has_no_limit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from millrace.domain.job import Job
from millrace.domain.rules.fast_path import claims_by_order
from millrace.domain.settings import Limits, QueueSettings
from millrace.store.protocol import Store, Target
from millrace.worker.executor import Executor
from millrace.worker.run import Run

MOST = 400  # jobs that may wait for a slot
HORIZON = 0.1  # seconds within which a job that is claimed ahead should start
LONGEST_WAIT = 0.25  # seconds after which waiting jobs are given back
LATE = 0.05  # seconds by which the event loop must be late for waiting jobs to get more time
SHARE_OF_LEASE = 0.1  # if this share of a lease is shorter, it takes the place of both times above
ENOUGH = 50  # jobs in a row that could have waited, before the worker claims ahead; the first jobs do not count
SETTINGS_INTERVAL = 5.0  # seconds between two reads of the settings of queues and tasks


class Ahead:
    """Decides how many jobs to claim beyond the free slots, and gives back jobs that wait for too long."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        *,
        lease: float,
        on_given_back: Callable[[int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._store = store
        self._executor = executor
        self._horizon = min(HORIZON, lease * SHARE_OF_LEASE)
        self._on_given_back = on_given_back
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._suitable = 0  # jobs claimed in a row that could have waited
        self._claim_time = 0.0  # seconds per job of the last claim
        self._seen: set[tuple[Target, str]] = set()  # the queues and tasks of jobs claimed since the last read
        self._known: set[tuple[Target, str]] = set()  # those whose settings were read
        self._unlimited = False  # none of the known ones has limits
        self._read_at = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._postponed_until = 0.0

    def room(self) -> int:
        """Return how many jobs may wait for a slot now, including those that wait already."""
        executor = self._executor
        if self._suitable < ENOUGH or executor.batchers or not self._without_limits():
            return 0
        horizon, now = self._horizon, self._loop.time()
        if executor.slot_time > horizon:
            return 0
        slots = executor.slots - sum(run.slot_at < now - horizon for run in list(executor.running.values()))
        if slots <= 0:
            return 0
        seconds_per_job = max(executor.slot_time / slots, self._claim_time, 1e-6)
        return min(MOST, int(horizon / seconds_per_job))

    def claimed(self, jobs: Sequence[Job], seconds: float) -> None:
        """Learn from a claim that returned as many jobs as it could, after its jobs were started."""
        self._claim_time = seconds / len(jobs)
        for job in jobs:
            self._suitable = self._suitable + 1 if may_wait(job) else 0
        self._seen.update(("queue", job.spec.queue) for job in jobs)
        self._seen.update(("task", job.spec.task) for job in jobs)

    def check_wait(self) -> None:
        """Give all waiting jobs back if one of them has waited for too long. Otherwise set a timer for that time.

        If the event loop itself was late, the jobs get more time once.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        runs = list(self._executor.waiting)
        if not runs:
            return
        now = self._loop.time()
        due = min(run.started + _longest_wait(run) for run in runs)
        if due + LATE < now and self._postponed_until < due:
            # The loop itself was late, so no slot could become free. Once, these jobs get more time.
            self._postponed_until = now + LONGEST_WAIT / 2
        due = max(due, self._postponed_until)
        if due <= now:
            self.give_back()
        else:
            self._timer = self._loop.call_at(due, self.check_wait)

    def give_back(self) -> None:
        """Release all waiting jobs, and do not claim ahead for a while."""
        self._suitable = 0
        if count := self._executor.give_back():
            self._on_given_back(count)

    # ── limits ────────────────────────────────────────────────────────────────────────────────

    def _without_limits(self) -> bool:
        """Return whether no queue and no task of the claimed jobs has limits.

        The settings are read in the background: every few seconds, and when a queue or a task is new.
        """
        known = self._seen <= self._known
        if self._reading is None and (self._loop.time() >= self._read_at or not known):
            self._reading = self._loop.create_task(self._read_settings())
        return known and self._unlimited

    async def _read_settings(self) -> None:
        names, self._seen = self._seen, set()
        unlimited = False
        try:
            settings = [await self._store.control(target, name, {}) for target, name in sorted(names)]
            unlimited = all(map(_has_no_limit, settings))
        except Exception as error:  # the store may be unavailable
            self._failed(error)
        finally:
            self._reading = None
        self._known, self._unlimited = names, unlimited
        self._read_at = self._loop.time() + SETTINGS_INTERVAL

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])


def may_wait(job: Job) -> bool:
    """Return whether a claimed job may wait for a slot.

    A job of a group or lane may not: the next job of its line would wait too. A job that would be dead if this worker
    died may not: its handler would never have started. A job that lost a lease before may not, because it may be the
    cause; the dispatcher also gives back the other waiting jobs before it runs.
    """
    spec = job.spec
    if job.lane is not None or spec.group is not None or job.stalls:
        return False
    return (spec.max_attempts is None or job.failures + 1 < spec.max_attempts) and spec.max_stalls != 1


def _has_no_limit(settings: object) -> bool:
    if isinstance(settings, QueueSettings):
        return claims_by_order(settings) and settings.lanes is None
    return isinstance(settings, Limits) and settings.max_running is None and settings.rate is None


def _longest_wait(run: Run) -> float:
    return min(LONGEST_WAIT, run.length * SHARE_OF_LEASE)
