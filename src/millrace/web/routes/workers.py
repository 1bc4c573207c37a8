"""Workers and schedules over HTTP: list them, and pause, resume or forget a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millrace.app.format import instant
from millrace.app.schedules.control import ScheduleControl
from millrace.domain.errors import InvalidInput
from millrace.domain.rules.check import check_name
from millrace.views.worker_view import ScheduleView, running_by_worker, schedule_view, worker_view
from millrace.web import responses
from millrace.web.operation import Link, Request, Routes
from millrace.web.problem import Problem

routes = Routes()


@routes.get(
    "/api/workers", "viewer", "All workers, alive or stale: what they run, and what they have done", cli="workers"
)
async def list_workers(request: Request) -> responses.WorkerList:
    store = await request.server.app.connected()
    known = sorted(await store.workers(), key=lambda record: (not record.alive, record.info.id))
    running = await running_by_worker(request.server.app) if known else {}
    workers = [worker_view(record, running.get(record.info.id, [])) for record in known]
    return responses.WorkerList(instant(await store.now()), workers)


@routes.get(
    "/api/schedules",
    "viewer",
    "Every schedule, with its last and next tick",
    cli="schedules",
    links=(Link("first", "getSchedule", {"name": "$response.body#/schedules/0/name"}),),
)
async def list_schedules(request: Request) -> responses.ScheduleList:
    return responses.ScheduleList([schedule_view(one) for one in await request.server.app.schedules()])


@routes.get("/api/schedules/{name}", "viewer", "One schedule", cli="schedules NAME", problems=(404,))
async def get_schedule(request: Request) -> ScheduleView:
    with _schedule(request) as schedule:
        return schedule_view(await schedule.status())


@routes.post(
    "/api/schedules/{name}/pause",
    "operator",
    "Pause a schedule: its ticks enqueue no jobs",
    cli="schedules NAME --pause",
    problems=(404,),
)
async def pause_schedule(request: Request) -> ScheduleView:
    with _schedule(request) as schedule:
        return schedule_view(await schedule.pause())


@routes.post(
    "/api/schedules/{name}/resume", "operator", "Go on from now", cli="schedules NAME --resume", problems=(404,)
)
async def resume_schedule(request: Request) -> ScheduleView:
    with _schedule(request) as schedule:
        return schedule_view(await schedule.resume())


@routes.add(
    "DELETE",
    "/api/schedules/{name}",
    "admin",
    "Remove a schedule; a scheduler whose app declares it creates it again",
    cli="schedules NAME --forget --yes",
    problems=(404,),
)
async def forget_schedule(request: Request) -> responses.ForgetResult:
    with _schedule(request) as schedule:
        await schedule.forget()
    return responses.ForgetResult(request.path["name"], True)


@contextmanager
def _schedule(request: Request) -> Iterator[ScheduleControl]:
    name = request.path["name"]
    check_name("schedule", name)
    request.details["schedule"] = name
    try:
        yield request.server.app.schedule(name)
    except InvalidInput as error:  # the name is valid, so no schedule has it
        raise Problem(404, "not_found", str(error)) from None
