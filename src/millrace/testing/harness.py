"""An app on a store of its own, for the length of a test: in memory, on a clock that only the test moves.

    with on_memory(app) as mill:
        await sign_up("ada@example.com")
        mill.assert_enqueued(send_email, to="ada@example.com", queue="mail")
        await mill.drain()

`drain` runs a real worker, so payloads and results are encoded and decoded, errors are retried, children and hooks
are carried, as they are in production; only time does not pass by itself.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.domain.errors import InvalidInput
from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.runtime.duration import Duration, milliseconds
from millrace.runtime.heartbeat import InlineHeartbeat
from millrace.runtime.options import OneJob, job_ids
from millrace.testing.clock import VirtualClock
from millrace.testing.drained import Drained, Failures, JobsFailed, check_failures
from millrace.testing.expectation import Expectation, arguments
from millrace.testing.virtual_store import Endless, VirtualStore

if TYPE_CHECKING:
    from millrace.runtime.app import App
    from millrace.runtime.task import Task

T = TypeVar("T")

UPKEEP = 60_000  # what a worker does every minute, a virtual minute does here
MOST_UPKEEP = 1_000  # rounds in one call, however far it goes
MOST_RUNS = 100_000  # in one call, and as many instants: a job that enqueues itself again would go on for ever


@contextmanager
def on_memory(app: App, *, at: datetime | int | None = None) -> Iterator[Harness]:
    """Put `app` on an empty memory store until the end of the block; nothing reaches its own store meanwhile.

    `at` is the instant at which the clock stands, by default that of the call. Tasks, pools, schedules, middleware
    and listeners that are registered within the block are gone after it.
    """
    harness = Harness(app, VirtualClock(_instant(at)))
    connection, layers = app._connection, list(app.layers)
    registries: list[dict[Any, Any]] = [app.tasks, app.pools, app.plans, app.bus._listeners]
    before = [dict(registry) for registry in registries]
    handlers = {pool: pool._task for pool in app.pools.values()}
    app.use(harness.store)
    try:
        yield harness
    finally:
        app._connection = connection
        app.layers[:] = layers
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
    """What a test does with an app's jobs. Made by `on_memory`, or by the pytest fixture `millrace`."""

    def __init__(self, app: App, clock: VirtualClock) -> None:
        self.app = app
        self.clock = clock
        self.store = VirtualStore(clock)
        self.sync = SyncHarness(self)
        self._events: list[Event] = []  # of the call under way

    # ── run what is due ───────────────────────────────────────────────────────────────────────

    async def drain(self, *, failures: Failures = "raise", slots: int = 1) -> Drained:
        """Run every job that is due now, and what those enqueue, until none is left; time stands still.

        One after the other, in the order a worker would take them; `slots` lets several run at a time. Raises
        JobsFailed once all is done: for any failed run, or with failures="dead" only for jobs that died, or with
        "keep" not at all.
        """
        return await self._watched(failures, self._work, slots)

    async def advance(self, duration: Duration, *, failures: Failures = "raise", slots: int = 1) -> Drained:
        """Move the clock on, stopping wherever a job becomes due to run it then; upkeep happens on the way."""
        length = milliseconds("the time to advance", duration)
        return await self._watched(failures, self._travel, slots, length, False)

    async def skip_ahead(self, limit: Duration = "30d", *, failures: Failures = "raise", slots: int = 1) -> Drained:
        """Move the clock from one due job to the next until none waits for its time, within `limit`."""
        return await self._watched(failures, self._travel, slots, milliseconds("limit", limit), True)

    async def _watched(
        self, failures: Failures, work: Callable[..., Coroutine[Any, Any, None]], *details: object
    ) -> Drained:
        check_failures(failures)
        self.store.news()  # what was done without us
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
        """A worker's burst, again while it brings jobs to queues that nobody had looked at."""
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
                lease="1d",  # on a clock that stands still no lease runs out; no real second is to end one either
                beat_interval=0.05,  # a cancel that a test asks for is soon heard
                heartbeat=InlineHeartbeat,
                chance=lambda: 0.5,  # the middle of the jitter: backoffs are what the policy says
            )
            await worker.run(handle_signals=False)
            await self.app.bus.flush()

    async def _tick(self) -> None:
        """Put in what schedules have due; a schedule begins when it is first looked at."""
        if self.app.plans:
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
                self._events += self.store.news()  # before retention takes some of it away
                while (await self.store.maintain()).more:
                    pass
            if self.clock() == tick or any(at <= self.clock() for at in self._due()):
                await self._work(slots)
        raise Endless(
            f"at {MOST_RUNS:,} instants something was due, and there is no end to it. Advance in shorter steps"
        )

    def _next_due(self) -> int | None:
        return min((at for at in self._due() if at > self.clock()), default=None)

    def _due(self) -> list[int]:
        return self.store.due(frozenset(self.app.tasks))

    def _next_tick(self) -> int | None:
        ticks = (plan.timetable.next(self.clock()) for plan in self.app.plans.values())
        return min((at for at in ticks if at is not None), default=None)

    # ── look ──────────────────────────────────────────────────────────────────────────────────

    @property
    def now(self) -> int:
        """The store's time in milliseconds; `advance` moves it."""
        return self.clock()

    def job(self, job: OneJob) -> Job:
        """The record of one job as it is now. Raises JobNotFound."""
        [job_id] = job_ids("job", job)
        return self.store.job(job_id)

    def args(self, job: OneJob) -> dict[str, Any]:
        """What the job's handler is called with."""
        return arguments(self.app, self.job(job))

    def result(self, job: OneJob) -> Any:
        """What a completed job returned, decoded as its task says; None for any other."""
        record = self.job(job)
        task = self.app.tasks.get(record.task)
        if record.result is None:
            return None
        if task is None:
            return self.app.serdes.get(record.spec.serde).decode(record.result)
        return task.load_result(record.result, record.spec.serde)

    def all_enqueued(
        self, task: Task[..., Any] | str | None = None, /, *, args: Mapping[str, Any] | None = None, **wanted: Any
    ) -> list[Job]:
        """Jobs of the task (of any, if none is named) that fit, in whatever state, oldest first.

        What is wanted may be arguments of the task, by name, and options: id, queue, priority, delay, group, key,
        headers, after, state. `args` holds arguments whose names are also those of options.
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
        """There is such a job (`count`: exactly so many); answers the first. What can be wanted: see all_enqueued."""
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
        """There is no such job. Say as little as possible: what is said narrows what is ruled out."""
        expectation = Expectation(self.app, task, args, wanted)
        meant, _ = expectation.sort(list(self.store.jobs()), self.now)
        if meant:
            raise AssertionError(expectation.unwanted(meant, 0, self.now))

    def __repr__(self) -> str:
        return f"<Harness of {self.app!r} at {self.now}>"


class SyncHarness:
    """The same for tests without an event loop: `mill.sync.drain()`."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def drain(self, *, failures: Failures = "raise", slots: int = 1) -> Drained:
        return run_to_end(self._harness.drain(failures=failures, slots=slots), "mill.drain(…)")

    def advance(self, duration: Duration, *, failures: Failures = "raise", slots: int = 1) -> Drained:
        return run_to_end(self._harness.advance(duration, failures=failures, slots=slots), "mill.advance(…)")

    def skip_ahead(self, limit: Duration = "30d", *, failures: Failures = "raise", slots: int = 1) -> Drained:
        return run_to_end(self._harness.skip_ahead(limit, failures=failures, slots=slots), "mill.skip_ahead(…)")


def run_to_end(work: Coroutine[Any, Any, T], instead: str) -> T:
    """Run a coroutine where no event loop runs; where one does, say what to await instead."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise InvalidInput(f"an event loop runs here, so it must be awaited: say `await {instead}`")
