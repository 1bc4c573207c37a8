"""Workers and schedules as JSON for the command line and the web API. The structs are also the OpenAPI schema."""

from __future__ import annotations

from typing import Literal

import msgspec

from millrace.app.app import App
from millrace.app.format import instant
from millrace.domain.request import WorkerRecord
from millrace.domain.schedule import Schedule
from millrace.views.job_view import Instant, Seconds, when

MOST_RUNNING = 100_000


class WorkerView(msgspec.Struct):
    id: str
    alive: bool
    host: str
    pid: int
    version: str
    queues: list[str]
    tasks: list[str]
    slots: int
    shards: list[str]
    running: list[str]
    completed: int
    failed: int
    started_at: Instant
    last_beat: Instant
    ttl: Seconds


class ScheduleView(msgspec.Struct):
    name: str
    expression: str
    tz: str
    task: str
    queue: str
    missed: str
    grace: Seconds
    digest: str
    mark: Instant
    rev: int
    last_tick: Instant | None
    next_tick: Instant | None
    paused: bool
    source: Literal["code", "store"]


def worker_view(record: WorkerRecord, running: list[str]) -> WorkerView:
    """Return a worker as JSON. `running` are the ids of the jobs that it has claimed and not settled.

    They come from the jobs in the store, which are more recent than the list in the worker's record. There may be more
    of them than slots: a worker claims short jobs a moment before a slot is free (`worker/ahead.py`).
    """
    info = record.info
    return WorkerView(
        id=info.id,
        alive=record.alive,
        host=info.host,
        pid=info.pid,
        version=info.version,
        queues=list(info.queues),
        tasks=list(info.tasks),
        slots=info.slots,
        shards=list(info.shards),
        running=running,
        completed=info.completed,
        failed=info.failed,
        started_at=instant(record.started_at),
        last_beat=instant(record.last_beat),
        ttl=record.ttl / 1000,
    )


async def running_by_worker(app: App) -> dict[str, list[str]]:
    """Return the ids of the running jobs of each worker, by worker id."""
    held: dict[str, list[str]] = {}
    async for job in app.jobs.find(state="running", limit=MOST_RUNNING):
        held.setdefault(job.worker or "", []).append(job.id)
    return held


def schedule_view(schedule: Schedule) -> ScheduleView:
    values = msgspec.structs.asdict(schedule)
    del values["template"]
    values |= {name: when(values[name]) for name in ("mark", "last_tick", "next_tick")}
    return ScheduleView(**{**values, "grace": schedule.grace / 1000, "source": schedule.source})
