"""Schedules over HTTP: list, store, pause, resume and remove them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millrace.app.payloads.jsonable import refuse_unsafe
from millrace.domain.errors import InvalidInput
from millrace.domain.rules.check import check_name
from millrace.views.job_input import SpecBuilder
from millrace.views.worker_view import ScheduleView, schedule_view
from millrace.web import requests, responses
from millrace.web.operation import Link, Request, Routes
from millrace.web.problem import Problem

routes = Routes()
MOST_INPUT = 2 << 20  # a payload of the largest size, and some room for escapes in it


@routes.get(
    "/api/schedules",
    "viewer",
    "Schedules by name, a page at a time, with their last and next ticks",
    cli="schedules --after --limit",
    query=requests.SchedulesQuery,
    links=(Link("first", "getSchedule", {"name": "$response.body#/schedules/0/name"}),),
)
async def list_schedules(request: Request) -> responses.ScheduleList:
    limit = request.query.limit
    found = await request.server.app.schedules.page(after=request.query.after or "", limit=limit + 1)
    more = found[limit - 1].name if len(found) > limit else None
    return responses.ScheduleList([schedule_view(one) for one in found[:limit]], more)


@routes.get("/api/schedules/{name}", "viewer", "One schedule", cli="schedules NAME", problems=(404,))
async def get_schedule(request: Request) -> ScheduleView:
    name = _name(request)
    schedule = await request.server.app.schedules.get(name)
    if schedule is None:
        raise _missing(name)
    return schedule_view(schedule)


@routes.add(
    "PUT",
    "/api/schedules/{name}",
    "operator",
    "Store a schedule that any worker runs, or change the one with this name",
    cli="schedule NAME TASK PAYLOAD --cron",
    body=requests.NewSchedule,
    problems=(404, 422),
    max_body=MOST_INPUT,
)
async def put_schedule(request: Request) -> ScheduleView:
    new: requests.NewSchedule = request.body
    app, name = request.server.app, _name(request)
    refuse_unsafe("the payload", new.payload, finite=True, keys=False)
    checked = None if new.unchecked or not app.tasks else app
    [spec] = SpecBuilder(checked, new.task, requests.job_options(new)).specs(app, [new.payload])
    return schedule_view(await app.schedules.put(name, spec, **requests.schedule_times(new)))


@routes.post(
    "/api/schedules/{name}/pause",
    "operator",
    "Pause a schedule: its ticks enqueue no jobs",
    cli="schedules NAME --pause",
    problems=(404,),
)
async def pause_schedule(request: Request) -> ScheduleView:
    with _name_or_404(request) as name:
        return schedule_view(await request.server.app.schedules.pause(name))


@routes.post(
    "/api/schedules/{name}/resume", "operator", "Go on from now", cli="schedules NAME --resume", problems=(404,)
)
async def resume_schedule(request: Request) -> ScheduleView:
    with _name_or_404(request) as name:
        return schedule_view(await request.server.app.schedules.resume(name))


@routes.add(
    "DELETE",
    "/api/schedules/{name}",
    "admin",
    "Remove a schedule; a worker whose app declares it in code stores it again",
    cli="schedules NAME --remove --yes",
    problems=(404,),
)
async def remove_schedule(request: Request) -> responses.RemovedSchedule:
    name = _name(request)
    if not await request.server.app.schedules.remove(name):
        raise _missing(name)
    return responses.RemovedSchedule(name, True)


def _name(request: Request) -> str:
    name = request.path["name"]
    check_name("schedule", name)
    request.details["schedule"] = name
    return name


@contextmanager
def _name_or_404(request: Request) -> Iterator[str]:
    name = _name(request)
    try:
        yield name
    except InvalidInput as error:  # the name is valid, so no schedule has it
        raise Problem(404, "not_found", str(error)) from None


def _missing(name: str) -> Problem:
    return Problem(404, "not_found", f"there is no schedule {name!r} in the store")
