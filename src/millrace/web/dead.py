"""Dead letters over HTTP: causes of death, the most frequent first. `POST /api/bulk` brings those of one back."""

from __future__ import annotations

import time

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.runtime.causes import Causes, cause_plain
from millrace.runtime.fingerprint import cause
from millrace.runtime.redaction import failure_without
from millrace.runtime.selection import PAGE, page_of, read_query
from millrace.runtime.shape import Plain
from millrace.web import given, taken
from millrace.web.house import House
from millrace.web.route import Answer, Asked, Link, Route
from millrace.web.shown import aside, secrets

PATIENCE = 2.0  # seconds


async def causes_of_death(asked: Asked) -> Answer:
    query: taken.DeadQuery = asked.query
    if query.status not in (None, "dead", "failed", "dlq"):
        raise InvalidInput("this is about dead jobs only; for other states use /api/jobs")
    query.status = "dead"
    causes, complete = await _gathered(asked.house, query)
    ordered = causes.ordered(query.limit)

    def shown() -> list[Plain]:
        found: list[Plain] = []
        for one in ordered:
            # First what is secret, then what varies: of half a secret nothing would be left to find.
            error = failure_without(one.example.error, secrets(one.example, asked.house))
            found.append({**cause_plain(one), "error": cause(msgspec.structs.replace(one.example, error=error))})
        return found

    plain = await aside(sum(len(one.example.spec.payload) for one in ordered), shown)
    return Answer({"total": causes.total, "complete": complete, "causes": plain})


async def _gathered(house: House, query: taken.DeadQuery) -> tuple[Causes, bool]:
    now = await (await house.store()).now()
    search = msgspec.structs.replace(read_query(query, now), limit=PAGE, newest_first=True)
    causes = Causes()
    until = time.monotonic() + PATIENCE
    while True:
        page = await page_of(house.app, search, query.error)
        for job in page.jobs:
            causes.add(job)
        if page.cursor is None or time.monotonic() > until:
            return causes, page.cursor is None
        search = msgspec.structs.replace(search, cursor=page.cursor)


ROUTES = (
    Route(
        "listCauses",
        "GET",
        "/api/dead",
        "viewer",
        "Dead jobs by cause, the most frequent first",
        causes_of_death,
        cli="dead --queue --task --since --until --finished-from --finished-to --error --limit",
        query=taken.DeadQuery,
        answers={200: given.Dead},
        links=(Link("example", "getJob", {"id": "$response.body#/causes/0/example"}),),
    ),
)
