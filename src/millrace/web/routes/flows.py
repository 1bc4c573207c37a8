"""Flows over HTTP: how far a flow is, cancel and replay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from millrace.app.flows.handle import FlowHandle
from millrace.app.flows.members import size_of
from millrace.app.telemetry.redaction import JobRedactor
from millrace.domain.job import Job
from millrace.views.flow_view import FlowView, flow_view
from millrace.views.job_view import JobSummary, job_summary
from millrace.web import responses
from millrace.web.deadline import with_deadline
from millrace.web.operation import Link, Request, Routes

LINKS = (Link("flow", "getFlow", {"id": "$response.body#/id"}),)
routes = Routes()


@routes.get(
    "/api/flows/{id}", "viewer", "How far a flow is, and which of its jobs failed", cli="flow ID", problems=(404,)
)
async def get_flow(request: Request) -> FlowView:
    server = request.server
    status = await server.app.flows.handle(request.path["id"]).status()
    now = await (await server.app.connected()).now()

    def summary(job: Job) -> JobSummary:
        return job_summary(job, now, JobRedactor(job, server.redaction, server.app.serdes) if job.error else None)

    return flow_view(status, summary)


@routes.post(
    "/api/flows/{id}/cancel",
    "operator",
    "Cancel all jobs of a flow that have not finished",
    cli="flow ID --cancel",
    problems=(404,),
    links=LINKS,
    own_deadline=True,
)
async def cancel_flow(request: Request) -> responses.FlowChange:
    return await _change(request, FlowHandle.cancel)


@routes.post(
    "/api/flows/{id}/replay",
    "operator",
    "Replay the jobs of a flow that failed, and those that died with them",
    cli="flow ID --replay",
    problems=(404,),
    links=LINKS,
    own_deadline=True,
)
async def replay_flow(request: Request) -> responses.FlowChange:
    return await _change(request, FlowHandle.replay)


async def _change(request: Request, change: Callable[[FlowHandle[Any]], Awaitable[int]]) -> responses.FlowChange:
    app, flow_id = request.server.app, request.path["id"]
    store = await app.connected()
    [last] = await with_deadline(store.get([flow_id]))
    size = (
        0 if last is None else size_of(last.spec) or 0
    )  # 0 if there is none: then the change raises the fitting error
    changed = await with_deadline(change(app.flows.handle(flow_id)), size)
    request.details |= {"id": flow_id, "jobs": changed}
    return responses.FlowChange(flow_id, changed)
