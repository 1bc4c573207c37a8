"""The operations of the HTTP API, one module per resource. `OPERATIONS` lists them all.

The decorator above a handler defines its path, role and types; the return type of the handler is the response with
status 200. An operation that changes something needs a command that does the same (`cli=`);
tests/web/test_operations.py checks this.
"""

from __future__ import annotations

from millrace.web.operation import Operation
from millrace.web.routes import (
    bulk,
    dead,
    events,
    flows,
    history,
    job_actions,
    jobs,
    queues,
    schedules,
    server,
    workers,
)

OPERATIONS: tuple[Operation, ...] = (
    *jobs.routes,
    *history.routes,
    *job_actions.routes,
    *flows.routes,
    *bulk.routes,
    *dead.routes,
    *queues.routes,
    *workers.routes,
    *schedules.routes,
    *events.routes,
    *server.routes,
)
