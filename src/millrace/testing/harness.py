"""Runs an app on its own memory store for the duration of a test, with a clock that only the test moves.

    with on_memory(app) as mill:
        await sign_up("ada@example.com")
        mill.assert_enqueued(send_email, to="ada@example.com", queue="mail")
        await mill.drain()

`drain` runs a real worker: payloads and results are encoded and decoded, failed jobs are retried, and child jobs and
hooks are enqueued as in production. Only time does not pass by itself.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.app.duration import Duration, milliseconds
from millrace.app.jobs import OneJob, job_ids
from millrace.domain.errors import InvalidInput
from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.testing.clock import VirtualClock
from millrace.testing.drained import Drained, Failures, JobsFailed, check_failures
from millrace.testing.expectation import Expectation, arguments
from millrace.testing.virtual_store import Endless, VirtualStore
from millrace.worker.heartbeat import InlineHeartbeat

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.app.task import Task

T = TypeVar("T")

UPKEEP = 60_000  # milliseconds of virtual time between rounds of upkeep, as in a worker
MOST_UPKEEP = 1_000  # the most rounds in one call
MOST_RUNS = 100_000  # the most runs and instants in one call, in case a job enqueues itself for ever


@contextmanager
def on_memory(app: App, *, at: datetime | int | None = None) -> Iterator[Harness]:
    """Move `app` to an empty memory store until the end of the block. The app's own store is not used meanwhile.

    The clock starts at `at`, by default the current time. Tasks, pools, schedules, middleware, listeners, a lifespan
    and dependency overrides that are set within the block are removed at its end.
    """
    harness = Harness(app, VirtualClock(_instant(at)))
    connection, layers, lifespan = app._connection, list(app.layers), app.lifespan_factory
    registries: list[dict[Any, Any]] = [app.tasks, app.pools, app.plans, app.bus._listeners, app.dependency_overrides]
    before = [dict(registry) for registry in registries]
    handlers = {pool: pool._task for pool in app.pools.values()}
    app.use(harness.store)
    try:
        yield harness
    finally:
        app._connection = connection
        app.layers[:], app.lifespan_factory = layers, lifespan
        for registry, contents in zip(registries, before, strict=True):
            registry.clear()
            registry.update(contents)
        for pool, handler in handlers.items():
            pool._task = handler


def _instant(at: datetime | int | None) -> int:
    if at is None:
        return time.time_ns() // 1_000_000
    if type(at) is int:
        return at
    if not isinstance(at, datetime):
        raise InvalidInput(f"at is a datetime with a time zone, or milliseconds since 1970; not {at!r}")
    if at.tzinfo is None:
        raise InvalidInput(f"{at!r} has no time zone; add one, e.g. tzinfo=timezone.utc")
    return int(at.timestamp() * 1000)


class Harness:
    """Runs and inspects the jobs of an app in a test. Created by `on_memory` or the fixture `millrace_harness`."""

    def __init__(self, app: App, clock: VirtualClock) -> None:
        self.app = app
        self.clock = clock
        self.store = VirtualStore(clock)
        self.sync = SyncHarness(self)
        self._events: list[Event] = []  # events of the current call

    # ── run what is due ───────────────────────────────────────────────────────────────────────

    async def drain(self, *, failures: Failures = "raise", slots: int = 1) -> Drained:
        """Run all jobs that are due now, and the due jobs that they enqueue. The clock does not move.

        At most `slots` jobs run at a time, in the order in which a worker claims them. At the end, raises JobsFailed if
        a run has failed. With failures="dead", only dead jobs count as failed; with failures="keep", nothing is raised.
        """
        return await self._watched(failures, self._work, slots)

    async def advance(self, duration: Duration, *, failures: Failures = "raise", slots: int = 1) -> Drained:
        """Move the clock forward by `duration`. Jobs, schedules and upkeep that become due on the way are run."""
        length = milliseconds("the time to advance", duration)
        return await self._watched(failures, self._travel, slots, length, False)

    async def skip_ahead(self, limit: Duration = "30d", *, failures: Failures = "raise", slots: int = 1) -> Drained:
        """Move the clock to the time when the next job is due, and run the job. Repeat this until no job waits for its
        due time.

        The clock moves by at most `limit`.
        """
        return await self._watched(failures, self._travel, slots, milliseconds("limit", limit), True)

    async def _watched(
        self, failures: Failures, work: Callable[..., Coroutine[Any, Any, None]], *details: object
    ) -> Drained:
        check_failures(failures)
        self.store.news()  # skip events from before this call
        self._events = []
        self.store.runs_left = MOST_RUNS
        try:
            await work(*details)
        finally:
            self.store.runs_left = math.inf
        self._events += self.store.news()
        drained = Drained.from_events(self._events, self.store.counts())
        if blamed := drained.blamed(failures):
            raise JobsFailed(blamed, drained)
        return drained

    async def _work(self, slots: int) -> None:
        """Run a worker until no job is due. If jobs were enqueued into new queues meanwhile, run another worker for all
        queues.
        """
        await self._tick()
        self.store.time_moved()
        served: set[str] = set()
        while served != (queues := self._queues()):
            served = queues
            if not queues:
                return
            worker = self.app.worker(
                sorted(queues),
                slots=slots,
                burst=True,
                lease="1d",  # virtual time does not pass during a run, and real time must not end a lease
                beat_interval=0.05,  # so that a cancellation by a test takes effect soon
                heartbeat=InlineHeartbeat,
                chance=lambda: 0.5,  # the middle of the jitter: backoffs are exactly as configured
            )
            await worker.run(handle_signals=False)
            await self.app.bus.flush()

    async def _tick(self) -> None:
        """Enqueue the jobs of all schedules that are due. The first call after a schedule was registered starts the
        schedule.
        """
        scheduler = self.app.scheduler()
        while await scheduler.look() <= 0:
            pass

    def _queues(self) -> set[str]:
        return {task.options.queue for task in self.app.tasks.values()} | (
            self.store.queue_names() if self.app.tasks else set()
        )

    async def _travel(self, slots: int, length: int, until_idle: bool) -> None:
        end = self.clock() + length
        upkeep = max(UPKEEP, length // MOST_UPKEEP)
        upkeep_at = self.clock() + upkeep
        await self._work(slots)
        for _ in range(MOST_RUNS):
            due, tick = self._next_due(), self._next_tick()
            if (until_idle and due is None) or self.clock() >= end:
                return
            self.clock.set(min(at for at in (end, upkeep_at, due, tick) if at is not None))
            if self.clock() in (upkeep_at, end):
                upkeep_at = self.clock() + upkeep
                self._events += self.store.news()  # before retention removes some of it
                while (await self.store.maintain()).more:
                    pass
            if self.clock() == tick or any(at <= self.clock() for at in self._due()):
                await self._work(slots)
        raise Endless(f"at {MOST_RUNS:,} instants something was due, without an end. Advance in shorter steps")

    def _next_due(self) -> int | None:
        return min((at for at in self._due() if at > self.clock()), default=None)

    def _due(self) -> list[int]:
        return self.store.due(frozenset(self.app.tasks))

    def _next_tick(self) -> int | None:
        ticks = (plan.timetable.next(self.clock()) for plan in self.app.plans.values())
        stored = self.store.next_schedule(self.clock())
        return min((at for at in (*ticks, stored) if at is not None), default=None)

    # ── inspect ─────────────────────────────────────────────────────────────────────────────────

    @property
    def now(self) -> int:
        """The store's time in milliseconds. It changes only when the clock is moved."""
        return self.clock()

    def job(self, job: OneJob) -> Job:
        """Return the current record of a job. Raises JobNotFound."""
        [job_id] = job_ids("job", job)
        return self.store.job(job_id)

    def args(self, job: OneJob) -> dict[str, Any]:
        """Return the arguments of the job's handler, including defaults. Raises JobNotFound."""
        return arguments(self.app, self.job(job))

    def result(self, job: OneJob) -> Any:
        """Return the decoded result of a job, or None if no result is stored. Raises JobNotFound."""
        record = self.job(job)
        task = self.app.tasks.get(record.task)
        if record.result is None:
            return None
        if task is None:
            return self.app.serdes.decode(record.result, record.spec.result_serde)
        return task.load_result(record.result, record.spec.serde)

    def all_enqueued(
        self, task: Task[..., Any] | str | None = None, /, *, args: Mapping[str, Any] | None = None, **wanted: Any
    ) -> list[Job]:
        """Return the matching jobs of `task`, in any state, in the order of enqueueing. If `task` is None, jobs of any
        task match.

        Keywords are expected arguments of the task, or expected options: id, queue, priority, delay, group, key,
        headers, tags, after, state. If an argument has the same name as an option, pass it in `args`.
        """
        meant, _ = Expectation(self.app, task, args, wanted).sort(list(self.store.jobs()), self.now)
        return meant

    def assert_enqueued(
        self,
        task: Task[..., Any] | str | None = None,
        /,
        *,
        args: Mapping[str, Any] | None = None,
        count: int | None = None,
        **wanted: Any,
    ) -> Job:
        """Assert that a matching job exists, and return the first one. See `all_enqueued` for how jobs match.

        With `count`, assert that exactly this many jobs match.
        """
        if count is not None and count < 1:
            raise InvalidInput(f"count must be at least 1, not {count!r}; use refute_enqueued for none")
        expectation = Expectation(self.app, task, args, wanted)
        jobs = list(self.store.jobs())
        meant, others = expectation.sort(jobs, self.now)
        if not meant:
            raise AssertionError(expectation.missing(others, jobs, self.now))
        if count is not None and len(meant) != count:
            raise AssertionError(expectation.unwanted(meant, count, self.now))
        return meant[0]

    def refute_enqueued(
        self, task: Task[..., Any] | str | None = None, /, *, args: Mapping[str, Any] | None = None, **wanted: Any
    ) -> None:
        """Assert that no matching job exists. See `all_enqueued` for how jobs match."""
        expectation = Expectation(self.app, task, args, wanted)
        meant, _ = expectation.sort(list(self.store.jobs()), self.now)
        if meant:
            raise AssertionError(expectation.unwanted(meant, 0, self.now))

    def __repr__(self) -> str:
        return f"<Harness of {self.app!r} at {self.now}>"


class SyncHarness:
    """The methods `drain`, `advance` and `skip_ahead` for tests without an event loop: `mill.sync.drain()`."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def drain(self, *, failures: Failures = "raise", slots: int = 1) -> Drained:
        return run_to_end(self._harness.drain(failures=failures, slots=slots), "mill.drain(…)")

    def advance(self, duration: Duration, *, failures: Failures = "raise", slots: int = 1) -> Drained:
        return run_to_end(self._harness.advance(duration, failures=failures, slots=slots), "mill.advance(…)")

    def skip_ahead(self, limit: Duration = "30d", *, failures: Failures = "raise", slots: int = 1) -> Drained:
        return run_to_end(self._harness.skip_ahead(limit, failures=failures, slots=slots), "mill.skip_ahead(…)")


def run_to_end(work: Coroutine[Any, Any, T], instead: str) -> T:
    """Run a coroutine to its end and return its result.

    Raises InvalidInput if an event loop is running. The message advises to await the call in `instead`.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise InvalidInput(f"an event loop is running, so it must be awaited: use `await {instead}`")
