"""Queues, lanes and pools as JSON for the command line and the web API. The structs are also the OpenAPI schema.

A pool is a queue whose settings have lanes, so pools can be listed without the app's code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millrace.app.app import App
from millrace.app.pools.status import Activity, LaneState, PoolStatus, pool_status
from millrace.domain.request import LaneStatus, QueueCounts
from millrace.domain.settings import QueueSettings
from millrace.views.job_view import Digits, Seconds, digits, seconds

DURATIONS = ("keep_completed", "keep_dead", "auto_retry_delay")  # settings in milliseconds


class CountsView(msgspec.Struct):
    """The number of jobs of a queue by state, with the queue's totals."""

    queue: str
    waiting: int
    running: int
    completed: int
    dead: int
    cancelled: int
    blocked: int
    scheduled: int
    retrying: int
    ready: int
    archived: int
    oldest_ready: Seconds | None
    paused: bool
    processed: int
    died: int


class SettingsView(msgspec.Struct):
    max_running: int | None
    rate: float | None
    burst: int | None
    paused: bool
    paused_lanes: list[int]
    lanes: int | None
    max_depth: int | None
    fair_share: float
    on_empty: str | None
    keep_completed: Seconds | None
    keep_dead: Seconds | None
    dead_cap: int | None
    dead_overflow: str
    auto_retries: int
    auto_retry_delay: Seconds


class LaneView(msgspec.Struct):
    lane: int
    waiting: int
    running: int
    holder: Digits | None
    processed: int
    died: int
    paused: bool


class QueueView(CountsView):
    settings: SettingsView
    lanes: list[LaneView]


class PoolLaneView(msgspec.Struct):
    lane: int
    state: Activity
    waiting: int
    running: int
    processed: int
    dead: int
    current: Digits | None
    retrying: Digits | None


class PoolView(msgspec.Struct):
    pool: str
    state: Activity
    paused: bool
    max_depth: int | None
    waiting: int
    running: int
    processed: int
    dead: int
    lanes: list[PoolLaneView]


def counts_view(counts: QueueCounts) -> CountsView:
    return CountsView(**_counts(counts))


def queue_view(counts: QueueCounts, settings: QueueSettings, lanes: Sequence[LaneStatus]) -> QueueView:
    """Return a queue with its counts and settings. `lanes` are included only if the queue is a pool."""
    shown = [_lane_view(lane) for lane in lanes] if settings.lanes is not None else []
    return QueueView(**_counts(counts), settings=settings_view(settings), lanes=shown)


def settings_view(settings: QueueSettings) -> SettingsView:
    values = msgspec.structs.asdict(settings)
    values |= {name: seconds(values[name]) for name in DURATIONS}
    return SettingsView(**values)


def _counts(counts: QueueCounts) -> dict[str, Any]:
    return {**msgspec.structs.asdict(counts), "oldest_ready": seconds(counts.oldest_ready)}


def _lane_view(lane: LaneStatus) -> LaneView:
    return LaneView(**{**msgspec.structs.asdict(lane), "holder": digits(lane.holder)})


# ── pools ─────────────────────────────────────────────────────────────────────────────────────


async def all_pools(app: App) -> list[tuple[PoolStatus, QueueSettings]]:
    found: list[tuple[PoolStatus, QueueSettings]] = []
    for counts in await app.jobs.count():
        queue = app.queue(counts.queue)
        settings = await queue.settings()
        if settings.lanes is not None:
            found.append((pool_status(counts.queue, settings.paused, await queue.lanes()), settings))
    return found


def pool_view(status: PoolStatus, settings: QueueSettings) -> PoolView:
    return PoolView(
        pool=status.pool,
        state=status.state,
        paused=status.paused,
        max_depth=settings.max_depth,
        waiting=status.waiting,
        running=status.running,
        processed=status.processed,
        dead=status.dead,
        lanes=[_pool_lane_view(lane) for lane in status.lanes],
    )


def _pool_lane_view(lane: LaneState) -> PoolLaneView:
    return PoolLaneView(
        lane=lane.lane,
        state=lane.state,
        waiting=lane.waiting,
        running=lane.running,
        processed=lane.processed,
        dead=lane.dead,
        current=digits(lane.current),
        retrying=digits(lane.retrying),
    )
