"""Queues and pools over HTTP: counts and settings, and the actions pause, resume, drain and obliterate."""

from __future__ import annotations

from typing import Any

from millrace.app.app import App
from millrace.app.format import instant
from millrace.domain.errors import InvalidInput
from millrace.domain.request import QueueCounts
from millrace.domain.rules.check import check_name
from millrace.views.queue_view import PoolView, QueueView, all_pools, counts_view, pool_view, queue_view
from millrace.web import requests, responses
from millrace.web.operation import Link, Request, Routes
from millrace.web.problem import Problem

LINKS = (Link("queue", "getQueue", {"name": "$response.body#/queue"}),)
routes = Routes()


@routes.get(
    "/api/queues",
    "viewer",
    "Every queue: jobs by state, and the age of the oldest that is due",
    cli="queues",
    links=(Link("first", "getQueue", {"name": "$response.body#/queues/0/queue"}),),
)
async def list_queues(request: Request) -> responses.QueueList:
    store = await request.server.app.connected()
    counts = await request.server.app.jobs.count()
    return responses.QueueList(instant(await store.now()), [counts_view(one) for one in counts])


@routes.get(
    "/api/queues/{name}",
    "viewer",
    "One queue, with its settings and lanes",
    cli="queues NAME",
    problems=(404,),
    links=(
        Link("pause", "pauseQueue", {"name": "$response.body#/queue"}),
        Link("drain", "drainQueue", {"name": "$response.body#/queue"}),
    ),
)
async def get_queue(request: Request) -> QueueView:
    return await _view(request.server.app, await _known(request))


async def _view(app: App, counts: QueueCounts) -> QueueView:
    queue = app.queue(counts.queue)
    settings = await queue.settings()
    lanes = await queue.lanes() if settings.lanes is not None else []
    return queue_view(counts, settings, lanes)


async def _known(request: Request) -> QueueCounts:
    name = request.path["name"]
    check_name("queue", name)
    for counts in await request.server.app.jobs.count():
        if counts.queue == name:
            return counts
    raise Problem(404, "not_found", f"queue {name} was never used")


@routes.add(
    "PATCH",
    "/api/queues/{name}",
    "admin",
    "Change limits and other settings of a queue, for all workers",
    cli="queues NAME --set",
    body=requests.QueueChange,
    problems=(409,),
)
async def change_queue(request: Request) -> QueueView:
    queue = request.server.app.queue(request.path["name"])
    changes: dict[str, Any] = requests.given(request.body)
    request.details |= {"queue": queue.name, "changes": changes}
    await queue.set(**changes)
    return await _view(request.server.app, await queue.counts())


@routes.post(
    "/api/queues/{name}/pause",
    "operator",
    "Stop claims from a queue, or from one lane of a pool; running jobs continue",
    cli="pause NAME --lane",
    body=requests.OfLane,
    body_optional=True,
    links=LINKS,
)
async def pause_queue(request: Request) -> responses.PauseState:
    return await _switch(request, paused=True)


@routes.post(
    "/api/queues/{name}/resume",
    "operator",
    "Resume claims; due times are unchanged",
    cli="resume NAME --lane",
    body=requests.OfLane,
    body_optional=True,
    links=LINKS,
)
async def resume_queue(request: Request) -> responses.PauseState:
    return await _switch(request, paused=False)


async def _switch(request: Request, *, paused: bool) -> responses.PauseState:
    queue = request.server.app.queue(request.path["name"])
    lane = request.body.lane
    request.details |= {"queue": queue.name, "lane": lane}
    settings = await (queue.pause(lane) if paused else queue.resume(lane))
    return responses.PauseState(queue.name, lane, settings.paused, list(settings.paused_lanes))


@routes.post(
    "/api/queues/{name}/drain",
    "operator",
    "Cancel every waiting job; running jobs continue",
    cli="drain NAME --dry-run --yes",
    body=requests.DrainQueue,
    problems=(404,),
    own_deadline=True,
)
async def drain_queue(request: Request) -> responses.DrainResult:
    counts = await _known(request)
    body: requests.DrainQueue = request.body
    queue = request.server.app.queue(counts.queue)
    waiting = counts.waiting
    if body.lane is not None:
        lanes = {lane.lane: lane for lane in await queue.lanes()}
        if body.lane not in lanes:
            raise InvalidInput(f"queue {queue.name} has no lane {body.lane}")
        waiting = lanes[body.lane].waiting
    done = 0 if body.dry_run else await queue.drain(lane=body.lane)
    request.details |= {"queue": queue.name, "lane": body.lane, "dry_run": body.dry_run, "cancelled": done}
    return responses.DrainResult(queue.name, body.dry_run, waiting, done)


@routes.post(
    "/api/queues/{name}/obliterate",
    "admin",
    "Delete every job of a queue, whatever its state; this cannot be undone",
    cli="obliterate NAME --dry-run --force",
    body=requests.Obliterate,
    problems=(404,),
    own_deadline=True,
)
async def obliterate_queue(request: Request) -> responses.ObliterateResult:
    counts = await _known(request)
    body: requests.Obliterate = request.body
    jobs = counts.waiting + counts.running + counts.completed + counts.dead + counts.cancelled
    if not body.dry_run and body.confirm != counts.queue:
        raise InvalidInput("this cannot be undone, so `confirm` must repeat the queue's name. Nothing was changed.")
    queue = request.server.app.queue(counts.queue)
    removed = 0 if body.dry_run else await queue.obliterate(force=True)
    request.details |= {"queue": counts.queue, "dry_run": body.dry_run, "removed": removed}
    return responses.ObliterateResult(counts.queue, body.dry_run, jobs, removed)


@routes.get("/api/pools", "viewer", "Every pool and its lanes", cli="pools")
async def list_pools(request: Request) -> responses.PoolList:
    return responses.PoolList([pool_view(*pool) for pool in await all_pools(request.server.app)])


@routes.get("/api/pools/{name}", "viewer", "One pool, lane by lane", cli="pools NAME", problems=(404,))
async def get_pool(request: Request) -> PoolView:
    check_name("pool", request.path["name"])
    for pool in await all_pools(request.server.app):
        if pool[0].pool == request.path["name"]:
            return pool_view(*pool)
    raise Problem(404, "not_found", f"there is no pool {request.path['name']}")
