"""Workers and schedules over HTTP."""

from __future__ import annotations

from typing import Any

from millrace.domain.check import check_name
from millrace.domain.errors import InvalidInput
from millrace.runtime.holding import held_by_worker
from millrace.runtime.shape import schedule_plain, when, worker_plain
from millrace.web import given
from millrace.web.problem import Problem
from millrace.web.route import Answer, Asked, Link, Route


async def list_workers(asked: Asked) -> Answer:
    store = await asked.house.store()
    known = sorted(await store.workers(), key=lambda record: (not record.alive, record.info.id))
    held = await held_by_worker(asked.house.app) if known else {}
    plain = [{**worker_plain(record), "running": held.get(record.info.id, [])} for record in known]
    return Answer({"now": when(await store.now()), "workers": plain})


async def list_schedules(asked: Asked) -> Answer:
    return Answer({"schedules": [schedule_plain(one) for one in await asked.house.app.schedules()]})


def _with(action: str) -> Any:
    async def act(asked: Asked) -> Answer:
        name = asked.path["name"]
        check_name("schedule", name)
        control = asked.house.app.schedule(name)
        asked.facts["schedule"] = name
        try:
            if action == "forget":
                await control.forget()
                return Answer({"name": name, "forgotten": True})
            return Answer(schedule_plain(await getattr(control, action)()))
        except InvalidInput as error:  # the name is one that could be, so it is that none has it
            raise Problem(404, "not_found", str(error)) from None

    return act


ROUTES = (
    Route(
        "listWorkers",
        "GET",
        "/api/workers",
        "viewer",
        "Who is alive, who went silent, what they run and what they have done",
        list_workers,
        cli="workers",
        answers={200: given.Workers},
    ),
    Route(
        "listSchedules",
        "GET",
        "/api/schedules",
        "viewer",
        "Every schedule, with its last and next tick",
        list_schedules,
        cli="schedules",
        answers={200: given.Schedules},
        links=(Link("first", "getSchedule", {"name": "$response.body#/schedules/0/name"}),),
    ),
    Route(
        "getSchedule",
        "GET",
        "/api/schedules/{name}",
        "viewer",
        "One schedule",
        _with("status"),
        cli="schedules NAME",
        answers={200: given.Schedule},
        refusals=(404,),
    ),
    Route(
        "pauseSchedule",
        "POST",
        "/api/schedules/{name}/pause",
        "operator",
        "No tick puts a job in any more",
        _with("pause"),
        cli="schedules NAME --pause",
        answers={200: given.Schedule},
        refusals=(404,),
    ),
    Route(
        "resumeSchedule",
        "POST",
        "/api/schedules/{name}/resume",
        "operator",
        "Go on from now",
        _with("resume"),
        cli="schedules NAME --resume",
        answers={200: given.Schedule},
        refusals=(404,),
    ),
    Route(
        "forgetSchedule",
        "DELETE",
        "/api/schedules/{name}",
        "admin",
        "Remove a schedule; a scheduler whose app declares it makes it anew",
        _with("forget"),
        cli="schedules NAME --forget --yes",
        answers={200: given.Forgotten},
        refusals=(404,),
    ),
)
