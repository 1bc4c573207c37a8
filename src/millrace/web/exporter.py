"""Metrics for Prometheus. The exporter reads the store, so it covers all workers without a connection to them.

Gauges are the counts of the store at the time of the scrape. Counters and histograms by task are computed from the
feed: each scrape reads the events since the previous one. Counters start at 0 when the exporter starts, but two
exporters of the same store report the same rates.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from millrace.app.app import App
from millrace.domain.errors import CursorExpired, CursorUnknown
from millrace.domain.event import Event, Kind
from millrace.domain.request import QueueCounts, WorkerRecord
from millrace.store.protocol import Store

logger = logging.getLogger("millrace.web")
STATES = ("ready", "scheduled", "retrying", "blocked", "running", "completed", "dead", "cancelled")
PAGE = 2_000
BUDGET = 1.0  # seconds that a scrape spends on events; the next scrape reads the rest
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
CONTENT = "text/plain; version=0.0.4; charset=utf-8"


class _Snapshot:
    """A collector that returns metrics which were read beforehand. prometheus_client collects synchronously, so it
    cannot read the store itself.
    """

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class Exporter:
    def __init__(self, app: App) -> None:
        self._app = app
        self._registry = CollectorRegistry()
        by_task = ("queue", "task")
        self._events = Counter("millrace_events", "Steps of jobs", ("queue", "task", "kind"), registry=self._registry)
        self._ran = Histogram(
            "millrace_attempt_seconds", "How long attempts ran", by_task, buckets=SECONDS, registry=self._registry
        )
        self._lost = Counter("millrace_events_lost", "Events that were trimmed unread", registry=self._registry)
        self._cursor: str | None = None
        self._turn = asyncio.Lock()

    async def text(self) -> bytes:
        began = time.monotonic()
        async with self._turn:
            store = await self._app.connected()
            counts, workers = await store.count(), await store.workers()
            behind = await self._follow(store)
            registry = CollectorRegistry()
            took = time.monotonic() - began
            registry.register(_Snapshot([*_queues(counts), *_workers(workers), *_scrape(took, behind)]))
            return generate_latest(registry) + generate_latest(self._registry)

    async def _follow(self, store: Store) -> bool:
        """Count the events since the last scrape, for a limited time. The first scrape counts nothing and only sets the
        start. Return whether events may remain for the next scrape.
        """
        if self._cursor is None:
            self._cursor = (await store.events("end", 1)).cursor
            return False
        until = time.monotonic() + BUDGET
        while True:
            try:
                page = await store.events(self._cursor, PAGE)
            except CursorExpired as gone:
                self._cursor = gone.oldest
                self._lost.inc(gone.lost)
                continue
            except CursorUnknown as rewound:
                logger.warning("metrics go on from now: %s", rewound)
                self._cursor = (await store.events("end", 1)).cursor
                return False
            self._count(page.events)
            self._cursor = page.cursor
            if not page.events or time.monotonic() > until:
                return bool(page.events)

    def _count(self, events: Sequence[Event]) -> None:
        for event in events:
            self._events.labels(event.queue, event.task, event.kind.value).inc()
            if event.duration is not None and event.kind is not Kind.CLAIMED:
                self._ran.labels(event.queue, event.task).observe(event.duration / 1000)


def _queues(counts: Sequence[QueueCounts]) -> list[Metric]:
    jobs = GaugeMetricFamily("millrace_jobs", "Jobs by state", labels=["queue", "state"])
    oldest = GaugeMetricFamily(
        "millrace_oldest_ready_seconds", "For how long the oldest due job has waited", labels=["queue"]
    )
    paused = GaugeMetricFamily("millrace_queue_paused", "1 when nothing is claimed from it", labels=["queue"])
    done = CounterMetricFamily("millrace_processed", "Jobs ever completed", labels=["queue"])
    died = CounterMetricFamily("millrace_died", "Jobs ever dead", labels=["queue"])
    for one in counts:
        for state in STATES:
            jobs.add_metric([one.queue, state], getattr(one, state))
        oldest.add_metric([one.queue], (one.oldest_ready or 0) / 1000)
        paused.add_metric([one.queue], float(one.paused))
        done.add_metric([one.queue], one.processed)
        died.add_metric([one.queue], one.died)
    return [jobs, oldest, paused, done, died]


def _workers(records: Sequence[WorkerRecord]) -> list[Metric]:
    count = GaugeMetricFamily("millrace_workers", "Workers, alive or gone silent", labels=["state"])
    alive = [record.info for record in records if record.alive]
    count.add_metric(["alive"], len(alive))
    count.add_metric(["stale"], len(records) - len(alive))
    slots = GaugeMetricFamily("millrace_worker_slots", "Slots of live workers", value=sum(one.slots for one in alive))
    busy = GaugeMetricFamily(
        "millrace_worker_slots_busy", "Slots in which a job runs", value=sum(len(one.running) for one in alive)
    )
    given_up = GaugeMetricFamily(
        "millrace_worker_zombies", "Handlers that were given up and still run", value=sum(one.zombies for one in alive)
    )
    return [count, slots, busy, given_up]


def _scrape(took: float, behind: bool) -> list[Metric]:
    return [
        GaugeMetricFamily("millrace_scrape_seconds", "How long reading the store took", value=took),
        GaugeMetricFamily("millrace_scrape_behind", "1 when events are left for the next scrape", value=float(behind)),
    ]
