"""Workers over HTTP."""

from __future__ import annotations

from millrace.app.format import instant
from millrace.views.worker_view import running_by_worker, worker_view
from millrace.web import responses
from millrace.web.operation import Request, Routes

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
