"""Pools as the store knows them: a pool is a queue with lanes, so it is seen without the app's code."""

from __future__ import annotations

from typing import Any

from millrace.domain.settings import QueueSettings
from millrace.runtime.app import App
from millrace.runtime.pool_status import PoolStatus, pool_status


async def all_pools(app: App) -> list[tuple[PoolStatus, QueueSettings]]:
    found: list[tuple[PoolStatus, QueueSettings]] = []
    for counts in await app.jobs.count():
        queue = app.queue(counts.queue)
        settings = await queue.settings()
        if settings.lanes is not None:
            found.append((pool_status(counts.queue, settings.paused, await queue.lanes()), settings))
    return found


def pool_plain(status: PoolStatus, settings: QueueSettings) -> dict[str, Any]:
    return {
        "pool": status.pool,
        "state": status.state,
        "paused": status.paused,
        "max_depth": settings.max_depth,
        "waiting": status.waiting,
        "running": status.running,
        "processed": status.processed,
        "dead": status.dead,
        "lanes": [
            {name: getattr(lane, name) for name in lane.__struct_fields__ if name != "pool"} for lane in status.lanes
        ],
    }
