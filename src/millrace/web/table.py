"""The table of all routes: everything the server does, in one place."""

from __future__ import annotations

from millrace.web import acting, bulk, dead, events, history, jobs, queues, server, throughput, workers
from millrace.web.route import Route

ROUTES: tuple[Route, ...] = (
    *jobs.ROUTES,
    *history.ROUTES,
    *acting.ROUTES,
    *bulk.ROUTES,
    *dead.ROUTES,
    *queues.ROUTES,
    *workers.ROUTES,
    *events.ROUTES,
    *throughput.ROUTES,
    *server.ROUTES,
)
