"""Queues and pools over HTTP: how full they are, what bounds them, and stopping and emptying them."""

from __future__ import annotations

from typing import Any

from millrace.domain.check import check_name
from millrace.domain.errors import InvalidInput
from millrace.domain.request import QueueCounts
from millrace.runtime.app import App
from millrace.runtime.pools_seen import all_pools, pool_plain
from millrace.runtime.shape import Plain, counts_plain, queue_plain, when
from millrace.web import given, taken
from millrace.web.problem import Problem
from millrace.web.route import Answer, Asked, Link, Route


async def list_queues(asked: Asked) -> Answer:
    store = await asked.house.store()
    counts = await asked.house.app.jobs.count()
    return Answer({"now": when(await store.now()), "queues": [counts_plain(one) for one in counts]})


async def get_queue(asked: Asked) -> Answer:
    return Answer(await _whole(asked.house.app, await _known(asked)))


async def _whole(app: App, counts: QueueCounts) -> Plain:
    queue = app.queue(counts.queue)
    settings = await queue.settings()
    lanes = await queue.lanes() if settings.lanes is not None else []
    return {"lanes": [], **queue_plain(counts, settings, lanes)}


async def _known(asked: Asked) -> QueueCounts:
    name = asked.path["name"]
    check_name("queue", name)
    for counts in await asked.house.app.jobs.count():
        if counts.queue == name:
            return counts
    raise Problem(404, "not_found", f"queue {name} was never used")


async def change_queue(asked: Asked) -> Answer:
    queue = asked.house.app.queue(asked.path["name"])
    changes: dict[str, Any] = taken.given(asked.body)
    asked.facts |= {"queue": queue.name, "changes": changes}
    await queue.set(**changes)
    return Answer(await _whole(asked.house.app, await queue.counts()))


def _switch(paused: bool) -> Any:
    async def switch(asked: Asked) -> Answer:
        queue = asked.house.app.queue(asked.path["name"])
        lane = None if asked.body is None else asked.body.lane
        asked.facts |= {"queue": queue.name, "lane": lane}
        settings = await (queue.pause(lane) if paused else queue.resume(lane))
        return Answer(
            {
                "queue": queue.name,
                "lane": lane,
                "paused": settings.paused,
                "paused_lanes": list(settings.paused_lanes),
            }
        )

    return switch


async def drain(asked: Asked) -> Answer:
    counts = await _known(asked)
    body: taken.Drain = asked.body
    queue = asked.house.app.queue(counts.queue)
    waiting = counts.waiting
    if body.lane is not None:
        lanes = {lane.lane: lane for lane in await queue.lanes()}
        if body.lane not in lanes:
            raise InvalidInput(f"queue {queue.name} has no lane {body.lane}")
        waiting = lanes[body.lane].waiting
    done = 0 if body.dry_run else await queue.drain(lane=body.lane)
    asked.facts |= {"queue": queue.name, "lane": body.lane, "dry_run": body.dry_run, "cancelled": done}
    return Answer({"queue": queue.name, "dry_run": body.dry_run, "waiting": waiting, "cancelled": done})


async def obliterate(asked: Asked) -> Answer:
    counts = await _known(asked)
    body: taken.Obliterate = asked.body
    jobs = counts.waiting + counts.running + counts.completed + counts.dead + counts.cancelled
    if not body.dry_run and body.confirm != counts.queue:
        raise InvalidInput("there is no way back, so `confirm` must repeat the queue's name. Nothing was changed.")
    queue = asked.house.app.queue(counts.queue)
    removed = 0 if body.dry_run else await queue.obliterate(force=True)
    asked.facts |= {"queue": counts.queue, "dry_run": body.dry_run, "removed": removed}
    return Answer({"queue": counts.queue, "dry_run": body.dry_run, "jobs": jobs, "removed": removed})


async def list_pools(asked: Asked) -> Answer:
    return Answer({"pools": [pool_plain(*pool) for pool in await all_pools(asked.house.app)]})


async def get_pool(asked: Asked) -> Answer:
    check_name("pool", asked.path["name"])
    for pool in await all_pools(asked.house.app):
        if pool[0].pool == asked.path["name"]:
            return Answer(pool_plain(*pool))
    raise Problem(404, "not_found", f"there is no pool {asked.path['name']}")


_LINKS = (Link("queue", "getQueue", {"name": "$response.body#/queue"}),)

ROUTES = (
    Route(
        "listQueues",
        "GET",
        "/api/queues",
        "viewer",
        "Every queue: jobs by state, and the age of the oldest that is due",
        list_queues,
        cli="queues",
        answers={200: given.Queues},
        links=(Link("first", "getQueue", {"name": "$response.body#/queues/0/queue"}),),
    ),
    Route(
        "getQueue",
        "GET",
        "/api/queues/{name}",
        "viewer",
        "One queue, with its settings and lanes",
        get_queue,
        cli="queues NAME",
        answers={200: given.Queue},
        refusals=(404,),
        links=(
            Link("pause", "pauseQueue", {"name": "$response.body#/queue"}),
            Link("drain", "drainQueue", {"name": "$response.body#/queue"}),
        ),
    ),
    Route(
        "changeQueue",
        "PATCH",
        "/api/queues/{name}",
        "admin",
        "Change limits and other settings of a queue, for all workers",
        change_queue,
        cli="queues NAME --set",
        body=taken.Change,
        answers={200: given.Queue},
        refusals=(409,),
    ),
    Route(
        "pauseQueue",
        "POST",
        "/api/queues/{name}/pause",
        "operator",
        "Stop claims from a queue, or from one lane of a pool; what runs goes on",
        _switch(True),
        cli="pause NAME --lane",
        body=taken.OfLane,
        body_optional=True,
        answers={200: given.Paused},
        links=_LINKS,
    ),
    Route(
        "resumeQueue",
        "POST",
        "/api/queues/{name}/resume",
        "operator",
        "Let claims go on; due times were kept",
        _switch(False),
        cli="resume NAME --lane",
        body=taken.OfLane,
        body_optional=True,
        answers={200: given.Paused},
        links=_LINKS,
    ),
    Route(
        "drainQueue",
        "POST",
        "/api/queues/{name}/drain",
        "operator",
        "Cancel every job that waits; what runs goes on",
        drain,
        long=True,
        cli="drain NAME --dry-run --yes",
        body=taken.Drain,
        answers={200: given.Drained},
        refusals=(404,),
    ),
    Route(
        "obliterateQueue",
        "POST",
        "/api/queues/{name}/obliterate",
        "admin",
        "Remove every job of a queue for good, whatever its state",
        obliterate,
        long=True,
        cli="obliterate NAME --dry-run --force",
        body=taken.Obliterate,
        answers={200: given.Obliterated},
        refusals=(404,),
    ),
    Route(
        "listPools",
        "GET",
        "/api/pools",
        "viewer",
        "Every pool and its lanes",
        list_pools,
        cli="pools",
        answers={200: given.Pools},
    ),
    Route(
        "getPool",
        "GET",
        "/api/pools/{name}",
        "viewer",
        "One pool, lane by lane",
        get_pool,
        cli="pools NAME",
        answers={200: given.Pool},
        refusals=(404,),
    ),
)
