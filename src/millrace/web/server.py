"""The server itself: is it well, what does it count, who is asking, and what was changed through it."""

from __future__ import annotations

import asyncio
from functools import cache

import msgspec
from starlette.responses import Response

from millrace import __version__
from millrace.domain.errors import QueueError
from millrace.runtime.redaction import COUNTS
from millrace.runtime.secrets import HIDDEN
from millrace.runtime.settings import masked
from millrace.runtime.shape import Plain, seconds, when
from millrace.web import given, taken
from millrace.web.exporter import CONTENT
from millrace.web.openapi import document
from millrace.web.route import Answer, Asked, Route

PATIENCE = 2.0  # seconds within which a store that is well answers
SUMS = (
    "waiting",
    "ready",
    "scheduled",
    "retrying",
    "blocked",
    "running",
    "completed",
    "dead",
    "cancelled",
    "archived",
    "processed",
    "died",
)


async def health(asked: Asked) -> Answer:
    try:
        async with asyncio.timeout(PATIENCE):
            await (await asked.house.store()).now()
    except (QueueError, OSError, TimeoutError):
        return Answer({"status": "down", "version": __version__}, 503)
    return Answer({"status": "ok", "version": __version__})


async def metrics(asked: Asked) -> Response:
    return Response(await asked.house.exporter.text(), media_type=CONTENT)


async def overview(asked: Asked) -> Answer:
    store = await asked.house.store()
    counts, workers = await asked.house.app.jobs.count(), await store.workers()
    ages = [one.oldest_ready for one in counts if one.oldest_ready is not None]
    alive = sum(record.alive for record in workers)
    return Answer(
        {
            "now": when(await store.now()),
            "store": masked(store.url),
            "version": __version__,
            "queues": len(counts),
            **{name: sum(getattr(one, name) for one in counts) for name in SUMS},
            "oldest_ready": seconds(max(ages)) if ages else None,
            "workers": alive,
            "stale_workers": len(workers) - alive,
        }
    )


async def whoami(asked: Asked) -> Answer:
    return Answer({"role": asked.holder.role, "name": asked.holder.name})


async def redaction(asked: Asked) -> Answer:
    return Answer({"phrases": list(asked.house.redaction.phrases), "counts": list(COUNTS), "shown_as": HIDDEN})


async def audit(asked: Asked) -> Answer:
    latest = asked.house.audit.latest(asked.query.limit)
    return Answer({"entries": [msgspec.structs.asdict(entry) for entry in latest]})


async def openapi(asked: Asked) -> Answer:
    return Answer(_document())


@cache
def _document() -> Plain:
    from millrace.web.table import ROUTES as ALL  # the table holds this module's routes too

    return document(ALL)


ROUTES = (
    Route(
        "getHealth",
        "GET",
        "/health",
        "open",
        "Does the store answer?",
        health,
        cli="doctor",
        answers={200: given.Health, 503: given.Health},
    ),
    Route(
        "getMetrics",
        "GET",
        "/metrics",
        "viewer",
        "Metrics for Prometheus",
        metrics,
        media=CONTENT,
        answers={200: str},
    ),
    Route("getOpenapi", "GET", "/openapi.json", "open", "This document", openapi, answers={200: dict[str, object]}),
    Route(
        "getOverview",
        "GET",
        "/api/overview",
        "viewer",
        "All queues and workers in one answer",
        overview,
        cli="queues",
        answers={200: given.Overview},
    ),
    Route("whoAmI", "GET", "/api/me", "viewer", "The role of whoever asks", whoami, answers={200: given.Who}),
    Route(
        "getRedaction",
        "GET",
        "/api/redaction",
        "viewer",
        "The rule by which fields are hidden, for pages that read a store themselves",
        redaction,
        answers={200: given.Redaction},
    ),
    Route(
        "listAudit",
        "GET",
        "/api/audit",
        "admin",
        "What was changed through this server since it started, the newest first",
        audit,
        query=taken.LatestQuery,
        answers={200: given.AuditLog},
    ),
)
