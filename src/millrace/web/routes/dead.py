"""Dead letters over HTTP, grouped by cause, the most frequent first. `POST /api/bulk` replays the jobs of one cause."""

from __future__ import annotations

import msgspec

from millrace.app.telemetry.redaction import JobRedactor, off_loop
from millrace.domain.errors import InvalidInput
from millrace.views.causes import Causes, CauseView, cause_view
from millrace.views.filters import page_of, read_query
from millrace.web import requests, responses
from millrace.web.deadline import TimeBudget
from millrace.web.operation import Link, Request, Routes
from millrace.web.state import ServerState

BUDGET = 0.2  # seconds of searching; the cursor continues with the rest
PAGE = 500
routes = Routes()


@routes.get(
    "/api/dead",
    "viewer",
    "Dead jobs by cause, the most frequent first",
    cli="dead --queue --task --since --until --finished-from --finished-to --error --limit",
    query=requests.DeadQuery,
    links=(Link("example", "getJob", {"id": "$response.body#/causes/0/example"}),),
)
async def list_causes(request: Request) -> responses.CauseList:
    query: requests.DeadQuery = request.query
    if query.status not in (None, "dead", "failed", "dlq"):
        raise InvalidInput("this is about dead jobs only; for other states use /api/jobs")
    query.status = "dead"
    server = request.server
    causes, complete = await _gathered(server, query)
    ordered = causes.ordered(query.limit)

    def views() -> list[CauseView]:
        return [cause_view(one, JobRedactor(one.example, server.redaction, server.app.serdes)) for one in ordered]

    shown = await off_loop(sum(len(one.example.spec.payload) for one in ordered), views)
    return responses.CauseList(causes.total, complete, shown, causes.cursor)


async def _gathered(server: ServerState, query: requests.DeadQuery) -> tuple[Causes, bool]:
    now = await (await server.app.connected()).now()
    search = msgspec.structs.replace(read_query(query, now), cursor=query.cursor, limit=PAGE, newest_first=True)
    causes = Causes()
    budget = TimeBudget(BUDGET)
    while True:
        page = await page_of(server.app, search, query.error)
        causes.cursor = page.cursor
        for job in page.jobs:
            causes.add(job)
        if page.cursor is None or budget.is_over():
            return causes, page.cursor is None
        search = msgspec.structs.replace(search, cursor=page.cursor)
