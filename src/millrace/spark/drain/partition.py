"""One partition of a drain: an ordinary worker in one of Spark's Python processes.

A worker that finds no job to claim does not end at once. It first waits for jobs that other workers of the drain still
run, because they may come back, and for retries that are due within `patience`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from millrace.app.app import App
from millrace.app.spark_drain import DrainWorker, Ended
from millrace.domain.errors import LifespanFailed, QueueError
from millrace.domain.job import Job
from millrace.domain.request import Query
from millrace.spark.drain.app import load
from millrace.spark.drain.flag import Flag
from millrace.spark.drain.plan import DrainPlan
from millrace.spark.open import absolute_url, url_from
from millrace.store.protocol import Store
from millrace.worker.reporter import Stats
from millrace.worker.worker import Worker

if TYPE_CHECKING:
    import pyarrow

LOOK = 1.0  # seconds between reads of the flag
POLL_MAX = 1.0
OVERDUE = 15_000  # milliseconds to wait after a lease has expired, until a reaper takes the job over
PAGES = 10  # pages of retrying jobs that are read; with more of them, some are due soon enough
PAGE = 200
SHORT = 0.5  # seconds of grace when the driver is gone: Spark kills this process two seconds after a cancel


class RunPartition:
    """The function that Spark calls for each partition. Spark sends this object to executors, so it holds only the
    plan.
    """

    def __init__(self, plan: DrainPlan) -> None:
        self._plan = plan

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import msgspec
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                outcome = run_partition(self._plan, partition, attempt)
                yield pa.RecordBatch.from_pylist([msgspec.to_builtins(outcome)], schema=_schema(pa))


def run_partition(plan: DrainPlan, partition: int, attempt: int = 0) -> DrainWorker:
    """Run one partition and return its result. An error before the first claim is returned in the field `refused`, and
    not raised: after an exception, Spark would repeat the partition, and it would fail again.
    """
    share = plan.share(partition)
    name = Flag(plan.drain).worker(partition, attempt, secrets.token_hex(3))
    if share == 0:
        return _row(partition, attempt, name, Stats(), 0.0, "max_jobs")
    began = time.monotonic()
    try:
        stats, ended = asyncio.run(_Partition(plan, app_for(plan), name, share).run())
    except QueueError as error:  # before the first claim; later the worker handles them itself
        return _row(partition, attempt, name, Stats(), 0.0, "refused", str(error))
    return _row(partition, attempt, name, stats, time.monotonic() - began, ended)


def app_for(plan: DrainPlan) -> App:
    """Return the app, connected to the store of the drain. If the app's own URL leads to the same store, the app keeps
    its URL, because it may contain a password.
    """
    app = load(plan.address, plan.tasks)
    url = url_from(plan.store)
    if absolute_url(app.store.url) != url:
        app.use(url)
    return app


class _Partition:
    def __init__(self, plan: DrainPlan, app: App, name: str, share: int | None) -> None:
        self._plan = plan
        self._app = app
        self._flag = Flag(plan.drain)
        self._name = name
        self._share = share
        self._ended: Ended | None = None

    async def run(self) -> tuple[Stats, Ended]:
        plan = self._plan
        worker = self._app.worker(
            plan.queues,
            tasks=plan.tasks,
            slots=plan.slots,
            name=self._name,
            lease=None if plan.lease is None else plan.lease / 1000,
            poll_max=POLL_MAX,
            shutdown_deadline=plan.grace / 1000,
            processes=plan.processes,
            burst=self._is_all if plan.until == "empty" else False,
            max_jobs=self._share,
            scheduler=False,
        )
        async with self._app, self._watched(worker, await self._app.connected()):
            try:
                await worker.run()
            except LifespanFailed as failed:  # the worker has logged it
                if worker.stats.claimed == 0:
                    raise
                if failed.when == "while the worker was running":
                    self._ended = self._ended or "stopped"  # its queues may not be empty
        if self._ended is None:
            self._ended = "empty" if self._share is None or worker.stats.claimed < self._share else "max_jobs"
        return worker.stats, self._ended

    # ── when to stop ──────────────────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def _watched(self, worker: Worker, store: Store) -> AsyncIterator[None]:
        self._store = store
        stops: list[asyncio.Task[None]] = []

        def hang_up() -> None:
            self._ended = "orphaned"
            stops.append(asyncio.ensure_future(worker.stop(SHORT)))

        loop = asyncio.get_running_loop()
        hears = threading.current_thread() is threading.main_thread()
        if hears:
            loop.add_signal_handler(signal.SIGHUP, hang_up)  # sent by Spark's daemon when its executor ends
        watching = asyncio.create_task(self._watch(worker, store))
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching, *stops])
            if hears:
                loop.remove_signal_handler(signal.SIGHUP)

    async def _watch(self, worker: Worker, store: Store) -> None:
        """Poll the flag, and stop the worker when the flag says so. A later value of the flag can shorten the grace
        period.
        """
        shortest = math.inf
        while True:
            await asyncio.sleep(LOOK)
            try:
                grace = await self._flag.read(store)
            except Exception:  # the store is unreachable for a while; the worker handles that
                continue
            if grace >= shortest:
                continue
            shortest = grace
            self._ended = "orphaned" if grace < 0 else "stopped"
            stopping = asyncio.ensure_future(worker.stop(SHORT if grace < 0 else grace))
            stopping.add_done_callback(lambda done: done.cancelled() or done.exception())

    # ── when to end ───────────────────────────────────────────────────────────────────────────

    async def _is_all(self) -> bool:
        """Return whether nothing is left to do. The worker calls this when it can claim no job and runs none."""
        now = await self._store.now()
        async for job in self._found("running"):
            if self._flag.owns(job.worker) and now < (job.lease_until or 0) + OVERDUE:
                return False
        if self._plan.patience:
            async for job in self._found("retrying"):
                if job.available_at <= now + self._plan.patience:
                    return False
        return True

    async def _found(self, state: str) -> AsyncIterator[Job]:
        """Yield the jobs in this state that belong to the drain's queues and tasks, from a limited number of pages."""
        queues, tasks = set(self._plan.queues), set(self._plan.tasks)
        cursor: str | None = None
        for _ in range(PAGES):
            page = await self._store.find(Query(state=state, limit=PAGE, cursor=cursor))
            for job in page.jobs:
                if job.spec.queue in queues and job.task in tasks:
                    yield job
            cursor = page.cursor
            if cursor is None:
                return


def _row(
    partition: int, attempt: int, worker: str, stats: Stats, seconds: float, ended: Ended, refused: str | None = None
) -> DrainWorker:
    return DrainWorker(
        partition,
        attempt,
        worker,
        socket.gethostname(),
        os.getpid(),
        stats.claimed,
        stats.completed,
        stats.retried,
        stats.buried,
        stats.snoozed,
        stats.released,
        stats.cancelled,
        stats.lost,
        stats.reaped,
        seconds,
        ended,
        refused,
    )


def _schema(pa: Any) -> Any:
    whole = ("claimed", "completed", "retried", "dead", "snoozed", "released", "cancelled", "lost", "reaped")
    return pa.schema(
        [
            pa.field("partition", pa.int32(), False),
            pa.field("attempt", pa.int32(), False),
            pa.field("worker", pa.string(), False),
            pa.field("host", pa.string(), False),
            pa.field("pid", pa.int32(), False),
            *(pa.field(name, pa.int64(), False) for name in whole),
            pa.field("seconds", pa.float64(), False),
            pa.field("ended", pa.string(), False),
            pa.field("refused", pa.string()),
        ]
    )
