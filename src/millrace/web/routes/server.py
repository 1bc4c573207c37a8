"""The server over HTTP: health, metrics, overview, throughput, roles, the audit log and the OpenAPI document."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from starlette.responses import Response

from millrace import __version__
from millrace.app.format import instant
from millrace.app.settings import masked
from millrace.app.telemetry.redaction import COUNTS, HIDDEN
from millrace.domain.errors import QueueError
from millrace.domain.request import QueueCounts
from millrace.views.throughput import STEP, point_view, series, unfinished
from millrace.web import requests, responses
from millrace.web.exporter import CONTENT
from millrace.web.openapi import document
from millrace.web.operation import Reply, Request, Routes

BUDGET = 2.0  # seconds within which a healthy store replies
SUMS = {*responses.Overview.__struct_fields__} & {*QueueCounts.__struct_fields__} - {"oldest_ready"}
routes = Routes()


@routes.get(
    "/health",
    "open",
    "Does the store answer?",
    cli="doctor",
    responses={200: responses.Health, 503: responses.Health},
)
async def get_health(request: Request) -> Reply:
    try:
        async with asyncio.timeout(BUDGET):
            await (await request.server.app.connected()).now()
    except (QueueError, OSError, TimeoutError):
        return Reply(responses.Health("down", __version__), 503)
    return Reply(responses.Health("ok", __version__))


@routes.get("/metrics", "viewer", "Metrics for Prometheus", media=CONTENT, responses={200: str})
async def get_metrics(request: Request) -> Response:
    return Response(await request.server.exporter.text(), media_type=CONTENT)


@routes.get("/api/overview", "viewer", "All queues and workers in one answer", cli="queues")
async def get_overview(request: Request) -> responses.Overview:
    store = await request.server.app.connected()
    counts, workers = await request.server.app.jobs.count(), await store.workers()
    ages = [one.oldest_ready for one in counts if one.oldest_ready is not None]
    alive = sum(record.alive for record in workers)
    return responses.Overview(
        now=instant(await store.now()),
        store=masked(store.url),
        version=__version__,
        queues=len(counts),
        **{name: sum(getattr(one, name) for one in counts) for name in SUMS},
        oldest_ready=max(ages) / 1000 if ages else None,
        workers=alive,
        stale_workers=len(workers) - alive,
    )


@routes.get(
    "/api/throughput",
    "viewer",
    "Jobs completed and dead in each step of the last quarter of an hour, oldest first",
    cli="queues --throughput",
)
async def get_throughput(request: Request) -> responses.Throughput:
    marks = await request.server.throughput.marks(await request.server.app.connected())
    points = [point_view(point) for point in series(marks)]
    return responses.Throughput(instant(marks[-1].at), STEP / 1000, points, point_view(unfinished(marks)))


@routes.get("/api/me", "viewer", "The role of the caller")
async def who_am_i(request: Request) -> responses.CallerInfo:
    role = request.caller.role
    assert role != "open", "the guard asks for a viewer"
    return responses.CallerInfo(role, request.caller.name)


@routes.get("/api/redaction", "viewer", "The rule by which fields are hidden, for pages that read a store themselves")
async def get_redaction(request: Request) -> responses.RedactionRule:
    return responses.RedactionRule(list(request.server.redaction.phrases), HIDDEN, list(COUNTS))


@routes.get(
    "/api/audit",
    "admin",
    "What was changed through this server since it started, the newest first",
    query=requests.LatestQuery,
)
async def list_audit(request: Request) -> responses.AuditLog:
    return responses.AuditLog(request.server.audit.latest(request.query.limit))


@routes.get("/openapi.json", "open", "This document")
async def get_openapi(request: Request) -> dict[str, object]:
    return {**_document(), "servers": [{"url": request.root_path or "/"}]}


@cache
def _document() -> dict[str, Any]:
    from millrace.web.routes import OPERATIONS  # it contains the operations of this module

    return document(OPERATIONS)
